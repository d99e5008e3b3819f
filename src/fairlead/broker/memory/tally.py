"""Counters of one queue: what happened in it, and to whom in the last hours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.broker.stats import (
    COUNTERS,
    HISTOGRAMS,
    HOUR,
    MAX_TALLIES,
    TALLIED,
    Histogram,
    QueueStats,
    TenantStats,
    bucket,
    last_minute,
    micros,
)
from fairlead.broker.verbs import MAX_PAGE

__all__ = ("Tally",)


class _Times:
    """A histogram that grows."""

    __slots__ = ("counts", "largest", "sum")

    def __init__(self) -> None:
        self.counts = list(Histogram().counts)
        self.sum = self.largest = 0  # microseconds

    def add(self, seconds: float) -> None:
        took = micros(seconds)
        self.counts[bucket(seconds)] += 1
        self.sum += took
        self.largest = max(self.largest, took)

    def shown(self) -> Histogram:
        return Histogram(counts=tuple(self.counts), sum=self.sum / 1e6, largest=self.largest / 1e6)


class Tally:
    """What is counted of one queue."""

    __slots__ = ("_counts", "_minute", "_recent", "_times", "hours")

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._times = {name: _Times() for name in HISTOGRAMS}
        self._minute = 0
        self._recent = (0, 0)  # attempts that began in that minute, and in the one before
        self.hours: dict[int, dict[str, list[int]]] = {}  # by tenant: TALLIED, longest wait

    def add(self, counter: str) -> None:
        """Count something that belongs to nobody."""
        self._counts[counter] += 1

    def time(self, histogram: str, seconds: float) -> None:
        """Count how long something took."""
        self._times[histogram].add(seconds)

    def count(self, counter: str, tenant: str, now: float) -> None:
        """Count something that one tenant has a part in."""
        self._counts[counter] += 1
        own = self._own(tenant, now)
        if own is not None:
            own[TALLIED.index(counter)] += 1

    def started(self, tenant: str, waited: float, now: float) -> None:
        """Count an attempt that began, and how long it had been runnable."""
        self.count("started", tenant, now)
        self.time("wait", waited)
        own = self._own(tenant, now)
        if own is not None:
            own[-1] = max(own[-1], micros(waited))
        minute = int(now // 60)
        if minute != self._minute:
            previous = self._recent[0] if minute == self._minute + 1 else 0
            self._minute, self._recent = minute, (0, previous)
        self._recent = (self._recent[0] + 1, self._recent[1])

    def _own(self, tenant: str, now: float) -> list[int] | None:
        tenants = self.hours.setdefault(int(now // HOUR), {})
        own = tenants.get(tenant)
        if own is None and len(tenants) < MAX_TALLIES:
            own = tenants[tenant] = [0] * (len(TALLIED) + 1)
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
        shown: dict[str, Any] = {name: each.shown() for name, each in self._times.items()}
        shown.update(self._counts)
        return QueueStats(deferred=deferred, **shown)

    def tenants(
        self, now: float, weight: Callable[[str], float]
    ) -> tuple[dict[str, TenantStats], bool]:
        """Those with something in this hour or the last one, and whether there are others."""
        hour = int(now // HOUR)
        lately = [each for each in (self.hours.get(hour), self.hours.get(hour - 1)) if each]
        names = list(dict.fromkeys(name for each in lately for name in each))
        shown = {
            name: _summed([each[name] for each in lately if name in each], weight(name))
            for name in names[:MAX_PAGE]
        }
        full = any(len(each) >= MAX_TALLIES for each in lately)
        return shown, full or len(names) > MAX_PAGE


def _summed(parts: list[list[int]], weight: float) -> TenantStats:
    *counts, _ = map(sum, zip(*parts, strict=True))
    longest = max(part[-1] for part in parts)
    return TenantStats(
        **dict(zip(TALLIED, counts, strict=True)), longest_wait=longest / 1e6, weight=weight
    )
