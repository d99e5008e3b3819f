"""Counters of one queue: what happened in it, and to whom in the last hours."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from fairlead.broker.requests import MAX_PAGE
from fairlead.broker.stats import (
    BUCKETS,
    COUNTERS,
    HISTOGRAMS,
    HOUR,
    MAX_TALLIES,
    TALLIED,
    Histogram,
    QueueStats,
    TenantStats,
    last_minute,
    micros,
)
from fairlead.model.message import LEVEL_NAMES

Lines = tuple[int, ...]  # lengths by level
_NOTHING: tuple[int, Lines] = (0, (0,) * len(LEVEL_NAMES))
_PLACES = {name: place for place, name in enumerate(TALLIED)}
_STARTED = _PLACES["started"]


class Times:
    """A histogram that grows."""

    __slots__ = ("_counts", "_largest", "_sum")

    def __init__(self) -> None:
        self._counts = list(Histogram().counts)
        self._sum = 0  # microseconds
        self._largest = 0.0

    def add(self, seconds: float) -> None:
        """Count how long something took."""
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += int(seconds * 1e6 + 0.5)  # as ``micros``, but a call costs more than all this
        if seconds > self._largest:
            self._largest = seconds

    def shown(self) -> Histogram:
        return Histogram(
            counts=tuple(self._counts), sum=self._sum / 1e6, largest=micros(self._largest) / 1e6
        )


class Counters:
    """What is counted of one queue."""

    __slots__ = (
        *("_counts", "_ends", "_minute", "_minute_ends", "_now", "_recent"),
        *("hours", "release", "run", "wait"),
    )

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTERS, 0)
        self.wait, self.run, self.release = Times(), Times(), Times()
        self._minute = 0
        self._minute_ends = 60.0
        self._recent = [0, 0]  # attempts that began in that minute, and in the one before
        self.hours: dict[int, dict[str, list[float]]] = {}  # by tenant: TALLIED, longest wait
        self._now: dict[str, list[float]] = {}  # those of the hour that ends at
        self._ends = 0.0

    def add(self, counter: str) -> None:
        """Count something that belongs to nobody."""
        self._counts[counter] += 1

    def count(self, counter: str, tenant: str, now: float) -> None:
        """Count something that one tenant has a part in."""
        self._counts[counter] += 1
        own = self._now.get(tenant) if now < self._ends else None
        if own is None:
            own = self._own(tenant, now)
        own[_PLACES[counter]] += 1

    def started(self, tenant: str, waited: float, now: float) -> None:
        """Count an attempt that began, and how long it had been runnable."""
        self._counts["started"] += 1
        self.wait.add(waited)
        own = self._now.get(tenant) if now < self._ends else None
        if own is None:
            own = self._own(tenant, now)
        own[_STARTED] += 1
        if waited > own[-1]:
            own[-1] = waited
        if now >= self._minute_ends:
            self._next_minute(int(now // 60))
        self._recent[0] += 1

    def _next_minute(self, minute: int) -> None:
        previous = self._recent[0] if minute == self._minute + 1 else 0
        self._minute, self._recent = minute, [0, previous]
        self._minute_ends = 60.0 * (minute + 1)

    def _own(self, tenant: str, now: float) -> list[float]:
        """A tenant's part of this hour; of too many, one that nobody will see."""
        hour = int(now // HOUR)
        self._now = self.hours.setdefault(hour, {})
        self._ends = (hour + 1) * HOUR
        own = self._now.get(tenant)
        if own is None:
            own = [0] * len(TALLIED) + [0.0]
            if len(self._now) < MAX_TALLIES:
                self._now[tenant] = own
        return own

    def last_minute(self, now: float) -> int:
        """Attempts that began in the last minute."""
        return last_minute(now, self._minute, *self._recent)

    def forget(self, most: int, now: float) -> int:
        """Drop hours that nobody is shown any longer; how many."""
        over = [hour for hour in self.hours if hour < int(now // HOUR) - 1][:most]
        for hour in over:
            del self.hours[hour]
        return len(over)

    def shown(self, deferred: int) -> QueueStats:
        """For people."""
        shown: dict[str, Any] = {name: getattr(self, name).shown() for name in HISTOGRAMS}
        shown.update(self._counts)
        return QueueStats(deferred=deferred, **shown)

    def tenants(
        self,
        queued: Mapping[str, tuple[int, Lines]],
        now: float,
        weight: Callable[[str], float],
        only: str | None = None,
    ) -> tuple[dict[str, TenantStats], bool]:
        """Those with work, or with something in this hour or the last one; are there others?

        ``queued`` has all with work, how many tasks of theirs wait for their turn, and in which
        lines.
        """
        hour = int(now // HOUR)
        lately = [each for each in (self.hours.get(hour), self.hours.get(hour - 1)) if each]
        names = list(dict.fromkeys(chain(queued, *lately)))
        if only is not None:
            names = [only] if only in names else []
        shown = {
            name: _summed(
                [each[name] for each in lately if name in each],
                weight(name),
                *queued.get(name, _NOTHING),
            )
            for name in names[:MAX_PAGE]
        }
        full = any(len(each) >= MAX_TALLIES for each in lately)
        return shown, only is None and (full or len(names) > MAX_PAGE)


def _summed(parts: list[list[float]], weight: float, queued: int, lines: Lines) -> TenantStats:
    counts: dict[str, Any] = {
        name: sum(int(part[place]) for part in parts) for name, place in _PLACES.items()
    }
    longest = micros(max((part[-1] for part in parts), default=0.0)) / 1e6
    return TenantStats(**counts, longest_wait=longest, weight=weight, queued=queued, lines=lines)
