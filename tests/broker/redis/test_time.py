"""Time on a server: what callers say of it, and what its own clock does."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from fairlead import Fairlead
from fairlead.broker.redis.broker import RedisBroker
from fairlead.broker.requests import Call, Fetch
from fairlead.model.lifecycle import State
from tests.broker.redis.test_faults_inside import opened
from tests.broker.redis.test_lost_replies import calls
from tests.support.clock import SetClock
from tests.support.fair import LiveClient
from tests.support.proxy import proxy
from tests.support.servers import Running
from tests.support.store import NOW, submit

HOUR = 3600.0
DAY = 24 * HOUR


async def test_a_process_that_has_just_started_takes_a_silence_for_one(valkey: Running) -> None:
    clock = SetClock()
    before = RedisBroker(valkey.url, clock=clock)
    await LiveClient(before).enqueue(submit("late", deadline=30.0))
    await before.close()
    clock.go_on(3 * DAY)

    fresh = RedisBroker(valkey.url, clock=clock)
    (found,) = await fresh.find(["late"])  # a read, which writes nothing down
    assert found is not None
    assert (await fresh.hello()).now == pytest.approx(NOW + 3 * DAY)
    assert (await fresh.promote()).now == pytest.approx(NOW + 3 * DAY)
    (found,) = await fresh.find(["late"])
    assert found is not None
    assert found.state is State.DEAD
    await fresh.close()


async def test_the_first_who_saw_time_pass_speaks_for_all(valkey: Running) -> None:
    clock = SetClock()
    worker, fresh = (RedisBroker(valkey.url, clock=clock) for _ in range(2))
    await LiveClient(worker).enqueue(submit("waits", deadline=30.0))
    clock.go_on(1.0)
    clock.set_by(DAY)

    assert (await worker.promote()).now == pytest.approx(NOW + 1.0)
    assert (await fresh.promote()).now == pytest.approx(NOW + 1.0, abs=1.0)
    (found,) = await fresh.find(["waits"])
    assert found is not None
    assert found.state is State.QUEUED
    await worker.close()
    await fresh.close()


async def test_reads_after_a_leap_do_not_take_it_for_time(valkey: Running) -> None:
    clock = SetClock()
    broker = RedisBroker(valkey.url, clock=clock)
    live = LiveClient(broker)
    await live.enqueue(submit("t"))
    clock.set_by(8 * DAY)

    assert (await broker.snapshot()).now == pytest.approx(NOW)
    assert valkey.numbers()["now"] == 1_800_000_000
    await broker.close()


async def test_the_servers_own_clock_is_judged_likewise(valkey: Running) -> None:
    broker = RedisBroker(valkey.url)
    await broker.promote()
    valkey.set_numbers(now=time.time() - HOUR, ahead=0)  # as if it leapt since

    assert (await broker.promote()).now == pytest.approx(time.time() - HOUR, abs=5.0)
    assert (await broker.hello()).ahead == pytest.approx(-HOUR, abs=5.0)
    await broker.close()


async def test_time_that_is_ahead_of_the_servers_clock_loses_a_tenth(valkey: Running) -> None:
    broker = RedisBroker(valkey.url)
    await broker.promote()
    valkey.set_numbers(now=time.time() + HOUR)
    first = await broker.promote()
    began = (await broker.hello()).ahead
    await asyncio.sleep(0.5)
    assert (await broker.promote()).now > first.now

    lost = began - (await broker.hello()).ahead
    assert 0.04 < lost < 0.5
    await broker.close()


@pytest.mark.long(20)
@pytest.mark.slow
async def test_a_server_that_stood_still_is_not_taken_for_one_whose_clock_was_set(
    valkey: Running,
) -> None:
    app = Fairlead(valkey.url)

    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        assert await (await double.aenqueue(1)).aresult() == 2
        valkey.pause()
        try:
            await asyncio.sleep(22.0)  # with calls of the worker stuck in its sockets
        finally:
            valkey.resume()
        assert await (await double.aenqueue(2)).aresult(timeout=30) == 4
        broker = RedisBroker(valkey.url)
        assert abs((await broker.hello()).ahead) < 1.0
        await broker.close()


@pytest.mark.serial
async def test_time_goes_on_a_tenth_slower_when_the_servers_clock_was_set_back(
    valkey: Running,
) -> None:
    """Simulated from the other side: the last moment that was stored lies in the future."""
    ahead = 1000.0
    async with opened(valkey) as broker:
        numbers = itertools.count(1)

        async def enqueue(delay: float) -> None:
            n = next(numbers)
            await broker.enqueue(Call("p", n), [submit(f"t{n}", delay=delay)])

        await enqueue(0.0)
        seconds, micros = valkey.admin("TIME")
        set_to = float(seconds) + float(micros) / 1e6 + ahead
        valkey.set_numbers(now=set_to)
        await enqueue(0.3)
        asked = time.monotonic()
        first = (await broker.promote()).now
        told = time.monotonic()
        assert set_to <= first < set_to + 1.0

        seen, last = [first], told
        while last - told < 0.4:
            replies = (
                await broker.promote(),
                await broker.exchange(Call("w", next(numbers))),
                await broker.beat("w"),
                await broker.snapshot(),
                await broker.hello(),
            )
            last = time.monotonic()
            seen += [*(reply.now for reply in replies), (await broker.events()).now]
        assert seen == sorted(seen)
        least, most = 0.9 * (last - told), 0.9 * (time.monotonic() - asked)
        assert least - 0.01 <= seen[-1] - first <= most + 0.01
        fetched = await broker.exchange(
            Call("w", next(numbers)), fetch=Fetch(queues=("default",), max=5)
        )
        assert len(fetched.leased) == 2
        assert fetched.leased[0].token >= int(set_to * 1e6)
        assert await broker.audit() == []


@pytest.mark.serial
async def test_what_is_due_wakes_in_time_though_the_reply_that_gave_the_alarm_was_lost(
    valkey: Running,
) -> None:
    valkey.admin("FLUSHALL")
    async with proxy(path=valkey.path, matching=calls("can_fetch")) as between:
        broker = RedisBroker(between.url)
        await broker.wait(["default"], 0.0)  # the server knows the function from now on
        await broker.enqueue(Call("p", 1), [submit("t", delay=0.5)])
        fault = between.drop_reply(1)
        began = time.monotonic()

        assert await broker.wait(["default"], 10.0)
        assert fault.happened.is_set()
        assert time.monotonic() - began < 3.0  # nobody sleeps for more than 5 at a time
        await broker.close()
