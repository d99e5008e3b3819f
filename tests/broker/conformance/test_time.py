"""Time follows a clock that may be set: it never goes back, and ends nothing before its time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import HEARTBEAT, LEASE, Fetch, LeaseRef, Write
from fairlead.model.lifecycle import State
from fairlead.model.options import Unique
from tests.support.clock import SetClock
from tests.support.fair import WITH_REAL_CLOCK, LiveClient
from tests.support.store import NOW, completed, failed, ids, submit

HOUR = 3600.0
DAY = 24 * HOUR
NEAR = 1e-3


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(params=WITH_REAL_CLOCK)
def make(request: pytest.FixtureRequest) -> Callable[..., Store]:
    return WITH_REAL_CLOCK[request.param]


@pytest.fixture
async def broker(make: Callable[..., Store], clock: SetClock) -> AsyncIterator[Store]:
    store = make(clock=clock)
    yield store
    assert await store.audit() == []
    await store.close()


@pytest.fixture
def live(broker: Store) -> LiveClient:
    return LiveClient(broker)


async def state_of(broker: Store, *names: str) -> list[State | None]:
    return [None if one is None else one.state for one in await broker.find(names)]


async def now_of(broker: Store) -> float:
    return (await broker.sweep()).now


# -- set back ---------------------------------------------------------------------------------


async def test_time_is_that_of_the_clock(broker: Store, clock: SetClock) -> None:
    assert await now_of(broker) == pytest.approx(NOW, abs=NEAR)
    clock.go_on(12.5)
    assert await now_of(broker) == pytest.approx(NOW + 12.5, abs=NEAR)


async def test_a_clock_that_was_set_back_is_waited_for_at_nine_tenths_of_its_pace(
    broker: Store, clock: SetClock
) -> None:
    await now_of(broker)
    clock.set_by(-60.0)
    assert await now_of(broker) == pytest.approx(NOW, abs=NEAR)
    assert (await broker.hello()).ahead == pytest.approx(60.0, abs=NEAR)

    clock.go_on(10.0)
    assert await now_of(broker) == pytest.approx(NOW + 9.0, abs=NEAR)
    for _ in range(58):
        clock.go_on(10.0)
        await now_of(broker)
    assert (await broker.hello()).ahead == pytest.approx(1.0, abs=NEAR)
    for _ in range(2):
        clock.go_on(10.0)
        await now_of(broker)
    assert (await broker.hello()).ahead == 0.0
    assert await now_of(broker) == pytest.approx(clock.now, abs=NEAR)


async def test_delays_deadlines_and_leases_end_although_the_clock_was_set_back(
    broker: Store, live: LiveClient, clock: SetClock
) -> None:
    await live.enqueue(submit("soon", delay=10.0), submit("late", delay=20.0, deadline=15.0))
    clock.go_on(4.0)
    assert (await broker.sweep()).guarded
    clock.set_by(-DAY)
    await now_of(broker)

    clock.go_on(6.0)
    assert await live.exchange(5) == []
    clock.go_on(1.0)
    assert ids(await live.exchange(5)) == ["soon"]
    clock.go_on(6.0)
    await broker.promote()
    assert await state_of(broker, "late") == [State.DEAD]
    counts = []
    for _ in range(4):
        clock.go_on(LEASE / 3 - 0.5)
        counts.append((await broker.sweep()).count)
    assert counts == [0, 0, 1, 0]


# -- set forward ------------------------------------------------------------------------------


async def test_a_clock_that_leaps_up_to_20_seconds_is_followed(
    broker: Store, clock: SetClock
) -> None:
    await now_of(broker)
    clock.go_on(1.0)
    clock.set_by(18.0)
    assert await now_of(broker) == pytest.approx(NOW + 19.0, abs=NEAR)


@pytest.mark.parametrize("forward", [60.0, HOUR, 8 * DAY])
async def test_a_leap_of_the_clock_ends_no_retention_no_deadline_no_window_and_no_lease(
    broker: Store, live: LiveClient, clock: SetClock, forward: float
) -> None:
    window = Unique(key="k", until="window", window=30.0)
    await live.enqueue(submit("done"), submit("dead"))
    done, dead = await live.exchange(2)
    write = Write(
        lease=LeaseRef(done.message.id, live.incarnation, done.token),
        kind="xcom",
        key="x",
        value=b"1",
        ttl=30.0,
    )
    await broker.write(live.call(), [write])
    await live.exchange(0, completed(done, keep=30.0))
    await live.enqueue(submit("leased"), submit("waits", deadline=30.0, unique=window))
    assert ids(await live.exchange(1)) == ["leased"]
    clock.go_on(1.0)
    clock.set_by(forward)

    for _ in range(3):  # callers that were there all along
        for verb in (broker.promote, broker.tidy, broker.sweep, broker.deliver):
            assert (await verb()).now < NOW + 10.0
        clock.go_on(1.0)
        assert await state_of(broker, "done", "leased", "waits", "dead") == [
            *(State.COMPLETED, State.RUNNING, State.QUEUED, State.RUNNING)
        ]
    assert await broker.pull("a", ["x"]) == [b"1"]
    (receipt,) = await broker.enqueue(live.call(), [submit("again", unique=window)])
    assert receipt.code == "duplicate"
    assert await live.exchange(0, failed(dead)) == []
    assert -forward <= (await broker.hello()).ahead < 5.0 - forward


async def test_a_clock_that_leapt_is_caught_up_with_at_eleven_tenths_of_its_pace(
    broker: Store, clock: SetClock
) -> None:
    await now_of(broker)
    clock.set_by(120.0)
    began = now = await now_of(broker)
    for _ in range(6):
        clock.go_on(10.0)
        now = await now_of(broker)
    assert now - began == pytest.approx(66.0, abs=NEAR)
    for _ in range(120):
        clock.go_on(10.0)
        await now_of(broker)
    assert (await broker.hello()).ahead == 0.0
    assert await now_of(broker) == pytest.approx(clock.now, abs=NEAR)


async def test_a_leap_that_is_corrected_leaves_next_to_nothing_behind(
    broker: Store, clock: SetClock
) -> None:
    await now_of(broker)
    clock.set_by(DAY)
    for _ in range(6):
        await now_of(broker)
        clock.go_on(10.0)
    clock.set_by(-DAY)
    assert await now_of(broker) == pytest.approx(clock.now, abs=10.0)
    for _ in range(10):
        clock.go_on(10.0)
        await now_of(broker)
    assert (await broker.hello()).ahead == 0.0


# -- nobody called ----------------------------------------------------------------------------


@pytest.mark.parametrize("silence", [60.0, HOUR, 3 * DAY])
async def test_time_goes_on_while_nobody_calls(
    broker: Store, live: LiveClient, clock: SetClock, silence: float
) -> None:
    await live.enqueue(submit("late", deadline=30.0))
    clock.go_on(silence)
    assert (await broker.hello()).now == pytest.approx(NOW + silence, abs=NEAR)
    assert await now_of(broker) == pytest.approx(NOW + silence, abs=NEAR)
    assert await live.exchange(1) == []
    assert await state_of(broker, "late") == [State.DEAD]


async def test_a_leap_while_nobody_called_is_told_from_the_silence(
    broker: Store, clock: SetClock
) -> None:
    await now_of(broker)
    clock.go_on(HOUR)
    clock.set_by(8 * DAY)
    assert await now_of(broker) == pytest.approx(NOW + HOUR, abs=NEAR)


# -- never backwards --------------------------------------------------------------------------


async def test_time_and_tokens_never_go_backwards_whatever_the_clock_does(
    broker: Store, live: LiveClient, clock: SetClock
) -> None:
    dice = random.Random(7)
    moments, tokens = [await now_of(broker)], [0]
    for number in range(100):
        clock.go_on(dice.choice([0.0, 0.001, 1.0, 30.0]))
        clock.set_by(dice.choice([0.0, -DAY, -1.0, -0.1, 0.1, 0.5, 1.0, 60.0, DAY]))
        await live.enqueue(submit(f"t{number}"))
        fetch = Fetch(queues=("default",), max=1)
        reply = await broker.exchange(live.call(), fetch=fetch)
        moments.append(reply.now)
        tokens.append(reply.leased[0].token)
        await live.exchange(0, completed(reply.leased[0]))

    assert moments == sorted(moments)
    assert tokens == sorted(set(tokens))


async def test_the_guard_is_up_after_a_silence_and_leases_are_kept(
    broker: Store, live: LiveClient, clock: SetClock
) -> None:
    await live.enqueue(submit("t"))
    assert ids(await live.exchange(1)) == ["t"]
    for _ in range(2):  # the guard of the first sweep is over
        await broker.sweep()
        clock.go_on(HEARTBEAT - 1.0)
        await broker.beat("w1")
    clock.go_on(DAY)
    swept = await broker.sweep()
    assert (swept.guarded, swept.count) == (True, 0)
    await broker.beat("w1")
    clock.go_on(HEARTBEAT + 1.0)
    assert (await broker.sweep()).count == 0
    assert await state_of(broker, "t") == [State.RUNNING]
