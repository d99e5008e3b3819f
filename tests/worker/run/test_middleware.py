"""Middleware around attempts and around enqueues."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from fairlead import (
    Backoff,
    Context,
    Enqueuing,
    Fairlead,
    InvalidInput,
    QueueFull,
    Snooze,
    State,
    Task,
    TooLarge,
    correlation,
    current_context,
)
from tests.worker.harness import until


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    app = Fairlead("memory://")
    yield app
    assert await app._clients.store.audit() == []


BOTH = pytest.mark.parametrize("is_async", [True, False])


def task_of(
    app: Fairlead, is_async: bool, body: Callable[[], Any], **options: Any
) -> Task[[], Any]:
    """A task that does the same on the loop or in a thread."""

    async def on_the_loop() -> Any:
        return body()

    def in_a_thread() -> Any:
        return body()

    handler: Any = on_the_loop if is_async else in_a_thread
    made: Task[[], Any] = app.task(name="work", **options)(handler)
    return made


# -- around attempts ---------------------------------------------------------------------------


@BOTH
async def test_the_first_is_outermost_and_all_run_on_the_loop(
    app: Fairlead, is_async: bool
) -> None:
    seen: list[Any] = []
    var: ContextVar[str] = ContextVar("var", default="unset")
    here = threading.get_ident()

    @app.around_run
    async def outer(ctx: Context) -> AsyncIterator[None]:
        assert threading.get_ident() == here
        assert current_context() is ctx
        seen.append(("outer", ctx.attempt))
        var.set("set by middleware")
        yield
        seen.append("outer left")

    @app.around_run
    @asynccontextmanager
    async def inner(ctx: Context) -> AsyncIterator[None]:
        ctx.on_cleanup(seen.append, "cleaned")
        seen.append("inner")
        yield
        seen.append("inner left")

    def body() -> str:
        seen.append((threading.get_ident() == here, var.get()))
        return "value"

    handle = await task_of(app, is_async, body).aenqueue()
    await app.drain()
    assert await handle.aresult(0) == "value"
    assert seen == [
        ("outer", 1),
        "inner",
        (is_async, "set by middleware"),
        "cleaned",
        "inner left",
        "outer left",
    ]


@BOTH
async def test_it_sees_what_the_handler_raised_and_the_task_fails_as_without_it(
    app: Fairlead, is_async: bool
) -> None:
    seen: list[BaseException] = []

    @app.around_run
    async def watch(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(error)
            raise

    def body() -> None:
        raise ValueError("from the handler")

    handle = await task_of(app, is_async, body, max_retries=0).aenqueue()
    await app.drain()
    assert [str(error) for error in seen] == ["from the handler"]
    info = await handle.ainfo()
    assert (info.state, info.reason) == (State.DEAD, "exhausted")
    assert info.error is not None
    assert info.error.type == "ValueError"
    first = info.error.traceback.splitlines()[1]
    assert "test_middleware.py" in first  # nothing of ours, nor of contextlib, stands before it


@BOTH
async def test_what_it_raises_itself_is_retried_and_what_it_swallows_is_a_success(
    app: Fairlead, is_async: bool
) -> None:
    runs: list[int] = []

    @app.around_run
    async def moody(ctx: Context) -> AsyncIterator[None]:
        if ctx.attempt == 1:
            raise ConnectionError("before the handler")
        try:
            yield
        except LookupError:
            return
        if ctx.attempt == 2:
            raise ConnectionError("after the handler")

    def body() -> str:
        runs.append(1)
        if len(runs) == 2:
            raise LookupError
        return "value"

    task = task_of(app, is_async, body, backoff=Backoff(initial=0))
    handle = await task.aenqueue()
    assert await app.drain() == 3
    assert len(runs) == 2
    assert await handle.aresult(0) is None
    assert [str(each.exception) for each in app.exceptions] == [
        "before the handler",
        "after the handler",
    ]


@BOTH
async def test_an_outer_one_may_swallow_what_an_inner_one_raises(
    app: Fairlead, is_async: bool
) -> None:
    ran: list[int] = []

    @app.around_run
    async def forgiving(ctx: Context) -> AsyncIterator[None]:
        with suppress(ConnectionError):
            yield

    @app.around_run
    async def broken(ctx: Context) -> AsyncIterator[None]:
        if ctx.attempt:
            raise ConnectionError
        yield

    handle = await task_of(app, is_async, lambda: ran.append(1)).aenqueue()
    await app.drain()
    assert await handle.astate() is State.COMPLETED
    assert ran == []


@BOTH
async def test_signals_and_bad_arguments_pass_through_it(app: Fairlead, is_async: bool) -> None:
    seen: list[str] = []

    @app.around_run
    async def watch(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    async def on_the_loop(n: int) -> None:
        raise Snooze(3600)

    def in_a_thread(n: int) -> None:
        raise Snooze(3600)

    task: Any = app.task(name="work", max_retries=0)(on_the_loop if is_async else in_a_thread)
    one = await task.aenqueue(1)
    elsewhere = Fairlead(store=app._clients.store).task(name="work")(lambda n: None)
    two = await elsewhere.aenqueue("no number")
    await app.drain()
    assert (await one.astate(), await two.astate()) == (State.SCHEDULED, State.DEAD)
    assert sorted(seen) == ["InvalidArgument", "Snooze"]


@BOTH
@pytest.mark.parametrize("place", ["before", "after"])
async def test_its_time_is_the_attempts_and_it_can_be_cancelled(
    app: Fairlead, is_async: bool, place: str
) -> None:
    seen: list[str] = []
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.around_run
    async def slow(ctx: Context) -> AsyncIterator[None]:
        if place == "before":
            await wait()
        yield
        if place == "after":
            await wait()

    task = task_of(app, is_async, lambda: None, max_retries=0)
    late = await task.using(timeout=0.05).aenqueue()
    await app.drain()
    info = await late.ainfo()
    assert info.error is not None
    assert (info.state, info.error.type) == (State.DEAD, "TimeoutError")
    reached.clear()
    async with app.worker():
        handle = await task.aenqueue()
        await reached.wait()
        await handle.acancel()

        async def gone() -> bool:
            return await handle.astate() is State.CANCELLED

        await until(gone)
    assert seen == ["cancelled"] * 2


@pytest.mark.parametrize("place", ["before", "after"])
async def test_one_that_does_not_stop_keeps_its_thread_until_it_has(
    app: Fairlead, place: str
) -> None:
    end = 0.0

    async def stubborn() -> None:
        nonlocal end
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @app.around_run
    async def hangs(ctx: Context) -> AsyncIterator[None]:
        if place == "before":
            await stubborn()
        yield
        if place == "after":
            await stubborn()

    @app.task(max_retries=0, timeout=0.4)
    def work() -> None: ...

    handle = await work.aenqueue()
    worker = app._worker(patience=0.05)
    await worker.drain()
    assert time.monotonic() >= end > 0
    assert (await handle.ainfo()).state is State.COMPLETED  # late, but the work was done


async def test_a_sync_handler_that_is_cancelled_sees_it_and_the_middleware_what_it_raised(
    app: Fairlead,
) -> None:
    seen: list[str] = []
    began = threading.Event()

    @app.around_run
    async def watch(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @app.task
    def patient(ctx: Context) -> None:
        began.set()
        while True:
            ctx.raise_if_cancelled()
            time.sleep(0.001)

    async with app.worker():
        handle = await patient.aenqueue()
        await until(began.is_set)
        await handle.acancel()

        async def gone() -> bool:
            return await handle.astate() is State.CANCELLED

        await until(gone)
    assert seen == ["TaskCancelled"]


async def test_many_sync_handlers_share_few_threads_with_middleware(app: Fairlead) -> None:
    seen: list[str] = []

    @app.around_run
    async def note(ctx: Context) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        yield
        seen.append(ctx.id)

    @app.task
    def work() -> None: ...

    handles = await app.aenqueue_many(work.call() for _ in range(50))
    await app._worker(threads=2).drain()
    assert sorted(seen) == sorted(handle.id for handle in handles)


def test_what_could_never_be_middleware_is_refused(app: Fairlead) -> None:
    async def no_yield(ctx: Any) -> None: ...

    def not_async(ctx: Any) -> Iterator[None]:
        yield

    wrong: Any
    for wrong in (no_yield, not_async, 5):
        with pytest.raises(InvalidInput, match="around_run takes"):
            app.around_run(wrong)
        with pytest.raises(InvalidInput, match="around_enqueue takes"):
            app.around_enqueue(wrong)


# -- around enqueues ---------------------------------------------------------------------------


async def test_it_runs_around_every_way_to_enqueue_and_its_headers_arrive(app: Fairlead) -> None:
    seen: list[Enqueuing] = []
    headers: dict[str, str] = {}

    @app.around_enqueue
    async def stamp(enqueuing: Enqueuing) -> AsyncIterator[None]:
        enqueuing.headers["n"] = str(len(seen))
        seen.append(enqueuing)
        yield

    @app.task(name="child")
    async def child(ctx: Context) -> None:
        headers[ctx.id] = ctx.headers["n"]

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.aenqueue(child.call())
        await ctx.aenqueue_many([child.call()])

    @app.task(name="sync_parent")
    def sync_parent(ctx: Context) -> None:
        ctx.enqueue(child.call())
        ctx.enqueue_many([child.call()])

    with correlation("request"):
        handle = await child.using(tenant="acme", queue="mail").aenqueue()
    assert seen[0] == Enqueuing(
        task="child",
        id=handle.id,
        tenant="acme",
        queue="mail",
        correlation_id="request",
        headers={"n": "0"},
    )
    with pytest.raises(AttributeError):
        seen[0].id = "other"  # type: ignore[misc]
    await asyncio.to_thread(child.enqueue)
    await app.aenqueue_many(child.call() for _ in range(3))
    await asyncio.to_thread(app.enqueue_many, [child.call(), child.call()])
    await parent.aenqueue()
    await sync_parent.aenqueue()
    await app.drain()
    assert len(seen) == 13
    assert headers == {each.id: each.headers["n"] for each in seen if each.task == "child"}
    assert len(headers) == 11


async def test_headers_are_none_without_middleware_and_cannot_be_changed(app: Fairlead) -> None:
    seen: list[Any] = []

    @app.task
    async def work(ctx: Context) -> None:
        seen.append(dict(ctx.headers))
        with pytest.raises(TypeError):
            ctx.headers["a"] = "b"  # type: ignore[index]

    await work.aenqueue()
    await app.drain()
    app.around_enqueue(_stamp)
    await work.aenqueue()
    await app.drain()
    assert seen == [{}, {"a": "1"}]
    assert app.exceptions == []


async def _stamp(enqueuing: Enqueuing) -> AsyncIterator[None]:
    enqueuing.headers["a"] = "1"
    yield


async def test_raising_before_the_yield_writes_nothing(app: Fairlead) -> None:
    seen: list[str] = []

    @app.around_enqueue
    async def watch(enqueuing: Enqueuing) -> AsyncIterator[None]:
        try:
            yield
        except PermissionError:
            seen.append(enqueuing.tenant)  # which it must not swallow

    @app.around_enqueue
    async def guard(enqueuing: Enqueuing) -> AsyncIterator[None]:
        if enqueuing.tenant == "blocked":
            raise PermissionError("not you")
        yield

    @app.task
    def work() -> None: ...

    blocked = work.using(tenant="blocked")
    with pytest.raises(PermissionError, match="not you"):
        await blocked.aenqueue()
    with pytest.raises(PermissionError, match="not you"):
        await asyncio.to_thread(blocked.enqueue)
    with pytest.raises(PermissionError, match="not you"):
        await app.aenqueue_many([work.call(), blocked.call(), work.call()])
    assert (await app.asnapshot()).depth == 0
    assert seen == ["blocked", "blocked", "blocked", "default"]
    await work.aenqueue()
    assert (await app.asnapshot()).depth == 1


async def test_after_the_yield_it_sees_success_or_the_refusal_of_each(app: Fairlead) -> None:
    seen: list[tuple[str, str]] = []

    @app.around_enqueue
    async def watch(enqueuing: Enqueuing) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - swallowed on purpose: it does not help
            seen.append((enqueuing.tenant, type(error).__name__))
        else:
            seen.append((enqueuing.tenant, "accepted"))

    @app.task
    def work() -> None: ...

    await app.aconfigure_queue("default", max_tenant_waiting=1)
    await work.using(tenant="a").aenqueue()
    with pytest.raises(QueueFull):
        await work.using(tenant="a").aenqueue()
    with pytest.raises(QueueFull, match="tenant 'a'"):
        await app.aenqueue_many(work.using(tenant=tenant).call() for tenant in "bac")
    assert seen[:2] == [("a", "accepted"), ("a", "QueueFull")]
    assert sorted(seen[2:]) == [("a", "QueueFull"), ("b", "accepted"), ("c", "accepted")]
    assert (await app.asnapshot()).depth == 3


async def test_what_it_raises_after_the_yield_reaches_the_caller_and_the_task_stays(
    app: Fairlead,
) -> None:
    @app.around_enqueue
    async def late(enqueuing: Enqueuing) -> AsyncIterator[None]:
        yield
        raise ConnectionError("metrics are down")

    @app.task
    def work() -> None: ...

    with pytest.raises(ConnectionError, match="metrics are down"):
        await work.aenqueue()
    with pytest.raises(ConnectionError):
        await app.aenqueue_many([work.call(), work.call()])
    assert (await app.asnapshot()).depth == 3


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"n": 1}, InvalidInput),
        ({1: "n"}, InvalidInput),
        ({"n": "\ud800"}, InvalidInput),
        ({"n": "x" * 20_000}, TooLarge),
    ],
)
async def test_bad_headers_are_refused_and_hurt_nobody_else(
    app: Fairlead, headers: dict[Any, Any], error: type[Exception]
) -> None:
    @app.around_enqueue
    async def stamp(enqueuing: Enqueuing) -> AsyncIterator[None]:
        if enqueuing.tenant == "bad":
            enqueuing.headers.update(headers)
        yield

    @app.task
    def work() -> None: ...

    bad, *good = await asyncio.gather(
        work.using(tenant="bad").aenqueue(),
        *(work.aenqueue() for _ in range(3)),
        return_exceptions=True,
    )
    assert type(bad) is error
    assert not any(isinstance(each, BaseException) for each in good)
    assert (await app.asnapshot()).depth == 3
