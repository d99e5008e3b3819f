"""A breaker of a task: while it is open, tasks wait without using up attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead import Backoff, Breaker, Context, Fairlead, InvalidOption, Reject, Snooze, State
from fairlead.broker.memory import MemoryBroker

NOW = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def state(breaker: Breaker) -> str:
    return breaker.state


@pytest.fixture
async def store() -> AsyncIterator[MemoryBroker]:
    store = MemoryBroker(test_clock=True)
    await store.promote(now=NOW)
    yield store
    assert await store.audit() == []


async def test_tasks_wait_while_it_is_open_and_run_again_after_a_probe(store: MemoryBroker) -> None:
    app, clock = Fairlead(store=store), Clock()
    breaker = Breaker(failures=2, cooldown=30, clock=clock)
    down = True
    runs: list[int] = []

    @app.task(breaker=breaker, max_retries=1, backoff=Backoff(initial=0))
    async def fetch(ctx: Context) -> int:
        runs.append(ctx.attempt)
        if down:
            raise ConnectionError
        return ctx.attempt

    handles = [await fetch.aenqueue() for _ in range(4)]
    worker = app._worker(concurrency=1, dice=lambda: 0.0)
    await worker.drain()
    assert len(runs) == 2
    assert state(breaker) == "open"
    states = [await handle.astate() for handle in handles]
    assert states.count(State.SCHEDULED) + states.count(State.DEAD) == 4
    waiting = [h for h, s in zip(handles, states, strict=True) if s is State.SCHEDULED]
    infos = [await handle.ainfo() for handle in waiting]
    assert waiting
    assert all(info.due_at is not None and 30 <= info.due_at - NOW <= 33 for info in infos)
    attempts = [info.attempts for info in infos]
    down = False
    clock.now += 31
    for later in (34, 40, 50):
        await store.promote(now=NOW + later)
        await worker.drain()
    assert state(breaker) == "closed"
    assert [await handle.astate() for handle in waiting] == [State.COMPLETED] * len(waiting)
    # Parking used up nothing: each ran in the attempt that was next before it was parked.
    assert [await handle.aresult(0) for handle in waiting] == [n + 1 for n in attempts]


@pytest.mark.parametrize("is_async", [True, False])
async def test_only_errors_of_the_service_count(is_async: bool) -> None:
    app = Fairlead("memory://")
    breaker = Breaker(failures=1)

    def body(kind: str) -> None:
        if kind == "reject":
            raise Reject("bad input")
        if kind == "snooze":
            raise Snooze(3600)
        if kind == "give up":
            raise FileNotFoundError
        if kind == "fail":
            raise ConnectionError

    async def on_the_loop(kind: str) -> None:
        body(kind)

    def in_a_thread(kind: str) -> None:
        body(kind)

    work = app.task(name="work", breaker=breaker, give_up_on=OSError, retry_on=ConnectionError)(
        on_the_loop if is_async else in_a_thread
    )
    for kind in ("reject", "snooze", "give up", "none"):
        await work.aenqueue(kind)
    await app.drain()
    assert state(breaker) == "closed"
    await work.aenqueue("fail")
    await app.drain()
    assert state(breaker) == "open"


async def test_tasks_share_it_and_a_place_that_came_to_nothing_is_free_again() -> None:
    app, clock = Fairlead("memory://"), Clock()
    breaker = Breaker(failures=1, cooldown=5, clock=clock)
    began = asyncio.Event()

    @app.task(breaker=breaker, max_retries=0)
    def fails() -> None:
        raise ConnectionError

    @app.task(breaker=breaker)
    async def hangs() -> None:
        began.set()
        await asyncio.sleep(60)

    @app.task
    def other() -> str:
        return "ran"

    await fails.aenqueue()
    await app.drain()
    parked, free = await hangs.aenqueue(), await other.aenqueue()
    await app.drain()
    assert await free.aresult(0) == "ran"
    assert await parked.astate() is State.SCHEDULED
    await parked.acancel()
    clock.now += 5
    async with app.worker():
        probe = await hangs.aenqueue()
        await began.wait()
        assert breaker.admit() > 0  # its place is taken
        await probe.acancel()
        with pytest.raises(Exception, match="was cancelled"):
            await probe.aresult(10)
    assert state(breaker) == "half_open"
    assert breaker.admit() == 0.0


def test_only_a_breaker_is_one() -> None:
    with pytest.raises(InvalidOption, match="breaker=5"):
        Fairlead("memory://").task(breaker=5)(lambda: None)  # type: ignore[call-overload]
