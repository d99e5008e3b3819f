"""Limits on concurrency and rate: one kind for tenants, queues and named limiters.

Rates are GCRA: a moment and a count per limit (together the theoretical arrival time), no windows,
no buckets to refill. ``burst`` tasks may go at once, then one every ``1 / rate`` seconds.
"""

from __future__ import annotations

from types import UnionType

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
        if self.concurrency is not None:
            _check_count("concurrency", self.concurrency, 0)
        if self.rate is not None and not (
            _is_number(self.rate, int | float) and 0 < self.rate <= _MAX_RATE
        ):
            rule = f"a number above 0 and at most {_MAX_RATE:g} a second"
            raise InvalidOption("rate", self.rate, rule)
        _check_count("burst", self.burst, 1)


def _check_count(option: str, value: int, least: int) -> None:
    if not _is_number(value, int) or not least <= value <= _MAX_COUNT:
        raise InvalidOption(option, value, f"a whole number from {least} to {_MAX_COUNT}")


def _is_number(value: object, kind: type | UnionType) -> bool:
    # What was annotated is not what was given: nothing checks that for a caller.
    return isinstance(value, kind) and not isinstance(value, bool)


UNLIMITED = Limit()


def room_at(since: float, gone: int, rate: float, burst: int) -> float:
    """When one more may go, after ``gone`` went since ``since`` faster than the rate."""
    return since + (gone - burst + 1) / rate


def counted(since: float, gone: int, now: float, rate: float) -> tuple[float, int]:
    """The same two numbers after one more went.

    A count, not a sum of intervals: a sum would gather the rounding of every step. So would a
    count that began anew with each one that is just in time, hence the leeway.
    """
    late = now - (since + gone / rate) > PRECISION / 2
    return (now, 1) if late else (since, gone + 1)
