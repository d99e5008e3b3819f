"""What a worker does when an operator orders it to pause, to go on or to stop."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import pytest

from fairlead.broker import Caller, connect
from fairlead.model.lifecycle import State
from fairlead.worker.process.child import Child
from fairlead.worker.process.ipc import Plan
from fairlead.worker.process.supervisor import Supervisor
from fairlead.worker.worker import Worker
from tests.worker.harness import Rig, until


async def order(rig: Rig, worker: Worker, what: Literal["pause", "resume", "stop"]) -> None:
    """Order it, and let it hear of it with its next heartbeat."""
    caller = Caller(f"operator-{what}-{worker.incarnation}")
    broker, id = rig.broker, worker.incarnation
    assert await caller.call(lambda call: broker.order_worker(call, id, what))
    await worker.heartbeater.beat()  # which tells what came of it, too


async def state(rig: Rig) -> str:
    [record] = await rig.broker.workers()
    return str(record.details["state"])


@pytest.fixture
def ran(rig: Rig) -> list[int]:
    numbers: list[int] = []

    @rig.task()
    async def work(number: int) -> None:
        numbers.append(number)

    return numbers


async def test_a_paused_worker_fetches_nothing_until_it_is_resumed(
    rig: Rig, ran: list[int]
) -> None:
    async with rig.worker() as worker:
        await worker.heartbeater.beat()
        await order(rig, worker, "pause")
        assert await state(rig) == "paused"
        id = await rig.enqueue("work", 1)
        await worker.processor.process()
        assert await rig.state(id) is State.QUEUED
        await order(rig, worker, "resume")
        await rig.finished(id)
        assert await state(rig) == "working"
    assert ran == [1]


@pytest.mark.parametrize("first", ["signal", "order"])
async def test_it_takes_the_end_of_both_a_signal_and_an_order_to_fetch_again(
    rig: Rig, ran: list[int], first: str
) -> None:
    async with rig.worker() as worker:
        await worker.heartbeater.beat()
        worker.processor.be_quiet()
        await order(rig, worker, "pause")
        id = await rig.enqueue("work", 1)
        if first == "signal":
            worker.processor.be_quiet(False)
            left = "paused"
        else:
            await order(rig, worker, "resume")
            left = "quiet"
        await worker.heartbeater.beat()
        await worker.processor.process()
        assert await rig.state(id) is State.QUEUED
        assert await state(rig) == left
        if first == "signal":
            await order(rig, worker, "resume")
        else:
            worker.processor.be_quiet(False)
        await rig.finished(id)


async def test_a_worker_that_is_stopped_finishes_what_runs_and_fetches_no_more(rig: Rig) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    @rig.task()
    async def long() -> None:
        begun.set()
        await go.wait()

    first = await rig.enqueue("long")
    async with rig.worker(concurrency=1, grace=10.0) as worker:
        await begun.wait()
        await worker.heartbeater.beat()
        await order(rig, worker, "stop")
        assert await state(rig) == "stopping"
        second = await rig.enqueue("long")
        go.set()
        await worker.stopped()
        await worker.heartbeater.beat()
        assert await state(rig) == "stopped"
        await order(rig, worker, "resume")  # too late
        assert await rig.state(first) is State.COMPLETED
        assert await rig.state(second) is State.QUEUED


async def test_what_does_not_end_within_the_grace_of_a_stop_goes_back_unburnt(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("long")
    async with rig.worker(grace=0.01) as worker:
        await begun.wait()
        await worker.heartbeater.beat()
        await order(rig, worker, "stop")
        await worker.stopped()
        record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_a_stop_that_is_ordered_while_the_worker_ends_changes_nothing(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def long() -> None:
        begun.set()
        await asyncio.sleep(0.05)

    id = await rig.enqueue("long")
    worker = rig.worker(grace=5.0)
    await worker.__aenter__()
    await begun.wait()
    await worker.heartbeater.beat()
    ending = asyncio.ensure_future(worker.__aexit__(None, None, None))
    await until(lambda: worker.processor.halting)
    await order(rig, worker, "stop")
    await ending
    assert await rig.state(id) is State.COMPLETED


async def test_a_worker_that_was_stopped_may_begin_another_life(rig: Rig, ran: list[int]) -> None:
    worker = rig.worker()
    async with worker:
        await worker.heartbeater.beat()
        await order(rig, worker, "stop")
        await worker.stopped()
    async with worker:
        await rig.finished(await rig.enqueue("work", 1))
    assert ran == [1]


async def test_a_worker_brings_its_order_along_to_a_broker_that_forgot_it(rig: Rig) -> None:
    async with rig.worker() as worker:
        await worker.heartbeater.beat()
        await order(rig, worker, "pause")
        assert worker.describe().order == "pause"


class Sitting:
    """As much of a child as a seat looks at."""

    def __init__(self) -> None:
        self.retiring, self.dismissed = asyncio.Event(), asyncio.Event()
        self.life: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.orders: list[str] = []
        self.alive = True

    def order(self, what: str) -> None:
        self.orders.append(what)
        self.life.set_result(0)
        self.alive = False


async def test_a_child_that_is_stopped_while_it_is_replaced_leaves_no_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, fresh = Sitting(), Sitting()

    async def replaced(child: Sitting, *, asked: bool) -> Sitting:
        child.dismissed.set()  # the order comes while the other one starts
        child.order("stop")
        return fresh

    supervisor = Supervisor(("true",), Plan(app="jobs:app"), connect, count=1)
    monkeypatch.setattr(supervisor, "_replaced", replaced)
    old.retiring.set()
    async with asyncio.timeout(5):
        left: Any = await supervisor._wait_or_replace(cast(Child, old), asyncio.Event())
    assert left is fresh
    assert fresh.orders == ["stop"]
    assert left.dismissed.is_set()
