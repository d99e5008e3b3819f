"""The memory broker's time: unix seconds, at the pace of the monotonic clock, never backwards."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator

import pytest

from fairlead.broker.memory import MemoryBroker, frame
from fairlead.broker.verbs import HEARTBEAT, LEASE, Fetch
from fairlead.model.lifecycle import State
from tests.support.fair import LiveClient
from tests.support.store import NOW, completed, ids, states, submit

HOUR = 3600.0
DAY = 24 * HOUR


class Clock:
    """Stands for the ``time`` module: a wall clock that may be set, and one that may not."""

    def __init__(self) -> None:
        self.wall = NOW
        self.steady = 1000.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def go_on(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def set_by(self, seconds: float) -> None:
        self.wall += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stands_in = Clock()
    monkeypatch.setattr(frame, "time", stands_in)
    return stands_in


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[MemoryBroker]:
    store = MemoryBroker()
    yield store
    assert await store.audit() == []
    await store.close()


@pytest.fixture
def live(broker: MemoryBroker) -> LiveClient:
    return LiveClient(broker)


async def state_of(broker: MemoryBroker, *names: str) -> list[State | None]:
    found = await broker.find(names)
    return [None if one is None else one.state for one in found]


async def now_of(broker: MemoryBroker) -> float:
    return (await broker.hello()).now


# -- set back ---------------------------------------------------------------------------------


async def test_time_begins_with_the_wall_clock(broker: MemoryBroker, clock: Clock) -> None:
    assert await now_of(broker) == pytest.approx(NOW, abs=1e-6)
    clock.go_on(12.5)
    assert await now_of(broker) == pytest.approx(NOW + 12.5, abs=1e-6)


@pytest.mark.parametrize("back", [0.5, 2.0, HOUR, DAY])
async def test_delays_end_in_time_although_the_wall_clock_is_set_back(
    broker: MemoryBroker, live: LiveClient, clock: Clock, back: float
) -> None:
    await live.enqueue(submit("soon", delay=10.0), submit("late", delay=20.0, deadline=15.0))
    clock.go_on(4.0)
    clock.set_by(-back)
    assert await now_of(broker) == pytest.approx(NOW + 4.0, abs=1e-6)

    clock.go_on(5.0)
    assert await live.exchange(5) == []
    clock.go_on(1.5)
    assert ids(await live.exchange(5)) == ["soon"]
    clock.go_on(5.0)
    await broker.promote()
    assert await state_of(broker, "soon", "late") == [State.RUNNING, State.DEAD]
    assert await now_of(broker) == pytest.approx(NOW + 15.5, abs=1e-6)


async def test_leases_end_in_time_although_the_wall_clock_is_set_back(
    broker: MemoryBroker, live: LiveClient, clock: Clock
) -> None:
    await live.enqueue(submit("t"))
    assert ids(await live.exchange(1)) == ["t"]
    assert (await broker.sweep()).guarded
    clock.set_by(-DAY)

    counts = []
    for _ in range(4):
        clock.go_on(LEASE / 3 - 0.5)
        counts.append((await broker.sweep()).count)

    assert counts == [0, 0, 0, 1]
    assert await state_of(broker, "t") == [State.QUEUED]


async def test_retention_and_rates_go_on_although_the_wall_clock_is_set_back(
    broker: MemoryBroker, live: LiveClient, clock: Clock
) -> None:
    await live.enqueue(submit("t"))
    (lease,) = await live.exchange(1)
    clock.set_by(-DAY)
    await live.exchange(0, completed(lease, keep=60.0))
    clock.go_on(59.0)
    assert await state_of(broker, "t") == [State.COMPLETED]
    clock.go_on(2.0)
    assert await state_of(broker, "t") == [None]


async def test_a_wait_ends_in_time_although_the_wall_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shifted:
        """The real time, with a wall clock that can be set."""

        ahead = 0.0
        monotonic = staticmethod(time.monotonic)

        @classmethod
        def time(cls) -> float:
            return time.time() + cls.ahead

    monkeypatch.setattr(frame, "time", Shifted)
    broker = MemoryBroker()
    live = LiveClient(broker)
    await live.enqueue(submit("t", delay=0.1))
    began, used = time.monotonic(), time.process_time()
    monkeypatch.setattr(Shifted, "ahead", -DAY)

    assert await broker.wait(["default"], 5.0) is True

    assert 0.09 <= time.monotonic() - began < 1.0
    assert time.process_time() - used < 0.09  # it slept, rather than looking again and again
    assert ids(await live.exchange(1)) == ["t"]
    await broker.close()


# -- set forward ------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", [2.0, HOUR, DAY])
async def test_a_wall_clock_that_is_set_forward_is_followed(
    broker: MemoryBroker, live: LiveClient, clock: Clock, forward: float
) -> None:
    await live.enqueue(submit("t", delay=forward))
    clock.go_on(1.0)
    clock.set_by(forward)

    assert await now_of(broker) == pytest.approx(NOW + 1.0 + forward, abs=1e-6)
    assert ids(await live.exchange(1)) == ["t"]
    clock.go_on(1.0)
    assert await now_of(broker) == pytest.approx(NOW + 2.0 + forward, abs=1e-6)


async def test_a_clock_that_drifts_is_followed_once_it_is_a_second_ahead(
    broker: MemoryBroker, clock: Clock
) -> None:
    aheads = []
    for _ in range(25):
        clock.go_on(10.0)
        clock.set_by(0.1)
        aheads.append(clock.wall - await now_of(broker))
    assert max(aheads) <= 1.0 + 1e-6
    assert min(aheads) == pytest.approx(0.0, abs=1e-6)


async def test_the_guard_is_up_after_the_clock_was_set_forward(
    broker: MemoryBroker, live: LiveClient, clock: Clock
) -> None:
    await live.enqueue(submit("alive"), submit("dead"))
    assert ids(await live.exchange(1)) == ["alive"]
    other = LiveClient(broker, "other")
    assert ids(await other.exchange(1)) == ["dead"]
    for _ in range(2):  # the guard of the first sweep is over
        await broker.sweep()
        clock.go_on(HEARTBEAT - 1.0)
        await broker.beat("w1")
        await broker.beat("other")
    clock.set_by(DAY)

    swept = await broker.sweep()
    assert (swept.guarded, swept.count) == (True, 0)
    clock.go_on(HEARTBEAT - 1.0)
    await broker.beat("w1")  # of the two, only one is heard of
    swept = await broker.sweep()
    assert (swept.guarded, swept.count) == (True, 0)
    clock.go_on(2.0)

    swept = await broker.sweep()
    assert (swept.guarded, swept.count) == (False, 1)
    assert await state_of(broker, "alive", "dead") == [State.RUNNING, State.QUEUED]


# -- never backwards --------------------------------------------------------------------------


async def test_a_slip_forward_that_is_corrected_at_once_does_not_stop_time(
    broker: MemoryBroker, live: LiveClient, clock: Clock
) -> None:
    clock.set_by(DAY)
    assert await now_of(broker) == pytest.approx(NOW + DAY, abs=1e-6)
    clock.set_by(-DAY)
    await live.enqueue(submit("soon", delay=10.0))

    clock.go_on(9.5)
    assert await live.exchange(1) == []
    clock.go_on(1.0)
    assert ids(await live.exchange(1)) == ["soon"]
    assert await now_of(broker) == pytest.approx(NOW + DAY + 10.5, abs=1e-6)


async def test_time_and_tokens_never_go_backwards(
    broker: MemoryBroker, live: LiveClient, clock: Clock
) -> None:
    dice = random.Random(7)
    moments, tokens = [await now_of(broker)], [0]
    for number in range(500):
        clock.go_on(dice.choice([0.0, 0.001, 1.0]))
        clock.set_by(dice.choice([0.0, -DAY, -1.0, -0.1, 0.1, 0.5, 1.0, 60.0, DAY]))
        await live.enqueue(submit(f"t{number}"))
        fetch = Fetch(queues=("default",), max=1)
        reply = await broker.exchange(live.call(), fetch=fetch)
        moments.append(reply.now)
        tokens.append(reply.leased[0].token)
        await live.exchange(0, completed(reply.leased[0]))

    assert moments == sorted(moments)
    assert tokens == sorted(set(tokens))


async def test_a_test_clock_looks_at_no_other(clock: Clock) -> None:
    broker = MemoryBroker(test_clock=True)
    assert (await broker.sweep(now=5.0)).now == 5.0
    clock.go_on(DAY)
    assert (await broker.sweep()).now == 5.0
    assert await states(broker, "t", now=6.0) == [None]
    assert (await broker.hello()).now == 6.0
    await broker.close()
