"""When exchanges wait for company, and when they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead.model.lifecycle import State
from fairlead.worker.coalescer import FEW, SPACING, Coalescer
from fairlead.worker.worker import Worker
from tests.worker.harness import Rig, until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stream(clock: Clock, *carried: int, every: float = SPACING, more: bool = False) -> Coalescer:
    """A coalescer behind exchanges that carried so many outcomes each, answered at once."""
    coalescer = Coalescer(clock=clock)
    for number, count in enumerate(carried):
        clock.now += every if number else 1.0
        coalescer.sent(count)
        coalescer.answered(more=more)
    return coalescer


def test_exchanges_of_a_stream_are_spaced(clock: Clock) -> None:
    coalescer = stream(clock, 1, 2, 1, 1, 1)
    assert coalescer.pause(1) == pytest.approx(SPACING)
    clock.now += 0.001
    assert coalescer.pause(2) == pytest.approx(SPACING - 0.001)
    clock.now += SPACING - 0.001
    assert coalescer.pause(2) == 0.0


def test_a_few_outcomes_wait_for_no_others(clock: Clock) -> None:
    coalescer = stream(clock, 2, 2, 2, 2, 2)
    assert coalescer.pause(FEW - 1) > 0.0
    assert coalescer.pause(FEW) == 0.0


def test_what_carries_no_outcome_does_not_wait(clock: Clock) -> None:
    assert stream(clock, 2, 2, 2, 2, 2).pause(0) == 0.0


def test_nothing_waits_that_follows_a_rest(clock: Clock) -> None:
    coalescer = stream(clock, *[2] * 20)
    assert coalescer.pause(1) > 0.0
    clock.now += 0.0051
    for count in (0, 2, 3):
        coalescer.sent(count)
        coalescer.answered(more=False)
        assert coalescer.pause(1) == 0.0
        clock.now += 0.003


def test_one_outcome_at_a_time_is_no_stream(clock: Clock) -> None:
    """A caller that waits for each result, or a chain of tasks."""
    assert stream(clock, *[1, 0] * 50, every=0.001).pause(1) == 0.0
    assert stream(clock, 2, *[1] * 50, every=0.001).pause(1) == 0.0  # it was one some time ago


def test_nothing_waits_while_tasks_do(clock: Clock) -> None:
    coalescer = stream(clock, *[100] * 20, more=True)
    assert [coalescer.pause(count) for count in range(FEW + 1)] == [0.0] * (FEW + 1)


def test_an_exchange_that_is_not_answered_is_followed_at_once(clock: Clock) -> None:
    coalescer = stream(clock, 2, 2, 2, 2, 2)
    coalescer.sent(2)
    assert coalescer.pause(1) == 0.0


def test_a_hurry_lasts_until_the_next_exchange(clock: Clock) -> None:
    coalescer = stream(clock, 2, 2, 2, 2, 2)
    coalescer.hurry()
    assert coalescer.pause(1) == 0.0
    coalescer.sent(1)
    coalescer.hurry()  # while it is under way: what that is about goes with the next
    coalescer.answered(more=False)
    assert coalescer.pause(1) == 0.0
    coalescer.sent(1)
    coalescer.answered(more=False)
    assert coalescer.pause(1) > 0.0


# -- in a worker -------------------------------------------------------------------------------


async def turns() -> None:
    """Let everybody else have its turn who does not wait for a timer."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def streaming(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, count: int
) -> AsyncIterator[tuple[Worker, list[str]]]:
    """A worker whose last exchange carried two outcomes and brought tasks that have run since."""
    for name, seconds in {"SPACING": 60.0, "_REST": 60.0, "_AGE": 0.0, "_MEMORY": 60.0}.items():
        monkeypatch.setattr(f"fairlead.worker.coalescer.{name}", seconds)
    go, ran = asyncio.Event(), list[int]()

    @rig.task()
    async def slow() -> None:
        await go.wait()

    @rig.task()
    async def quick(number: int) -> None:
        ran.append(number)

    async with rig.worker(concurrency=20) as worker:
        for _ in range(2):
            await rig.enqueue("slow")
        await until(lambda: len(worker.inflight) == 2)
        await turns()  # it waits for work
        go.set()  # both end in the turn of the loop in which these come
        ids = [await rig.enqueue("quick", number) for number in range(count)]
        await until(lambda: len(ran) == count)
        yield worker, ids


async def completed(rig: Rig, ids: list[str]) -> bool:
    return {await rig.state(id) for id in ids} == {State.COMPLETED}


async def test_outcomes_of_a_stream_wait_for_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with streaming(rig, monkeypatch, FEW - 1) as (_worker, ids):
        await turns()
        assert {await rig.state(id) for id in ids} == {State.RUNNING}
    assert await completed(rig, ids)  # the worker did not stop without them


async def test_enough_outcomes_go_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with streaming(rig, monkeypatch, FEW) as (_worker, ids):
        await until(lambda: completed(rig, ids))


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda worker: worker.processor.be_quiet(), id="rest"),
        pytest.param(lambda worker: worker.processor.take_over([]), id="take over"),
    ],
)
async def test_what_is_no_outcome_ends_the_pause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, act: Callable[[Worker], None]
) -> None:
    async with streaming(rig, monkeypatch, 1) as (worker, ids):
        await turns()
        assert not await completed(rig, ids)
        act(worker)
        await until(lambda: completed(rig, ids))
