"""What the memory broker does with clocks that servers leave to their callers."""

from __future__ import annotations

import time

import pytest

from fairlead.broker.clock import Clock
from fairlead.broker.memory import MemoryBroker
from tests.support.clock import SetClock
from tests.support.fair import LiveClient
from tests.support.store import NOW, ids, states, submit

DAY = 86_400.0


@pytest.mark.parametrize("back", [6.0, DAY])
async def test_what_passed_since_the_last_call_is_not_lost_when_the_clock_is_set_back(
    back: float,
) -> None:
    clock = SetClock()
    broker = MemoryBroker(clock=clock)
    live = LiveClient(broker)
    await live.enqueue(submit("soon", delay=4.0))
    clock.go_on(5.0)
    clock.set_by(-back)

    assert ids(await live.exchange(1)) == ["soon"]
    assert (await broker.hello()).now == pytest.approx(NOW + 5.0, abs=0.5)
    await broker.close()


async def test_a_wait_ends_in_time_although_the_wall_clock_is_set_back() -> None:
    class Shifted(Clock):
        """The real time, with a wall clock that can be set."""

        ahead = 0.0

        def wall(self) -> float:
            return super().wall() + self.ahead

    clock = Shifted()
    broker = MemoryBroker(clock=clock)
    live = LiveClient(broker)
    await live.enqueue(submit("t", delay=0.1))
    began, used = time.monotonic(), time.process_time()
    clock.ahead = -DAY

    assert await broker.wait(["default"], 5.0) is True

    assert 0.09 <= time.monotonic() - began < 4.0
    assert time.process_time() - used < 0.09  # it slept, rather than looking again and again
    assert ids(await live.exchange(1)) == ["t"]
    await broker.close()


async def test_a_test_clock_looks_at_no_other() -> None:
    clock = SetClock()
    broker = MemoryBroker(test_clock=True, clock=clock)
    assert (await broker.sweep(now=5.0)).now == 5.0
    clock.go_on(DAY)
    assert (await broker.sweep()).now == 5.0
    assert await states(broker, "t", now=6.0) == [None]
    assert (await broker.hello()).now == 6.0
    await broker.close()


def test_clocks_of_this_machine_go_on() -> None:
    clock = Clock()
    wall, steady = clock.wall(), clock.steady()
    assert abs(wall - time.time()) < 1.0
    assert clock.steady() >= steady
