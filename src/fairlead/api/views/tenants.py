"""What is known of tenants, from the counts and counters of the queues with most work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Annotated, Any, Literal

import msgspec

from fairlead.api.views.fairness import Shares, shares_of
from fairlead.api.views.paging import about
from fairlead.api.views.task_counts import TaskCounts, counts_of
from fairlead.broker.records import Counts, QueueCounts, TenantCounts
from fairlead.broker.stats import Histogram, QueueStats, TenantStats
from fairlead.client import Client

MAX_QUEUES = 20  # that are read for one answer, those with most work first
_MAX_TENANTS = 2_000  # that are read for one answer, and those of one more queue


class Throttle(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a tenant from being served in a queue."""

    queue: str
    by: Annotated[
        Literal["paused", "tenant", "limiter"],
        about("A pause, the tenant's own limit, or a named limiter without room."),
    ]
    limiter: str | None = None


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in this hour of the clock and the one before it."""

    enqueued: int = 0
    started: Annotated[int, about("Attempts that began.")] = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    longest_wait: Annotated[float, about("Seconds from runnable to started, at most.")] = 0.0
    share: Annotated[
        float | None, about("Its part of all attempts that began, 0 to 1; for operators.")
    ] = None
    fair_share: Annotated[
        float | None, about("The part of its weight among tenants with work; for operators.")
    ] = None


class TenantView(Fairness, frozen=True, kw_only=True):
    """One tenant over the queues that were read."""

    tenant: str
    weight: Annotated[float | None, about("Null: another one in each queue.")] = None
    in_flight: Annotated[int, about("Tasks that run.")] = 0
    depth: Annotated[int, about("Tasks that wait.")] = 0
    ready: Annotated[int, about("Of these, those that could run.")] = 0
    throttled: Annotated[list[Throttle], about("What keeps it now, by queue.")] = []


class TenantQueue(Fairness, frozen=True, kw_only=True):
    """One tenant's part of one queue."""

    queue: str
    weight: float = 1.0
    counts: TaskCounts
    throttle: Throttle | None = None
    queue_wait_p50: Annotated[
        float | None, about("Of the whole queue since it exists, seconds; for operators.")
    ] = None
    queue_wait_p95: float | None = None


class Part(msgspec.Struct, frozen=True):
    """What is known of one tenant in one queue."""

    queue: str
    counts: TenantCounts
    stats: TenantStats
    shares: Shares


class QueueRead(msgspec.Struct, frozen=True):
    """What was read of one queue."""

    queue: str
    counts: QueueCounts
    stats: QueueStats
    tenants: dict[str, TenantStats]
    more: bool


def busiest(queues: Mapping[str, QueueCounts], own: str | None) -> tuple[list[str], bool]:
    """The queues with most work, or with most of one tenant; and whether there are others."""
    if own is not None:
        queues = {name: each for name, each in queues.items() if own in each.tenants}

    def work(name: str) -> tuple[int, str]:
        counts: Counts = queues[name] if own is None else queues[name].tenants[own]
        return counts.running + counts.depth, name

    names = nlargest(MAX_QUEUES, queues, key=work)
    left = (name for name in queues if name not in names)
    return names, any(work(name)[0] for name in left)


async def read_queues(client: Client, queues: Sequence[str], own: str | None) -> list[QueueRead]:
    """Counts and counters of some queues; with ``own`` of that tenant only.

    Else of all their tenants, until those of some queues have come to 2,000: the other queues are
    left out.
    """
    reads: list[QueueRead] = []
    told = 0
    for queue in queues:
        if told >= _MAX_TENANTS:
            break
        counts, stats = await asyncio.gather(
            client.store.snapshot(queue, tenants=own is None, tenant=own),
            client.store.stats(queue, tenants=own is None, tenant=own),
        )
        if queue not in counts.queues or queue not in stats.queues:
            continue  # it is gone
        found, tenants = counts.queues[queue], stats.tenants.get(queue, {})
        more = found.more_tenants or stats.more_tenants
        reads.append(QueueRead(queue, found, stats.queues[queue], tenants, more))
        told += len(known_in(reads[-1]))
    return reads


async def shares_in(client: Client, queues: Sequence[str], tenant: str) -> dict[str, Shares]:
    """What a tenant got of some queues, by queue, as far as there is time to read of the others."""
    found: dict[str, Shares] = {}
    told = 0
    for queue in queues:
        if told >= _MAX_TENANTS:
            break
        tenants = (await client.store.stats(queue, tenants=True)).tenants.get(queue, {})
        told += len(tenants)
        if tenant in tenants:
            found[queue] = shares_of(tenants)[tenant]
    return found


def known_in(read: QueueRead) -> set[str]:
    return {*read.counts.tenants, *read.tenants}


def parts_of(read: QueueRead, own: str | None) -> list[tuple[str, Part]]:
    nothing = Shares()
    shares = shares_of(read.tenants) if own is None else {}
    return [
        (
            name,
            Part(
                read.queue,
                read.counts.tenants.get(name, TenantCounts()),
                read.tenants.get(name, TenantStats()),
                shares.get(name, nothing),
            ),
        )
        for name in sorted(known_in(read))
    ]


def view_of(tenant: str, parts: Sequence[Part]) -> TenantView:
    """One tenant over the queues in which it has a part.

    Its share is that of all that began in those of them in which shares are known. The fair one is
    weighed by what began in each: a tenant that got nothing has one as well.
    """
    weights = {part.stats.weight for part in parts} or {1.0}
    known = [part for part in parts if part.shares.total and part.shares.fair is not None]
    total = sum(part.shares.total for part in known)
    own = sum(part.stats.started for part in known)
    entitled = sum(part.shares.total * (part.shares.fair or 0.0) for part in known)
    return TenantView(
        tenant=tenant,
        weight=weights.pop() if len(weights) == 1 else None,
        in_flight=sum(part.counts.running for part in parts),
        depth=sum(part.counts.depth for part in parts),
        ready=sum(part.counts.ready for part in parts),
        throttled=[found for part in parts if (found := _throttle(part)) is not None],
        share=own / total if total else None,
        fair_share=entitled / total if total else None,
        **_summed([part.stats for part in parts]),
    )


async def tenant_views(client: Client, queue: str | None) -> list[TenantView]:
    """Return the tenants that have or had work in one queue, or in the busiest of all."""
    if queue is None:
        names, _ = busiest((await client.store.snapshot(tenants=False)).queues, None)
    else:
        names = [queue]
    parts: dict[str, list[Part]] = {}
    for read in await read_queues(client, names, None):
        for name, part in parts_of(read, None):
            parts.setdefault(name, []).append(part)
    return [view_of(name, each) for name, each in parts.items()]


def _summed(stats: Sequence[TenantStats]) -> dict[str, Any]:
    fields = ("enqueued", "started", "completed", "dead", "cancelled")
    return {
        **{field: sum(getattr(each, field) for each in stats) for field in fields},
        "longest_wait": max((each.longest_wait for each in stats), default=0.0),
    }


def queue_of(part: Part, wait: Histogram | None) -> TenantQueue:
    return TenantQueue(
        queue=part.queue,
        weight=part.stats.weight,
        counts=TaskCounts(**counts_of(part.counts)),
        throttle=_throttle(part),
        share=part.shares.got,
        fair_share=part.shares.fair,
        queue_wait_p50=None if wait is None else wait.upper(0.5),
        queue_wait_p95=None if wait is None else wait.upper(0.95),
        **_summed([part.stats]),
    )


def _throttle(part: Part) -> Throttle | None:
    counts = part.counts
    if counts.paused:
        return Throttle(queue=part.queue, by="paused")
    if counts.parked == "":
        return None
    return Throttle(queue=part.queue, by=counts.parked, limiter=counts.parked_at or None)
