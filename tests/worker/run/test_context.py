"""What handlers see and write: ids, progress, XCom, correlation, logging."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from fairlead import Fairlead, Handle, QueueFull
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import Submission
from fairlead.model.argument_packing import pack_arguments, unpack
from fairlead.model.errors import Fenced, InvalidInput, NotSerializable, TooLarge
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, Message
from fairlead.runtime.correlation import correlation, correlation_id
from fairlead.worker.run.context import Context, current_context
from tests.worker.harness import NOW, Rig, until


async def test_a_handler_sees_its_attempt(rig: Rig) -> None:
    @rig.task(timeout=60.0)
    async def look(ctx: Context, n: int) -> list[Any]:
        assert current_context() is ctx
        assert ctx.deadline is not None
        assert not ctx.cancelled
        ctx.raise_if_cancelled()
        assert ctx.token > 1_000_000
        return [ctx.id, ctx.task, ctx.attempt, ctx.generation, ctx.tenant, ctx.queue, n]

    id = await rig.enqueue("look", 7, tenant="acme")

    await rig.worker().drain()
    assert await rig.result(id) == [id, "look", 1, 0, "acme", "default", 7]


async def test_a_handler_is_told_that_its_tenant_has_no_room_for_more_values(rig: Rig) -> None:
    @rig.task(max_retries=0)
    async def push(ctx: Context, first: int, last: int) -> None:
        for n in range(first, last):
            await ctx.xcom.apush(f"key-{n}", b"v" * 65_000)

    fits = await rig.enqueue("push", 0, 1_000, tenant="big")
    await rig.worker().drain()
    more = await rig.enqueue("push", 1_000, 1_100, tenant="big")
    other = await rig.enqueue("push", 0, 1, tenant="small")
    await rig.worker("w2").drain()
    assert [(await rig.find(id)).state for id in (fits, other)] == [State.COMPLETED] * 2
    found = await rig.find(more)
    assert (found.state, found.error and found.error.type) == (State.DEAD, "Refused")
    told = found.error.message if found.error else ""
    assert "no room for the xcom value 'key-10" in told
    assert "67108864 bytes in all; push fewer or smaller ones, with a shorter ttl" in told


@pytest.mark.parametrize("is_async", [True, False])
async def test_progress_can_be_read_while_the_handler_runs(rig: Rig, is_async: bool) -> None:
    go = threading.Event()

    async def on_the_loop(ctx: Context) -> None:
        await ctx.aprogress({"done": 0.5})
        await until(go.is_set)

    def in_a_thread(ctx: Context) -> None:
        ctx.progress({"done": 0.5})
        go.wait(20)

    rig.task(name="work")(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("work")
    async with rig.worker():

        async def there() -> bool:
            return (await rig.find(id)).progress is not None

        await until(there)
        progress = (await rig.find(id)).progress
        go.set()

    assert progress is not None
    assert unpack(progress) == {"done": 0.5}
    assert await rig.state(id) is State.COMPLETED


async def test_tasks_of_a_tenant_leave_values_for_each_other(rig: Rig) -> None:
    @rig.task()
    async def push(ctx: Context) -> None:
        await ctx.xcom.apush("k", [1, 2])
        await ctx.xcom.apush("nothing", None)

    @rig.task()
    def push_in_thread(ctx: Context) -> None:
        ctx.xcom.push("t", "from a thread", ttl="1h")

    @rig.task()
    async def pull(ctx: Context) -> list[Any]:
        keys = ("k", "t", "nothing", "missing")
        return [await ctx.xcom.apull(key, "default") for key in keys]

    @rig.task()
    def pull_in_thread(ctx: Context) -> list[Any]:
        return [ctx.xcom.pull("k"), ctx.xcom.pull("missing"), ctx.xcom.pull("missing", 3)]

    worker = rig.worker()
    await rig.enqueue("push")
    await rig.enqueue("push_in_thread")
    await worker.drain()
    one, two = await rig.enqueue("pull"), await rig.enqueue("pull_in_thread")
    foreign = await rig.enqueue("pull", tenant="b")
    await worker.drain()

    assert await rig.result(one) == [[1, 2], "from a thread", None, "default"]
    assert await rig.result(two) == [[1, 2], None, 3]
    assert await rig.result(foreign) == ["default"] * 4


async def test_a_sync_handler_may_use_the_awaited_forms_on_a_loop_of_its_own(rig: Rig) -> None:
    @rig.task()
    def runs_a_loop(ctx: Context) -> Any:
        async def inner() -> Any:
            await ctx.aprogress(1)
            await ctx.xcom.apush("key", "value")
            return await ctx.xcom.apull("key")

        return asyncio.run(inner())

    write = rig.broker.write

    async def slow_write(*args: Any) -> Any:
        await asyncio.sleep(0.001)  # so that the writes of several handlers meet in one batch
        return await write(*args)

    rig.broker.write = slow_write  # type: ignore[assignment,method-assign]
    ids = [await rig.enqueue("runs_a_loop") for _ in range(10)]

    async with asyncio.timeout(10):
        assert await rig.worker().drain() == 10
    assert [await rig.result(id) for id in ids] == ["value"] * 10


async def test_the_blocking_forms_are_refused_on_the_loop_and_name_the_right_one(
    rig: Rig,
) -> None:
    errors: list[str] = []

    @rig.task()
    async def wrong(ctx: Context) -> None:
        for call in (
            lambda: ctx.progress(1),
            lambda: ctx.xcom.push("k", 1),
            lambda: ctx.xcom.pull("k"),
        ):
            with pytest.raises(InvalidInput) as caught:
                call()
            errors.append(str(caught.value))

    id = await rig.enqueue("wrong")

    await rig.worker().drain()
    assert await rig.state(id) is State.COMPLETED
    for error, name in zip(errors, ("aprogress", "xcom.apush", "xcom.apull"), strict=True):
        assert f"await ctx.{name}()" in error


@pytest.mark.parametrize("is_async", [True, False])
async def test_values_that_cannot_be_stored_are_refused(rig: Rig, is_async: bool) -> None:
    async def on_the_loop(ctx: Context) -> None:
        with pytest.raises(NotSerializable):
            await ctx.aprogress(object())
        with pytest.raises(TooLarge, match="return it as the result"):
            await ctx.xcom.apush("k", b"x" * 100_000)
        with pytest.raises(InvalidInput):
            await ctx.xcom.apush("", 1)

    def in_a_thread(ctx: Context) -> None:
        with pytest.raises(NotSerializable):
            ctx.progress(object())
        with pytest.raises(TooLarge):
            ctx.xcom.push("k", b"x" * 100_000)

    rig.task(name="work")(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("work")

    await rig.worker().drain()
    assert await rig.state(id) is State.COMPLETED


async def test_a_write_under_a_lease_that_is_over_raises_fenced(slow: Rig) -> None:
    go = asyncio.Event()
    fenced = []

    @slow.task()
    async def long(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        await go.wait()
        with pytest.raises(Fenced):
            await ctx.aprogress(1)
        with pytest.raises(Fenced):
            await ctx.xcom.apush("k", 1)
        fenced.append(ctx.id)

    id = await slow.enqueue("long")
    async with slow.worker(lease=5.0, concurrency=1) as worker:
        await until(lambda: len(worker.inflight) == 1)
        for seconds in (0, 9, 18):
            await slow.broker.sweep(now=NOW + seconds)
        go.set()
        await until(lambda: bool(fenced))
        await slow.finished(id)
        assert (await slow.broker.pull("a", ["k"])) == [None]


async def test_what_outlives_its_attempt_can_write_no_more(rig: Rig) -> None:
    contexts: list[Context] = []

    @rig.task()
    async def leaves(ctx: Context) -> None:
        contexts.append(ctx)

    await rig.enqueue("leaves")
    await rig.worker().drain()

    (ctx,) = contexts
    assert ctx.cancelled
    with pytest.raises(Fenced):
        await ctx.aprogress(1)
    with pytest.raises(Fenced):
        await asyncio.to_thread(ctx.progress, 1)
    with pytest.raises(Fenced):
        await asyncio.to_thread(ctx.xcom.pull, "k")


async def test_writes_of_one_moment_share_a_call(rig: Rig) -> None:
    calls = 0
    write = rig.broker.write

    async def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return await write(*args)

    rig.broker.write = counted  # type: ignore[assignment,method-assign]

    @rig.task()
    async def tells(ctx: Context) -> None:
        await ctx.aprogress(1)

    for _ in range(50):
        await rig.enqueue("tells")

    assert await rig.worker(concurrency=50).drain() == 50
    assert calls == 1


# -- children ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_children_are_enqueued_under_the_lease_of_their_parent(is_async: bool) -> None:
    app = Fairlead("memory://")
    made: list[Handle[str]] = []

    @app.task
    async def child(ctx: Context, text: str) -> str:
        return f"{text} {ctx.correlation_id}"

    async def on_the_loop(ctx: Context) -> None:
        made.append(await ctx.aenqueue(child.call("one")))
        first = child.call("two")
        made.extend(await ctx.aenqueue_many([child.using(depends_on=[first]).call("three"), first]))

    def in_a_thread(ctx: Context) -> None:
        made.append(ctx.enqueue(child.call("one")))
        first = child.call("two")
        made.extend(ctx.enqueue_many([child.using(depends_on=[first]).call("three"), first]))

    parent = app.task(name="parent")(on_the_loop if is_async else in_a_thread)
    with correlation("request"):
        handle = await parent.aenqueue()
    await app.drain()
    await handle.aresult(0)
    assert [await each.aresult(0) for each in made] == [
        "one request",
        "three request",
        "two request",
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_children_of_an_attempt_that_lost_its_lease_are_refused(is_async: bool) -> None:
    store = MemoryBroker(test_clock=True)
    await store.promote(now=NOW)
    app = Fairlead(store=store)
    began, go = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    @app.task
    def child() -> None: ...

    async def on_the_loop(ctx: Context) -> None:
        if ctx.attempt == 1:
            began.set()
            await until(go.is_set)
            for call in (
                lambda: ctx.aenqueue(child.call()),
                lambda: ctx.aenqueue_many([child.call(), child.call()]),
            ):
                try:
                    await call()
                except Fenced as error:
                    errors.append(error)

    def in_a_thread(ctx: Context) -> None:
        if ctx.attempt == 1:
            began.set()
            go.wait(20)
            for call in (
                lambda: ctx.enqueue(child.call()),
                lambda: ctx.enqueue_many([child.call(), child.call()]),
            ):
                try:
                    call()
                except Fenced as error:
                    errors.append(error)

    parent = app.task(name="parent")(on_the_loop if is_async else in_a_thread)
    handle = await parent.aenqueue()
    async with app._worker(lease=5.0, concurrency=1):
        await until(began.is_set)
        for seconds in (0, 9, 18):
            await store.sweep(now=NOW + seconds)
        go.set()
        await until(lambda: len(errors) == 2)
        await handle.aresult(10)
    assert (await app.asnapshot()).depth == 0
    assert await store.audit() == []


async def test_children_cannot_be_enqueued_once_the_attempt_is_over() -> None:
    app = Fairlead("memory://")
    contexts: list[Context] = []

    @app.task
    async def leaves(ctx: Context) -> None:
        contexts.append(ctx)

    await leaves.aenqueue()
    await app.drain()
    (ctx,) = contexts
    with pytest.raises(Fenced):
        await ctx.aenqueue(leaves.call())
    with pytest.raises(Fenced):
        await asyncio.to_thread(ctx.enqueue, leaves.call())
    with pytest.raises(Fenced):
        await ctx.aenqueue_many([leaves.call()])
    assert (await app.asnapshot()).depth == 0


async def test_fenced_and_plain_submissions_share_a_trip() -> None:
    store = MemoryBroker()
    app = Fairlead(store=store)
    sizes: list[int] = []
    enqueue = store.enqueue

    async def counted(call: Any, submissions: Any) -> Any:
        sizes.append(len(submissions))
        return await enqueue(call, submissions)

    @app.task
    async def child() -> None: ...

    @app.task
    async def parent(ctx: Context) -> None:
        store.enqueue = counted  # type: ignore[assignment,method-assign]
        await asyncio.gather(
            *(ctx.aenqueue(child.call()) for _ in range(5)), *(child.aenqueue() for _ in range(5))
        )

    await parent.aenqueue()
    assert await app.drain() == 11
    assert sizes == [10]


async def test_wrong_children_are_named(rig: Rig) -> None:
    app, other = Fairlead("memory://"), Fairlead("memory://")
    errors: list[str] = []
    foreign = other.task(name="foreign")(lambda: None)

    @app.task
    async def parent(ctx: Context) -> None:
        for wrong in (parent, foreign.call()):
            with pytest.raises(InvalidInput) as caught:
                await ctx.aenqueue(wrong)  # type: ignore[arg-type]
            errors.append(str(caught.value))
        with pytest.raises(InvalidInput) as caught:
            await ctx.aenqueue_many([1])  # type: ignore[arg-type]
        errors.append(str(caught.value))
        for blocking in (ctx.enqueue, ctx.enqueue_many):
            with pytest.raises(InvalidInput, match=r"await ctx\.aenqueue"):
                blocking([])  # type: ignore[arg-type]
        await app.aconfigure_queue("full", max_waiting=0)
        with pytest.raises(QueueFull):
            await ctx.aenqueue(parent.using(queue="full").call())

    handle = await parent.aenqueue()
    await app.drain()
    await handle.aresult(0)
    assert "use task.call(...)" in errors[0]
    assert "'foreign'" in errors[1]
    assert "item 0 is int" in errors[2]

    @rig.task()
    async def alone(ctx: Context) -> None:
        with pytest.raises(InvalidInput, match="without an app"):
            await ctx.aenqueue(parent.call())

    id = await rig.enqueue("alone")
    await rig.worker().drain()
    assert await rig.state(id) is State.COMPLETED


# -- correlation -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_correlation_id_is_inherited(rig: Rig, is_async: bool) -> None:
    seen: list[tuple[str | None, str]] = []

    def in_a_thread(ctx: Context) -> None:
        seen.append((correlation_id.get(), ctx.correlation_id))

    async def on_the_loop(ctx: Context) -> None:
        seen.append((correlation_id.get(), ctx.correlation_id))

    rig.task(name="note")(on_the_loop if is_async else in_a_thread)
    await rig.enqueue("note", correlation="order-7")
    alone = await rig.enqueue("note")

    with correlation("not the worker's"):
        await rig.worker(concurrency=1).drain()
        assert correlation_id.get() == "not the worker's"
    assert seen == [("order-7", "order-7"), (alone, alone)]
    assert correlation_id.get() is None


async def test_a_trace_that_cannot_be_read_does_not_fail_the_task(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    body = Body(task="nothing", arguments=pack_arguments((), {})).encode()
    message = Message(id="odd", queue="default", tenant="a", body=body, trace=b"\xc1")
    await rig.submit(Submission(message=message))

    assert await rig.worker().drain() == 1
    assert await rig.state("odd") is State.COMPLETED


# -- logging -----------------------------------------------------------------------------------


async def test_lines_of_a_handler_name_the_task_and_keep_their_own_fields(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.task()
    async def talks(ctx: Context, secret: str) -> None:
        ctx.log.warning("careful", extra={"step": 3})

    id = await rig.enqueue("talks", "hunter2", tenant="acme")
    with caplog.at_level(logging.WARNING):
        await rig.worker().drain()

    (line,) = [line for line in caplog.records if line.name == "fairlead.task"]
    fields = vars(line)
    assert (fields["task_id"], fields["task"], fields["step"]) == (id, "talks", 3)
    assert (fields["attempt"], fields["tenant"]) == (1, "acme")


async def test_the_worker_logs_failures_without_arguments_and_success_not_at_all(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.task(max_retries=1)
    async def fail(secret: str) -> None:
        raise ValueError(f"cannot use {secret}")

    @rig.task()
    async def succeed(secret: str) -> str:
        return secret

    id = await rig.enqueue("fail", "hunter2")
    await rig.enqueue("succeed", "hunter2")
    with caplog.at_level(logging.DEBUG, "fairlead"):
        await rig.worker().drain()

    lines = [line for line in caplog.records if line.name.startswith("fairlead")]
    assert [line.message for line in lines] == [
        f"attempt failed: fail {id}, ValueError",
        f"task dead: fail {id}, ValueError",
    ]
    assert [vars(line)["task_id"] for line in lines] == [id, id]
    assert vars(lines[1])["reason"] == "exhausted"
    assert not any("hunter2" in str(vars(line)) for line in lines)
