"""Limits on concurrency and rate: one kind for tenants, queues and named limiters.

Rates are GCRA: one stored moment (the theoretical arrival time) per limit, no windows, no buckets
to refill. ``burst`` tasks may go at once, then one every ``1 / rate`` seconds.
"""

from __future__ import annotations

import math

import msgspec

from fairlead.model.errors import InvalidOption

__all__ = ("UNLIMITED", "Limit", "room_at")

_MAX_COUNT = 1_000_000
_MAX_RATE = 1_000_000.0


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``concurrency`` at a time, and at most ``rate`` a second after ``burst`` at once."""

    concurrency: int | None = None  # None: no limit
    rate: float | None = None  # a second; None: no limit
    burst: int = 1

    def __post_init__(self) -> None:
        if self.concurrency is not None and not 0 <= self.concurrency <= _MAX_COUNT:
            raise InvalidOption("concurrency", self.concurrency, f"from 0 to {_MAX_COUNT}")
        if self.rate is not None and not (math.isfinite(self.rate) and 0 < self.rate <= _MAX_RATE):
            raise InvalidOption("rate", self.rate, f"above 0 and at most {_MAX_RATE:g} a second")
        if not 1 <= self.burst <= _MAX_COUNT:
            raise InvalidOption("burst", self.burst, f"from 1 to {_MAX_COUNT}")


UNLIMITED = Limit()


def room_at(arrival: float, now: float, rate: float, burst: int) -> tuple[float, float]:
    """When one more may go, and the theoretical arrival time to store once it goes.

    The first is at most ``now`` when it may go at once.
    """
    interval = 1.0 / rate
    base = max(arrival, now)
    # Not (base + interval) - burst * interval: rounding would put a first task after ``now``.
    return base - (burst - 1) * interval, base + interval
