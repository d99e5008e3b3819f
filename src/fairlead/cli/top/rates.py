"""What ``fairlead top`` shows: two looks at a broker, and the rates between them."""

from __future__ import annotations

import msgspec

from fairlead.api.views.tenants import TenantView, tenant_views
from fairlead.broker.records import Snapshot, WorkerRecord
from fairlead.broker.stats import Histogram, QueueStats
from fairlead.cli.common.known_names import check_shown
from fairlead.client import Client, Stats


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A broker at one moment."""

    snapshot: Snapshot
    stats: Stats
    tenants: list[TenantView]
    workers: list[WorkerRecord]


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: what it has, and what happened in the last interval, by the second."""

    name: str
    waiting: int
    running: int
    dead: int
    paused: bool
    oldest: float | None  # seconds that the task waits which has waited the longest
    workers: int  # that serve it
    enqueued: float
    started: float
    completed: float
    failed: float
    wait: float | None  # seconds: 95 % of the attempts that began had waited no longer


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All queues, tenants and workers."""

    now: float
    interval: float
    queues: list[QueueFigures]  # those with most work first
    tenants: list[TenantView]  # the same
    workers: list[WorkerRecord]


async def read(client: Client, queue: str | None) -> Look:
    """Look at one queue, or at all."""
    snapshot = await client.store.snapshot(tenants=False)
    if queue is not None:
        check_shown("queue", queue, snapshot.queues)
        snapshot = await client.store.snapshot(queue, tenants=False)
    return Look(
        snapshot=snapshot,
        stats=await client.store.stats(queue),
        tenants=await tenant_views(client, queue),
        workers=[
            worker
            for worker in await client.store.workers()
            if queue is None or queue in worker.queues
        ],
    )


def compared(before: Look, after: Look) -> Figures:
    """Return how the broker stands, and the rates from one look to the next."""
    seconds = max(after.stats.now - before.stats.now, 0.001)
    queues = []
    for name, counts in after.snapshot.queues.items():
        old = before.stats.queues.get(name, QueueStats())
        new = after.stats.queues.get(name, QueueStats())
        oldest = counts.oldest_at
        rates = {
            each: max(getattr(new, each) - getattr(old, each), 0) / seconds
            for each in ("enqueued", "started", "completed", "failed")
        }
        queues.append(
            QueueFigures(
                name=name,
                waiting=counts.depth,
                running=counts.running,
                dead=counts.dead,
                paused=counts.paused,
                oldest=None if oldest is None else max(after.snapshot.now - oldest, 0.0),
                workers=sum(name in worker.queues for worker in after.workers),
                wait=_between(old.wait, new.wait).upper(0.95),
                **rates,
            )
        )
    return Figures(
        now=after.snapshot.now,
        interval=seconds,
        queues=sorted(queues, key=lambda each: (-each.waiting - each.running, each.name)),
        tenants=sorted(after.tenants, key=lambda each: (-each.depth - each.in_flight, each.tenant)),
        workers=sorted(after.workers, key=lambda each: (each.host, each.pid)),
    )


def _between(old: Histogram, new: Histogram) -> Histogram:
    """What came into a histogram from one look to the next."""
    counts = tuple(max(b - a, 0) for a, b in zip(old.counts, new.counts, strict=True))
    return Histogram(counts=counts, largest=new.largest)
