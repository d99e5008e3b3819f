"""Handles: state, result and cancel, from async and from sync code."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from fairlead import (
    Backoff,
    Fairlead,
    NotSerializable,
    Reject,
    ResultGone,
    ResultTimeout,
    State,
    TaskCancelled,
    TaskFailed,
)
from fairlead.broker.verbs import Alter, Call
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
    assert handles[1].result() == (key, b"\x00")
    assert await handles[2].aresult() == [{"x": 1, "when": "2030-01-02", "tags": ["a"]}]
    assert handles[3].result() is None
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
        handle.result(timeout=0.01)
    assert (handle.state, handle.duplicate) == (State.QUEUED, False)
    async with app.worker():
        assert await asyncio.to_thread(handle.result, 30) == "done"
    assert handle.state is State.COMPLETED


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
        two.result()
    assert failed.value.reason == "rejected"
    assert await one.astate() is State.DEAD


async def test_a_waiting_task_is_cancelled_at_once(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle, other = await work.aenqueue(), work.enqueue()
    wait = asyncio.create_task(handle.aresult())
    await asyncio.sleep(0)
    assert await handle.acancel()
    assert other.cancel()
    with pytest.raises(TaskCancelled):
        await wait
    with pytest.raises(TaskCancelled):
        other.result()
    assert await app.drain() == 0


async def test_a_finished_or_unknown_task_is_not_cancelled(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.aenqueue()
    await app.drain()
    assert not await handle.acancel()
    assert not app.handle("unknown").cancel()


async def test_a_task_that_is_forgotten_is_gone(app: Fairlead) -> None:
    for handle in (app.handle("unknown"), app.handle("a" * 12 + "7aaa8" + "a" * 15)):
        with pytest.raises(ResultGone, match=r"unknown|a{12}"):
            await handle.aresult()
        with pytest.raises(ResultGone):
            await handle.astate()
        with pytest.raises(ResultGone):
            _ = handle.state
        with pytest.raises(ResultGone):
            handle.result()


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
    assert repr(handle) == f"<Handle {handle.id} tenant='acme'>"
    assert handle != handle.id
