"""Middleware around attempts."""

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
    Fairlead,
    InvalidInput,
    Snooze,
    State,
    Task,
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
    assert (
        "test_attempt_middleware.py" in first
    )  # nothing of ours, nor of contextlib, stands before it


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
