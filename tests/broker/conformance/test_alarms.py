"""Whoever waits is woken when a rate has its next token, whatever happens in between."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import (
    Alter,
    Change,
    Fetch,
    LimiterChange,
    QueueChange,
    TenantChange,
)
from fairlead.model.message import Leased
from tests.support.fair import WITH_REAL_CLOCK, LiveClient
from tests.support.store import NOW, Client, completed, failed, ids, submit

pytestmark = [pytest.mark.serial, pytest.mark.exhaustive]

SOON = 1.0  # seconds within which a wake-up must have come; who missed it wakes after 3 or more
TOKEN = 0.3  # seconds between two tokens of the rates below
QUEUES = ("default",)


@pytest.fixture(params=WITH_REAL_CLOCK)
async def live_broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A new broker with a real clock, audited afterwards."""
    store = WITH_REAL_CLOCK[request.param]()
    try:
        yield store
        assert await store.audit() == []
    finally:
        await store.close()


@pytest.fixture
def live(live_broker: Store) -> LiveClient:
    return LiveClient(live_broker)


class Worker:
    """Waits and fetches until there is a task, as a worker does."""

    def __init__(self, broker: Store, name: str = "worker") -> None:
        self.client = LiveClient(broker, name)
        self.wakes = 0
        self.ended = 0.0
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> Leased:
        while await self.client.broker.wait(QUEUES, 5.0):
            self.wakes += 1
            for lease in await self.client.exchange(1):
                self.ended = time.monotonic()
                return lease
        raise AssertionError("nobody was woken")

    async def got(self, id: str, moment: float) -> float:
        """Seconds from ``moment`` to the lease of this task, which must come."""
        lease = await asyncio.wait_for(self.task, 10)
        assert lease.message.id == id
        return self.ended - moment


async def worker(broker: Store, name: str = "worker") -> Worker:
    """One that waits, and has found nothing so far."""
    one = Worker(broker, name)
    await asyncio.sleep(0.02)
    assert not one.task.done()
    return one


async def spend(live: LiveClient, *changes: Change) -> tuple[Leased, float]:
    """Set limits, use up the first token, and say when that was, at the earliest."""
    await live.configure(*changes)
    await live.enqueue(submit("first", limiters=("api",)))
    moment = time.monotonic()
    (lease,) = await live.exchange(1)
    return lease, moment


RATES: dict[str, Change] = {
    "queue": QueueChange(queue="default", rate=1 / TOKEN),
    "tenant": TenantChange(tenant="a", rate=1 / TOKEN),
    "limiter": LimiterChange(name="api", rate=1 / TOKEN),
}
EVERY_RATE = pytest.mark.parametrize("rate", RATES.values(), ids=RATES)


def on_time(waited: float) -> bool:
    return TOKEN - 0.01 <= waited < TOKEN + SOON


# -- enqueue ----------------------------------------------------------------------------------


@EVERY_RATE
async def test_a_task_enqueued_while_the_rate_is_closed_wakes_whoever_waits(
    live: LiveClient, rate: Change
) -> None:
    lease, moment = await spend(live, rate)
    assert await live.exchange(1, completed(lease)) == []
    waits = await worker(live.broker)

    await live.enqueue(submit("next", limiters=("api",)))

    assert on_time(await waits.got("next", moment))
    assert waits.wakes <= 2


@EVERY_RATE
async def test_a_task_due_while_the_rate_is_closed_wakes_whoever_waits(
    live: LiveClient, rate: Change
) -> None:
    _, moment = await spend(live, rate)
    await live.enqueue(submit("next", limiters=("api",), delay=0.1))
    waits = await worker(live.broker)

    assert on_time(await waits.got("next", moment))


@EVERY_RATE
async def test_a_task_that_waited_before_anybody_did_wakes_them(
    live: LiveClient, rate: Change
) -> None:
    _, moment = await spend(live, rate)
    await live.enqueue(submit("next", limiters=("api",)))
    waits = Worker(live.broker)

    assert on_time(await waits.got("next", moment))


@EVERY_RATE
async def test_the_tokens_of_a_rate_wake_one_after_the_other(
    live: LiveClient, rate: Change
) -> None:
    _, moment = await spend(live, rate)
    workers = [await worker(live.broker, f"worker.{i}") for i in range(3)]
    await live.enqueue(*(submit(f"next.{i}", limiters=("api",)) for i in range(3)))

    leases = await asyncio.wait_for(asyncio.gather(*(one.task for one in workers)), 10)

    assert sorted(lease.message.id for lease in leases) == ["next.0", "next.1", "next.2"]
    ends = sorted(one.ended - moment for one in workers)
    for place, end in enumerate(ends, 1):
        assert place * TOKEN - 0.01 <= end < place * TOKEN + SOON


@EVERY_RATE
async def test_a_fetch_that_leaves_work_behind_a_rate_says_when_to_come_again(
    c: Client, rate: Change
) -> None:
    await c.configure(rate)
    await c.enqueue(*(submit(f"t.{i}", limiters=("api",)) for i in range(2)))

    reply = await c.exchange(fetch=Fetch(queues=QUEUES, max=5))
    assert ids(reply.leased) == ["t.0"]
    assert reply.due_in == pytest.approx(TOKEN, abs=1e-6)

    reply = await c.exchange(fetch=Fetch(queues=QUEUES, max=5), now=NOW + TOKEN)
    assert ids(reply.leased) == ["t.1"]


# -- settle -----------------------------------------------------------------------------------


async def end(live: LiveClient, lease: Leased) -> None:
    assert await live.exchange(0, completed(lease)) == []


async def retry_later(live: LiveClient, lease: Leased) -> None:
    await live.exchange(0, failed(lease, 60.0))


async def crash(live: LiveClient, lease: Leased) -> None:
    await live.broker.give_back(live.incarnation)
    await live.broker.alter(live.call(), [Alter(id=lease.message.id, action="cancel")])


ENDS: dict[str, Callable[[LiveClient, Leased], Awaitable[None]]] = {
    "settled": end,
    "retried": retry_later,
    "given back": crash,
}


@pytest.mark.parametrize("over", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("place", ["queue", "tenant"])
async def test_a_task_that_ends_without_a_fetch_wakes_whoever_waits_for_the_rate(
    live: LiveClient, place: str, over: Callable[[LiveClient, Leased], Awaitable[None]]
) -> None:
    limits: dict[str, Change] = {
        "queue": QueueChange(queue="default", rate=1 / TOKEN, concurrency=1),
        "tenant": TenantChange(tenant="a", rate=1 / TOKEN, concurrency=1),
    }
    lease, moment = await spend(live, limits[place])
    await live.enqueue(submit("next"))
    waits = await worker(live.broker)

    await over(live, lease)

    assert on_time(await waits.got("next", moment))


# -- configure --------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Change, ...]] = {
    "something else of the queue": (QueueChange(queue="default", warn_depth=100),),
    "another queue": (QueueChange(queue="other", paused=True),),
    "something else of the tenant": (TenantChange(tenant="a", weight=2.0),),
    "another limiter": (LimiterChange(name="other", concurrency=1),),
    "the concurrency of all": (
        QueueChange(queue="default", concurrency=10),
        TenantChange(tenant="a", concurrency=10),
        LimiterChange(name="api", concurrency=10),
    ),
    "a pause and its end": (
        QueueChange(queue="default", paused=True),
        TenantChange(tenant="a", paused=True),
        QueueChange(queue="default", paused=False),
        TenantChange(tenant="a", paused=False),
    ),
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@EVERY_RATE
async def test_a_change_in_between_does_not_put_off_the_alarm(
    live: LiveClient, rate: Change, changes: tuple[Change, ...]
) -> None:
    _, moment = await spend(live, rate)
    await live.enqueue(submit("next", limiters=("api",)))
    assert await live.exchange(1) == []
    waits = await worker(live.broker)

    for change in changes:
        await live.configure(change)
        await asyncio.sleep(0)

    assert on_time(await waits.got("next", moment))
    assert waits.wakes <= 1 + 2 * len(changes)


FASTER: dict[str, Change] = {
    "queue": QueueChange(queue="default", rate=2 / TOKEN),
    "tenant": TenantChange(tenant="a", rate=2 / TOKEN),
    "limiter": LimiterChange(name="api", rate=2 / TOKEN),
}


@pytest.mark.parametrize("place", RATES)
async def test_a_higher_rate_sets_the_alarm_anew(live: LiveClient, place: str) -> None:
    _, moment = await spend(live, RATES[place])
    await live.enqueue(submit("next", limiters=("api",)))
    assert await live.exchange(1) == []
    waits = await worker(live.broker)

    await live.configure(FASTER[place])

    assert TOKEN / 2 - 0.01 <= await waits.got("next", moment) < TOKEN / 2 + SOON


# -- a wake-up in vain ------------------------------------------------------------------------


async def test_a_wait_that_is_over_at_the_moment_it_is_rung_passes_the_wake_up_on(
    live: LiveClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread enqueues just when a wait looks at the clock for the last time."""
    broker = live.broker
    real = time.monotonic
    over = real() + 0.2
    enqueued: list[float] = []

    def enqueue() -> None:
        asyncio.run(LiveClient(broker, "elsewhere").enqueue(submit("t")))

    def looked_at() -> float:
        if real() >= over and not enqueued and sys._getframe(1).f_code.co_name == "wait":
            enqueued.append(real())
            thread = threading.Thread(target=enqueue)
            thread.start()
            thread.join(2.0)
            assert not thread.is_alive()
        return real()

    short = asyncio.ensure_future(broker.wait(QUEUES, 0.2))
    long = asyncio.ensure_future(broker.wait(QUEUES, 5.0))
    await asyncio.sleep(0)
    monkeypatch.setattr(time, "monotonic", looked_at)
    woken = await asyncio.wait_for(short, 5.0)
    monkeypatch.undo()

    assert len(enqueued) == 1
    if not woken:
        assert await asyncio.wait_for(long, 10.0) is True
        assert real() - enqueued[0] < SOON + 0.1
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
