"""Shares on a real server, with several workers at once, as the stream of events tells them.

A fetch is one step on the server, so however many workers there are, what they are lent is one
sequence, and it is the one that ``tests/broker/conformance/test_fairness.py`` describes: after n
dispatches a tenant with weight w of W in all has had n * w / W of them, give or take

    e = 1 + w / (the smallest weight)

Slots decide how much of the sequence a worker takes at once, not what is in it. A window of
dispatches is the difference of two beginnings of the sequence, so it is right within 2e.

A worker may hold some of what it was lent, and start them with its next call. What it holds is a
piece of the sequence, too, and right within 2e. After n starts there are at most F such pieces (one
for each of F workers), so n starts are right within e + 2eF, and a window within twice that.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Fetch, LeaseRef, TenantChange
from fairlead.model.events import Event
from fairlead.model.message import Leased
from tests.support.fair import LiveClient
from tests.support.servers import Running
from tests.support.store import completed, events, submit

FETCHERS, SLOTS = 4, 25  # 100 slots in all
WINDOW, WINDOWS = 500, 10
WEIGHTS = {"a": 3.0, "b": 1.0, "c": 1.0}
NOISY = ("n1", "n2", "n3", "n4")


@pytest.fixture
async def clients(valkey: Running) -> AsyncIterator[list[LiveClient]]:
    """The workers, each with a broker of its own."""
    brokers = [RedisBroker(valkey.url) for _ in range(FETCHERS)]
    yield [LiveClient(broker, f"w{n}") for n, broker in enumerate(brokers)]
    assert await brokers[0].audit() == []
    for broker in brokers:
        await broker.close()


async def backlog(c: LiveClient, tenant: str, count: int) -> None:
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        await c.enqueue(*(submit(f"{tenant}.{n}", tenant) for n in numbers))


class Crew:
    """Workers that settle and fetch until they are told to stop."""

    def __init__(self, clients: Sequence[LiveClient], *, held: int = 0) -> None:
        self.clients, self.held = clients, held
        self.started = 0
        self.enough = 0  # tasks after which everybody stops
        self.seen: dict[str, asyncio.Event] = {}  # ids that somebody waits for

    async def run(self, enough: int) -> None:
        self.enough = enough
        await asyncio.gather(*(self._work(client) for client in self.clients))

    async def _work(self, c: LiveClient) -> None:
        fetch = Fetch(queues=("default",), max=SLOTS, start=SLOTS - self.held)
        done: list[Leased] = []
        waiting: list[Leased] = []
        while True:
            stop = self.started >= self.enough
            reply = await c.broker.exchange(
                c.call(),
                [completed(lease) for lease in done],
                started=[LeaseRef(each.message.id, c.incarnation, each.token) for each in waiting],
                fetch=None if stop else fetch,
            )
            assert {*reply.settled, *reply.started} <= {"applied"}
            fresh = reply.leased[: SLOTS - self.held]
            done, waiting = [*waiting, *fresh], reply.leased[SLOTS - self.held :]
            self.started += len(done)
            for lease in done:
                if lease.message.id in self.seen:
                    self.seen[lease.message.id].set()
            if stop and not done:
                return


async def told(c: LiveClient) -> list[Event]:
    return await events(c.broker, "enqueued", "started")


@pytest.mark.parametrize("held", [0, 10])
async def test_each_window_of_starts_has_the_shares_of_the_weights(
    clients: list[LiveClient], held: int
) -> None:
    total, all_weights = WINDOW * WINDOWS, sum(WEIGHTS.values())
    for tenant, weight in WEIGHTS.items():
        await clients[0].configure(TenantChange(tenant=tenant, weight=weight))
        await backlog(clients[0], tenant, round(1.2 * total * weight / all_weights))

    await Crew(clients, held=held).run(total)

    starts = [event.tenant for event in await told(clients[0]) if event.kind == "started"]
    assert len(starts) >= total
    for start in range(0, total, WINDOW):
        served = Counter(starts[start : start + WINDOW])
        for tenant, weight in WEIGHTS.items():
            near = 1 + weight / min(WEIGHTS.values())
            bound = 2 * (near + 2 * near * FETCHERS * (held > 0))
            fair = WINDOW * weight / all_weights
            assert abs(served[tenant] - fair) <= bound, f"{served} from start {start} on"


async def test_a_quiet_tenant_goes_before_the_backlog_of_others_however_many_slots_there_are(
    clients: list[LiveClient],
) -> None:
    """A tenant that comes back starts at the queue's clock, which no other tag is below.

    Of the others each may have a tag as low and a name before it, so each may go first once, and
    is behind it then: it waits for no more dispatches than there are other tenants.
    """
    for tenant in NOISY:
        await backlog(clients[0], tenant, 5_000)
    dice, crew = random.Random(3), Crew(clients)
    sender = LiveClient(clients[0].broker, "sender")
    work = asyncio.create_task(crew.run(20_000))
    for number in range(25):
        await asyncio.sleep(dice.random() * 0.01)
        quiet = f"{'az'[number % 2]}.quiet"
        begun = crew.seen[f"{quiet}.{number}"] = asyncio.Event()
        await sender.enqueue(submit(f"{quiet}.{number}", quiet))
        await begun.wait()
    left = 20_000 - crew.started
    crew.enough = 0
    await work

    assert left > 1_000, "the backlog of the others was there all the time"
    rows = await told(clients[0])
    places = {(event.kind, event.task): place for place, event in enumerate(rows)}
    for id in crew.seen:
        between = rows[places["enqueued", id] : places["started", id]]
        waited = sum(event.kind == "started" for event in between)
        assert waited <= len(NOISY), f"{id} waited for {waited} dispatches"
