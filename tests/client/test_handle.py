"""Handles: state, result and cancel, from async and from sync code."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead import (
    Ambiguous,
    Backoff,
    Context,
    Fairlead,
    InvalidInput,
    InvalidOption,
    NotSerializable,
    Reject,
    ResultGone,
    ResultTimeout,
    State,
    TaskCancelled,
    TaskFailed,
    Unreachable,
)
from fairlead.broker.requests import Alter, Call
from tests.client.stores import Counting


@dataclass
class Point:
    x: int
    when: datetime.date
    tags: frozenset[str]


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    async with Fairlead("memory://") as app:
        yield app


async def test_a_result_comes_back_as_the_type_that_the_task_returns(app: Fairlead) -> None:
    point = Point(1, datetime.date(2030, 1, 2), frozenset({"a"}))
    key = uuid.uuid4()

    @app.task
    async def make() -> Point:
        return point

    @app.task
    def give() -> tuple[uuid.UUID, bytes]:
        return key, b"\x00"

    @app.task
    def plain():  # type: ignore[no-untyped-def]
        return [point]

    @app.task
    def nothing() -> None: ...

    handles = (make.enqueue(), give.enqueue(), plain.enqueue(), nothing.enqueue())
    await app.drain()
    assert await handles[0].aresult() == point
    assert handles[1].result(0) == (key, b"\x00")
    assert await handles[2].aresult() == [{"x": 1, "when": "2030-01-02", "tags": ["a"]}]
    assert handles[3].result(0) is None
    assert await app.handle(handles[0].id).aresult() == {
        "x": 1,
        "when": "2030-01-02",
        "tags": ["a"],
    }


async def test_a_result_that_is_not_what_was_announced_is_told(app: Fairlead) -> None:
    @app.task
    def work() -> int:
        return "text"  # type: ignore[return-value]

    handle = await work.aenqueue()
    await app.drain()
    with pytest.raises(NotSerializable, match="the result"):
        await handle.aresult()


async def test_what_prints_its_parts_is_told_no_more_than_its_repr(app: Fairlead) -> None:
    handle = app.handle("order", tenant="acme")
    assert handle.__rich_repr__() == [("task", ""), ("id", handle.id), ("tenant", "acme")]


async def test_a_result_is_waited_for(app: Fairlead) -> None:
    gate = asyncio.Event()

    @app.task
    async def work(n: int) -> int:
        await gate.wait()
        return n

    handles = [await work.aenqueue(n) for n in range(5)]
    async with app.worker():
        waits = [asyncio.create_task(handle.aresult(30)) for handle in handles]
        with pytest.raises(ResultTimeout, match=r"0\.01 s") as late:
            await handles[0].aresult(timeout=0.01)
        assert (late.value.id, late.value.timeout) == (handles[0].id, 0.01)
        gate.set()
        assert await asyncio.gather(*waits) == list(range(5))


async def test_sync_code_waits_in_its_thread(app: Fairlead) -> None:
    @app.task
    def work() -> str:
        return "done"

    handle = work.enqueue()
    with pytest.raises(ResultTimeout):
        await asyncio.to_thread(handle.result, "10ms")
    assert (await handle.astate(), handle.duplicate) == (State.QUEUED, False)
    async with app.worker():
        assert await asyncio.to_thread(handle.result, 30) == "done"
    assert await asyncio.to_thread(lambda: handle.state) is State.COMPLETED


async def test_a_dead_task_raises_with_its_reason_and_error(app: Fairlead) -> None:
    @app.task(max_retries=0)
    def fails() -> None:
        raise LookupError("nothing there")

    @app.task(max_retries=3, backoff=Backoff(initial=0))
    async def rejects() -> None:
        raise Reject("never")

    one, two = await fails.aenqueue(), await rejects.aenqueue()
    await app.drain()
    with pytest.raises(TaskFailed, match="LookupError: nothing there") as failed:
        await one.aresult()
    assert (failed.value.reason, failed.value.error) == (
        "exhausted",
        "LookupError: nothing there",
    )
    with pytest.raises(TaskFailed) as failed:
        two.result(0)
    assert failed.value.reason == "rejected"
    assert await one.astate() is State.DEAD


async def test_a_waiting_task_is_cancelled_at_once(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle, other = await work.aenqueue(), work.enqueue()
    wait = asyncio.create_task(handle.aresult())
    await asyncio.sleep(0)
    assert await handle.acancel()
    assert await asyncio.to_thread(other.cancel)
    with pytest.raises(TaskCancelled):
        await wait
    with pytest.raises(TaskCancelled):
        other.result(0)
    assert await app.drain() == 0


async def test_a_finished_or_unknown_task_is_not_cancelled(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.aenqueue()
    await app.drain()
    assert not await handle.acancel()
    assert not await app.handle("unknown").acancel()


async def test_a_task_that_is_forgotten_is_gone(app: Fairlead) -> None:
    for handle in (app.handle("unknown"), app.handle("a" * 12 + "7aaa8" + "a" * 15)):
        with pytest.raises(ResultGone, match=r"unknown|a{12}"):
            await handle.aresult()
        with pytest.raises(ResultGone):
            await handle.astate()
        with pytest.raises(ResultGone):
            await asyncio.to_thread(lambda handle=handle: handle.state)  # type: ignore[misc]
        with pytest.raises(ResultGone):
            await handle.ainfo()
        with pytest.raises(ResultGone):
            handle.result(0)


@pytest.mark.parametrize("chosen", ["", "order-17"])
async def test_an_id_finds_its_task_whatever_the_tenant(app: Fairlead, chosen: str) -> None:
    @app.task(max_retries=0)
    def work(ok: bool) -> str:
        if not ok:
            raise ValueError
        return "done"

    said: dict[str, Any] = {"id": chosen} if chosen else {}
    handle = await work.using(tenant="a:b", **said).aenqueue(True)
    found = app.handle(handle.id)
    assert found == handle
    assert (await found.aexplain()).state is State.QUEUED
    assert await found.astate() is State.QUEUED
    assert found.tenant == "a:b"  # learned
    await app.drain()
    assert await app.handle(handle.id).aresult(timeout=5) == "done"
    assert await app.handle(handle.id).adelete()
    dead = await work.using(tenant="acme").aenqueue(False)
    await app.drain()
    assert await app.handle(dead.id).arequeue()
    assert await app.handle(dead.id).acancel()


async def test_a_chosen_id_without_a_tenant_is_the_default_ones(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    await work.using(tenant="acme", id="order-17").aenqueue()
    mine = await work.using(id="order-17").aenqueue()
    assert app.handle("order-17") == mine
    assert (await app.handle("order-17").ainfo()).tenant == "default"


async def test_a_handle_does_not_reach_another_tenants_task(app: Fairlead) -> None:
    @app.task
    def work() -> int:
        return 1

    handle = await work.using(tenant="acme").aenqueue()
    foreign = app.handle(handle.id, tenant="other")
    assert not await foreign.acancel()
    with pytest.raises(ResultGone):
        await foreign.astate()
    await app.drain()
    with pytest.raises(ResultGone):
        await foreign.aresult()
    assert await handle.aresult() == 1


async def test_a_task_put_back_from_the_dead_is_waited_for_again() -> None:
    counting = Counting()
    app = Fairlead(store=counting.store)
    put_back = asyncio.Event()

    @app.task(max_retries=0)
    def work() -> str:
        if not put_back.is_set():
            raise ValueError
        return "good"

    handle = await work.aenqueue()
    wait = asyncio.create_task(handle.aresult(30))
    await counting.begun.wait()

    async def operator() -> None:  # is faster than the one who waits
        if not put_back.is_set():
            order = Alter(id=handle.id, action="requeue")
            await counting.inner.alter(Call("operator", 1), [order])
            put_back.set()

    counting.before_find = operator
    await app.drain()
    await put_back.wait()
    await app.drain()
    assert await wait == "good"


async def test_a_handle_shows_no_content(app: Fairlead) -> None:
    @app.task
    def work(secret: str) -> None: ...

    handle = await work.using(tenant="acme").aenqueue("hunter2")
    assert repr(handle) == f"<Handle {work.name} {handle.id} tenant='acme'>"
    assert repr(app.handle(handle.id)) == f"<Handle {handle.id}>"
    assert handle != handle.id


async def test_a_handle_is_no_argument(app: Fairlead) -> None:
    """Although it is a struct, and those are stored."""

    @app.task
    def work(value: object) -> None: ...

    handle = await work.aenqueue(1)
    for value, where in ((handle, ""), ([handle], r", at \[0\]")):
        with pytest.raises(NotSerializable, match=f"values of type Handle are not stored{where}$"):
            await work.aenqueue(value)


async def test_all_that_is_known_of_a_task_is_told(app: Fairlead) -> None:
    @app.task(name="work", max_retries=0)
    async def work(ctx: Context, secret: str) -> None:
        await ctx.aprogress({"done": 3, "of": 4})
        raise LookupError("nothing there")

    handle = await work.using(tenant="acme", deadline="1h").aenqueue("hunter2")
    after = await work.using(tenant="acme", depends_on=[handle]).aenqueue("hunter2")
    assert (await after.ainfo()).waiting_for == (handle.id,)
    await app.drain()
    info = await handle.ainfo()
    assert await asyncio.to_thread(handle.info) == info
    assert (info.id, info.task, info.queue, info.tenant) == (handle.id, "work", "default", "acme")
    assert (info.state, info.attempts, info.reason) == (State.DEAD, 1, "exhausted")
    assert info.progress == {"done": 3, "of": 4}
    assert info.error is not None
    assert (info.error.type, info.error.message) == ("LookupError", "nothing there")
    assert 'raise LookupError("nothing there")' in info.error.traceback
    assert info.deadline_at is not None
    assert info.finished_at is not None
    assert info.enqueued_at <= info.finished_at < info.deadline_at
    assert (info.priority, info.max_retries, info.worker) == ("normal", 0, "")
    assert "hunter2" not in repr(info)


async def test_arguments_are_told_to_those_who_ask(app: Fairlead) -> None:
    @app.task
    def work(size: str, *, when: datetime.date | None = None) -> None: ...

    sender = work.using(priority="high", max_retries=2)
    small = await sender.aenqueue("small", when=datetime.date(2030, 1, 2))
    large = await sender.aenqueue("x" * 5000)
    gone = await sender.aenqueue("gone")
    await gone.acancel()
    assert (await small.ainfo()).args is None
    info = await small.ainfo(arguments=True)
    assert (info.args, info.kwargs) == (("small",), {"when": "2030-01-02"})
    assert (info.priority, info.max_retries) == ("high", 2)
    page = await app.apage(arguments=True)
    told = {task.id: (task.task, task.args) for task in page.tasks}
    assert told[small.id] == (work.name, ("small",))
    assert told[large.id] == (work.name, ("x" * 5000,))
    if gone.id in told:
        assert told[gone.id] == ("", None)
    assert all(task.args is None for task in (await asyncio.to_thread(app.page)).tasks)
    with pytest.raises(InvalidOption, match="at most 100 with arguments"):
        await app.apage(arguments=True, limit=101)


async def test_the_worker_of_a_running_task_is_told(app: Fairlead) -> None:
    began, end = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await end.wait()

    handle = await work.aenqueue()
    async with app.worker() as serving:
        await began.wait()
        await serving.heartbeater.beat()
        (worker,) = await app.aworkers()
        assert (await handle.ainfo()).worker == worker.incarnation
        end.set()
        await handle.aresult(timeout=5)
    assert (await handle.ainfo()).worker == ""


async def test_the_name_of_a_cancelled_task_goes_with_its_arguments(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.aenqueue()
    await handle.acancel()
    info = await handle.ainfo()
    assert (info.state, info.task, info.progress) == (State.CANCELLED, "", None)


async def test_a_sync_wait_on_the_thread_of_a_loop_is_refused(app: Fairlead) -> None:
    @app.task
    async def child() -> int:
        return 1

    @app.task(max_retries=0)
    async def parent() -> int:
        return child.enqueue().result(timeout=4)  # enqueue is brief, the wait would not be

    handle = await parent.aenqueue()
    with pytest.raises(InvalidInput, match=r"await handle\.aresult\(\)"):
        handle.result(5)
    with pytest.raises(ResultTimeout):
        handle.result(0)  # a look
    assert await app.drain() == 2
    with pytest.raises(TaskFailed, match=r"InvalidInput.*aresult"):
        await handle.aresult(0)


@pytest.mark.parametrize("timeout", ["soon", [1], float("nan"), True])
async def test_a_timeout_that_is_no_duration_is_named(app: Fairlead, timeout: Any) -> None:
    with pytest.raises(InvalidOption, match="timeout="):
        await app.handle("x").aresult(timeout)
    with pytest.raises(InvalidOption, match="timeout="):
        app.handle("x").result(timeout)


async def test_a_timeout_is_a_duration_and_what_is_left_may_be_nothing(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.aenqueue()
    for timeout in ("1ms", datetime.timedelta(milliseconds=1), -0.5):
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout)


# -- a broker that cannot be reached -----------------------------------------------------------


async def test_a_wait_outlasts_a_broker_that_cannot_be_reached() -> None:
    counting = Counting()
    app = Fairlead(store=counting.store)

    @app.task
    def work() -> int:
        return 7

    handle = await work.aenqueue()
    await app.drain()
    counting.lost = {"watch": [Unreachable("no route"), Ambiguous("no reply")]}
    counting.lost["find"] = [Ambiguous("no reply"), Unreachable("no route")]
    assert await handle.aresult(30) == 7
    assert counting.lost == {"watch": [], "find": []}


async def test_a_wait_that_never_reached_the_broker_says_so() -> None:
    counting = Counting()
    app = Fairlead(store=counting.store)
    counting.lost = {"watch": [Unreachable("no route")] * 100_000}
    with pytest.raises(ResultTimeout) as late:
        await app.handle("x").aresult("20ms")
    assert isinstance(late.value.__cause__, Unreachable)


async def test_a_look_at_a_broker_that_cannot_be_reached_fails_at_once() -> None:
    counting = Counting()
    counting.lost = {"find": [Unreachable("no route")]}
    with pytest.raises(Unreachable):
        await Fairlead(store=counting.store).handle("x").aresult(0)
