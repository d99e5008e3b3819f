"""Counters of what happened, kept by the verbs themselves in the same step, and never reset."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Protocol

import msgspec

from fairlead.model.message import LEVEL_NAMES

#: Upper ends of the buckets of a histogram, in seconds; the last bucket has none.
BUCKETS: tuple[float, ...] = tuple(0.001 * 2**n for n in range(24))
HOUR = 3_600.0  # what is kept of tenants is kept by the hour
MAX_TALLIES = 10_000  # tenants of one queue that are counted in one hour


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How many fell into each bucket of ``BUCKETS`` and above them, their sum and the largest."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """How many durations were at most as long as each bound of ``BUCKETS``, and above the last."""
    sum: float = 0.0
    """All durations together, in seconds; each was rounded to a microsecond."""
    largest: float = 0.0
    """The longest duration, in seconds."""

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def upper(self, share: float) -> float | None:
        """At least this share of them took no longer; None if there were none.

        The end of a bucket, so up to twice the true figure, but never more than the largest.
        """
        wanted, seen = share * self.count, 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(BUCKETS[index], self.largest) if index < len(BUCKETS) else self.largest
        return None


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One queue since it exists."""

    enqueued: int = 0
    """How many tasks were accepted, whatever became of them."""
    started: int = 0
    """How many attempts began."""
    completed: int = 0
    """How many tasks were completed."""
    failed: int = 0
    """How many attempts ended with an error, out of time, or with their process."""
    retried: int = 0
    """Of these, the ones after which the task is tried again."""
    dead: int = 0
    """How many tasks died."""
    cancelled: int = 0
    """How many tasks were cancelled."""
    fenced: int = 0
    """How many outcomes came too late."""
    dropped: int = 0
    """How many dead tasks were forgotten before their time, for want of room."""
    deferred: int = 0
    """How many wait for dependencies now."""
    wait: Histogram = Histogram()
    """Seconds from runnable (accepted, due, released, given back) to started."""
    run: Histogram = Histogram()
    """Seconds from started to settled, as workers measured."""
    release: Histogram = Histogram()
    """Seconds from the end of the last parent to queued."""


COUNTERS = QueueStats.__struct_fields__[:9]
HISTOGRAMS = QueueStats.__struct_fields__[10:]


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's part of a queue in this hour and the one before it."""

    enqueued: int = 0
    """How many tasks were accepted, whatever became of them."""
    started: int = 0
    """How many attempts began."""
    completed: int = 0
    """How many tasks were completed."""
    dead: int = 0
    """How many tasks died."""
    cancelled: int = 0
    """How many tasks were cancelled."""
    longest_wait: float = 0.0
    """The longest time from runnable to started, in seconds."""
    weight: float = 1.0
    """Its weight as configured now."""
    queued: int = 0
    """How many tasks wait for nothing but their turn, now."""
    lines: tuple[int, ...] = (0,) * len(LEVEL_NAMES)
    """Lengths of its lines by priority, critical first. Tasks that were cancelled in a line count
    until a fetch passes them."""


TALLIED = TenantStats.__struct_fields__[:5]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """All queues; of tenants, where they were asked for, at most 1,000 in each."""

    now: float
    """Unix seconds when it was read."""
    queues: dict[str, QueueStats] = {}
    """The counts of each queue, by name."""
    tenants: dict[str, dict[str, TenantStats]] = {}
    """The counts of each tenant, by queue and tenant."""
    more_tenants: bool = False
    """True: there are more tenants than are listed."""
    orphans: int = 0
    """How many dependents were to be told of an end, but are not known."""


class StatsReads(Protocol):
    """The read of the counters."""

    async def stats(
        self,
        queue: str | None = None,
        *,
        tenants: bool = False,
        tenant: str | None = None,
        now: float | None = None,
    ) -> Stats:
        """Counters of one queue, or of all; with ``tenants`` also of those with work now or lately.

        With ``tenant`` of that one instead, in each queue.

        A call counts with the step that it is: what is answered again counts once. Of tenants the
        first 10,000 of each queue and hour are counted; ``more_tenants`` says that there were
        others, or more than the 1,000 that are shown. Tenants and queues may be read one after the
        other: they are not of one moment.
        """
        ...


# -- how it is counted, the same in every store ------------------------------------------------


def bucket(seconds: float) -> int:
    """The bucket that a time falls into."""
    return bisect_left(BUCKETS, seconds)


def micros(seconds: float) -> int:
    """Whole microseconds: their sums do not depend on the order."""
    return math.floor(seconds * 1e6 + 0.5)


def last_minute(now: float, minute: int, current: int, previous: int) -> int:
    """How many in the last 60 seconds, from counts by the minute of the clock.

    Of the minute before, the part that is still within 60 seconds, as if they came evenly.
    """
    this, passed = divmod(now, 60.0)
    if minute == this - 1:
        current, previous = 0, current
    elif minute != this:
        return 0
    return current + round(previous * (1.0 - passed / 60.0))
