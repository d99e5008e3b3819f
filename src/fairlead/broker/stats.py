"""Counters of what happened, kept by the verbs themselves and never reset."""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ("BUCKETS", "Histogram", "QueueStats", "Stats", "StatsReads", "TenantStats")

#: Upper ends of the buckets of a histogram, in seconds; the last bucket has none.
BUCKETS: tuple[float, ...] = tuple(0.001 * 2**n for n in range(24))


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How many fell into each bucket of ``BUCKETS`` and above them, their sum and the largest."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    sum: float = 0.0
    largest: float = 0.0


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One queue since it exists."""

    enqueued: int = 0
    started: int = 0  # attempts
    completed: int = 0
    failed: int = 0  # attempts that ended with an error, retried or not
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    fenced: int = 0  # outcomes that came too late
    deferred: int = 0  # now
    orphans: int = 0  # dependents that were to be told, but are not known
    wait: Histogram = Histogram()  # seconds from runnable to started
    run: Histogram = Histogram()  # seconds from started to settled, as workers measured
    release: Histogram = Histogram()  # seconds from the end of the last parent to queued


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's part of a queue in this hour and the one before it."""

    enqueued: int = 0
    started: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """All queues; of tenants at most 1,000 in each."""

    now: float
    queues: dict[str, QueueStats] = {}
    tenants: dict[str, dict[str, TenantStats]] = {}  # by queue and tenant
    more_tenants: bool = False


class StatsReads(Protocol):
    """The read of the counters."""

    async def stats(self, *, now: float | None = None) -> Stats:
        """Counters of all queues, and of tenants with work in this hour or the last one."""
        ...
