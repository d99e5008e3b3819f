"""Helpers of the tests about order and limits: long queues, runs of dispatches, fresh brokers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from hypothesis import HealthCheck, Phase, settings
from msgspec import UNSET

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import (
    MAX_ENQUEUE,
    Call,
    Change,
    Fetch,
    QueueChange,
    Setting,
    Submission,
    TenantChange,
)
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased, Message
from tests.support.store import NOW, Client, completed, submit

#: New brokers by name, as the fixtures have them: for tests that need more than one.
WITH_TEST_CLOCK: dict[str, Callable[[], Store]] = {
    "memory": lambda: MemoryBroker(test_clock=True),
}
WITH_REAL_CLOCK: dict[str, Callable[..., Store]] = {"memory": MemoryBroker}

#: A factor: more examples for long runs, a part of them in `make test`.
EXAMPLES = float(os.environ.get("FAIRLEAD_EXAMPLES", "1"))
LONGER = max(1.0, EXAMPLES)  # how much longer such a test may take


def examples(count: int) -> settings:
    """The settings of a property: the same examples in every run, and no clock of its own."""
    return settings(
        max_examples=max(1, round(count * EXAMPLES)),
        deadline=None,
        derandomize=EXAMPLES <= 1,
        print_blob=True,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@asynccontextmanager
async def opened(make: Callable[[], Store]) -> AsyncIterator[Store]:
    """A new broker for one example of a property, audited at its end."""
    store = make()
    try:
        yield store
        assert await store.audit(now=NOW) == []
    finally:
        await store.close()


async def enqueue_all(
    client: Client, submissions: Iterable[Submission], *, now: float = NOW
) -> None:
    """Enqueue any number of tasks, in calls of the largest size; all must be accepted."""
    batch: list[Submission] = []

    async def flush() -> None:
        receipts = await client.enqueue(*batch, now=now)
        assert {receipt.code for receipt in receipts} <= {"accepted"}
        batch.clear()

    for submission in submissions:
        batch.append(submission)
        if len(batch) == MAX_ENQUEUE:
            await flush()
    if batch:
        await flush()


async def backlog(
    client: Client, tenant: str, count: int, *, queue: str = "default", now: float = NOW
) -> None:
    """``count`` tasks of one tenant, named tenant.0, tenant.1, …"""
    await enqueue_all(
        client, (submit(f"{tenant}.{i}", tenant, queue) for i in range(count)), now=now
    )


async def dispatches(
    client: Client,
    count: int,
    size: int = 1,
    *,
    run_times: dict[str, float] | None = None,
    now: float = NOW,
) -> list[str]:
    """The tenants of the next ``count`` dispatches, fetched ``size`` at a time.

    Each call settles what the call before it fetched; ``run_times`` says how long a task of each
    tenant ran.
    """
    served: list[str] = []
    done: list[Settlement] = []
    while len(served) < count:
        order = Fetch(queues=("default",), max=min(size, count - len(served)))
        reply = await client.exchange(done, fetch=order, now=now)
        assert reply.settled == ["applied"] * len(done)
        if not reply.leased:
            break
        served += [lease.message.tenant for lease in reply.leased]
        done = [_finished(lease, run_times or {}) for lease in reply.leased]
    assert await client.settle(*done, now=now) == ["applied"] * len(done)
    return served


def _finished(lease: Leased, run_times: dict[str, float]) -> Settlement:
    return completed(lease, run_time=run_times.get(lease.message.tenant, 0.0))


async def taken(
    client: Client,
    count: int,
    size: int,
    queues: tuple[str, ...] = ("default",),
    *,
    now: float = NOW,
) -> list[Leased]:
    """Up to ``count`` leases, fetched ``size`` at a time and not settled."""
    leases: list[Leased] = []
    while len(leases) < count:
        found = await client.fetch(min(size, count - len(leases)), queues, now=now)
        if not found:
            break
        leases += found
    return leases


class LiveClient:
    """One incarnation that talks to a broker with a real clock."""

    def __init__(self, broker: Store, incarnation: str = "w1") -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.number = 0

    def call(self) -> Call:
        self.number += 1
        return Call(self.incarnation, self.number)

    async def enqueue(self, *submissions: Submission) -> None:
        receipts = await self.broker.enqueue(self.call(), submissions)
        assert {receipt.code for receipt in receipts} <= {"accepted"}

    async def exchange(self, n: int, *done: Settlement, queue: str = "default") -> list[Leased]:
        """Settle, then fetch up to ``n``."""
        fetch = Fetch(queues=(queue,), max=n) if n else None
        return (await self.broker.exchange(self.call(), done, fetch=fetch)).leased

    async def configure(self, *changes: Change) -> None:
        await self.broker.configure(self.call(), changes)


class Settings:
    """What was configured, as plain dictionaries by place: a queue, a tenant, a limiter."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, ...], dict[str, object]] = {}

    def change(self, change: Setting) -> None:
        """Take over what a change says; what is UNSET stays."""
        if isinstance(change, QueueChange):
            place: tuple[str, ...] = ("queue", change.queue)
        elif isinstance(change, TenantChange):
            place = ("tenant", change.tenant, change.queue or "")
        else:
            place = ("limiter", change.name)
        kept = self.places.setdefault(place, {})
        for name in change.__struct_fields__:
            if (value := getattr(change, name)) is not UNSET:
                kept[name] = value

    def get(self, name: str, *places: tuple[str, ...]) -> object:
        """What is set at the first of these places where anything is."""
        found = [self.places.get(place, {}).get(name, UNSET) for place in places]
        return next((value for value in found if value is not UNSET), None)

    def paused(self, message: Message) -> bool:
        """Whether the queue of a task is paused, or its tenant."""
        queue, tenant = message.queue, message.tenant
        return bool(
            self.get("paused", ("queue", queue))
            or self.get("paused", ("tenant", tenant, queue), ("tenant", tenant, ""))
        )

    def limits(self, message: Message, running: list[Message]) -> list[tuple[int, int]]:
        """Each limit on concurrency that a task is under, and how many run under it."""
        here = [other for other in running if other.queue == message.queue]
        mine = [other for other in here if other.tenant == message.tenant]
        tenant = ("tenant", message.tenant, message.queue), ("tenant", message.tenant, "")
        found = [
            (self.get("concurrency", ("queue", message.queue)), len(here)),
            (self.get("concurrency", *tenant), len(mine)),
        ]
        for name in message.limiters:
            held = sum(name in other.limiters for other in running)
            found.append((self.get("concurrency", ("limiter", name)), held))
        return [(limit, count) for limit, count in found if isinstance(limit, int)]
