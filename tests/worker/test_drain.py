"""Draining: all that is due now, what comes of it, and an end."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.errors import FairleadError, InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.signals import Snooze
from fairlead.worker.run.context import Context
from tests.worker.harness import NOW, Rig


async def test_drain_runs_what_handlers_enqueue_and_retries_that_are_due(rig: Rig) -> None:
    @rig.task()
    async def tree(depth: int) -> None:
        if depth:
            await rig.enqueue("tree", depth - 1)
            await rig.enqueue("tree", depth - 1)

    @rig.task()
    async def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    await rig.enqueue("tree", 3)
    id = await rig.enqueue("second_time")

    assert await rig.worker(concurrency=2).drain() == 15 + 2
    assert await rig.state(id) is State.COMPLETED
    assert (await rig.broker.snapshot()).depth == 0


async def test_drain_leaves_what_is_due_later(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    id = await rig.enqueue("nothing", delay=60.0)

    worker = rig.worker()
    assert await worker.drain() == 0
    assert await worker.drain() == 0
    assert await rig.state(id) is State.SCHEDULED


async def test_a_drain_that_is_cancelled_leaves_nothing_running(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")
    worker = rig.worker()
    draining = asyncio.create_task(worker.drain())
    await begun.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining

    record = await rig.find(id)
    assert (record.state, record.attempts, len(worker.inflight)) == (State.QUEUED, 0, 0)


async def test_a_drain_of_many_tasks_costs_few_exchanges(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    for _ in range(1000):
        await rig.enqueue("nothing")
    calls = 0
    exchange = rig.broker.exchange

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return await exchange(*args, **kwargs)

    rig.broker.exchange = counted  # type: ignore[method-assign]

    assert await rig.worker(concurrency=100).drain() == 1000
    assert calls <= 20  # ten at the least; the rest is fetched ahead, or finds nothing


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_may_wait_for_a_task_that_it_has_enqueued(rig: Rig, is_async: bool) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    async def enqueue_and_wait() -> None:
        await rig.enqueue("child")
        await done.wait()

    def in_a_thread() -> None:
        asyncio.run_coroutine_threadsafe(enqueue_and_wait(), loop).result(20)

    @rig.task()
    async def child() -> None:
        done.set()

    rig.task(name="parent")(enqueue_and_wait if is_async else in_a_thread)
    await rig.enqueue("parent")

    async with asyncio.timeout(5):
        assert await rig.worker().drain() == 2


@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999])
async def test_retries_get_their_full_backoff_in_a_drain(slow: Rig, dice: float) -> None:
    @slow.task(policy=RetryPolicy(backoff=Backoff(initial=10.0, jitter="full")))
    async def fail() -> None:
        raise ValueError

    id = await slow.enqueue("fail")
    worker = slow.worker(dice=lambda: dice)

    assert await worker.drain() == 1
    assert (await slow.find(id)).due_at == pytest.approx(NOW + 10.0, abs=1e-6)
    assert worker.processor._runner.dice() == dice  # its own again once the drain is over


@pytest.mark.parametrize("again", ["enqueue", "snooze"])
async def test_a_drain_without_an_end_is_an_error_that_names_the_task(rig: Rig, again: str) -> None:
    runs = 0

    @rig.task()
    async def endless() -> None:
        nonlocal runs
        runs += 1
        if again == "snooze":
            raise Snooze(0)
        await rig.enqueue("endless")

    @rig.task()
    async def once() -> None: ...

    await rig.enqueue("once")
    await rig.enqueue("endless")
    worker = rig.worker()

    with pytest.raises(FairleadError, match=r"50 attempts.*'endless' ran most.*drain\(limit="):
        await worker.drain(limit=50)
    assert runs == 49
    assert len(worker.inflight) == 0
    assert (await rig.broker.snapshot()).depth == 1


async def test_as_many_attempts_as_the_limit_are_no_error(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    for _ in range(20):
        await rig.enqueue("nothing")
    worker = rig.worker()

    assert await worker.drain(limit=20) == 20
    await rig.enqueue("nothing")
    assert await worker.drain(limit=None) == 1


@pytest.mark.parametrize("limit", [-1, 1.5, True, "x", math.inf])
async def test_a_limit_that_is_no_number_of_attempts_is_refused(rig: Rig, limit: Any) -> None:
    with pytest.raises(InvalidOption, match="limit"):
        await rig.worker().drain(limit=limit)
