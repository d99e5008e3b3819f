"""Limits on concurrency and rate: one kind for tenants, queues and named limiters.

Rates are GCRA: a moment and a count per limit (together the theoretical arrival time), no windows,
no buckets to refill. ``burst`` tasks may go at once, then one every ``1 / rate`` seconds.
"""

from __future__ import annotations

import math

import msgspec

from fairlead.model.errors import InvalidOption

__all__ = ("PRECISION", "UNLIMITED", "Limit", "counted", "room_at")

PRECISION = 1e-6  # seconds; unix times are floats, their sums are exact to a quarter of that

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


def room_at(since: float, gone: int, rate: float, burst: int) -> float:
    """When one more may go, after ``gone`` went since ``since`` faster than the rate."""
    return since + (gone - burst + 1) / rate


def counted(since: float, gone: int, now: float, rate: float) -> tuple[float, int]:
    """The same two numbers after one more went.

    A count, not a sum of intervals: a sum would gather the rounding of every step.
    """
    return (now, 1) if since + gone / rate <= now else (since, gone + 1)
