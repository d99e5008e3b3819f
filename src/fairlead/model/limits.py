"""Limits on concurrency and rate: one kind for tenants, queues and named limiters.

Rates are GCRA: a moment and a count per limit (together the theoretical arrival time), no windows,
no buckets to refill. ``burst`` tasks may go at once, then one every ``1 / rate`` seconds.

A named limiter may have a breaker: what it limits is given a rest after so many failures in a row.
To those who wait that is one more reason why there is no room.
"""

from __future__ import annotations

import math
from types import UnionType
from typing import Literal

import msgspec

from fairlead.model.errors import InvalidOption

PRECISION = 1e-6  # seconds; unix times are floats, their sums are exact to a quarter of that

_MAX_COUNT = 1_000_000
_MAX_RATE = 1_000_000.0
_MAX_COOLDOWN = 86_400.0  # a day

CircuitState = Literal["", "closed", "open", "half_open"]  # empty: there is no breaker


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``concurrency`` at a time, and at most ``rate`` a second after ``burst`` at once."""

    concurrency: int | None = None  # None: no limit
    rate: float | None = None  # a second; None: no limit
    burst: int = 1

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, 0)
        if self.rate is not None and not (
            _is_number(self.rate, int | float) and 0 < self.rate <= _MAX_RATE
        ):
            rule = f"a number above 0 and at most {_MAX_RATE:g} a second"
            raise InvalidOption("rate", self.rate, rule)
        check_count("burst", self.burst, 1)


def check_count(option: str, value: int, least: int) -> None:
    """Refuse what is not a whole number from ``least`` on."""
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


# -- breakers ----------------------------------------------------------------------------------


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """Opens after ``failures`` in a row, for ``cooldown`` seconds; then ``probes`` at a time go."""

    failures: int | None = None  # None: no breaker
    cooldown: float = 30.0  # seconds
    probes: int = 1

    def __post_init__(self) -> None:
        if self.failures is not None:
            check_count("failures", self.failures, 1)
        if not (_is_number(self.cooldown, int | float) and 0 < self.cooldown <= _MAX_COOLDOWN):
            rule = f"a number of seconds above 0 and at most {_MAX_COOLDOWN:g}"
            raise InvalidOption("cooldown", self.cooldown, rule)
        check_count("probes", self.probes, 1)


NO_BREAKER = Breaker()


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """How a breaker stands: closed, open until its cooldown is over, half open from then on.

    Only what was lent since it opened last has a say; those are its probes while it is half open.
    What was lent earlier tells of a time that is over, in failing as in succeeding.
    """

    failed: int = 0  # in a row
    opened_at: float | None = None  # None: closed
    last_token: int = 0  # that had been given when it opened
    probing: int = 0  # probes that run

    def state(self, breaker: Breaker, now: float) -> CircuitState:
        """For people."""
        if breaker.failures is None:
            return ""
        if self.opened_at is None:
            return "closed"
        return "half_open" if self.open_until(breaker, now) is None else "open"

    def open_until(self, breaker: Breaker, now: float) -> float | None:
        """When the first probe may go; None if it is not open."""
        if self.opened_at is None:
            return None
        until = self.opened_at + breaker.cooldown
        return until if now < until else None

    def closed_until(self, breaker: Breaker, now: float) -> float | None:
        """None if one more may go; else when it may, infinity meaning: when a probe ends."""
        if self.opened_at is None:
            return None
        until = self.open_until(breaker, now)
        return math.inf if until is None and self.probing >= breaker.probes else until

    def lent(self) -> Circuit:
        """One more goes: while it is half open, that is a probe."""
        if self.opened_at is None:
            return self
        return msgspec.structs.replace(self, probing=self.probing + 1)

    def after(
        self, well: bool | None, token: int, breaker: Breaker, *, now: float, last_token: int
    ) -> Circuit:
        """The end of an attempt under this token; None if it says neither good nor bad."""
        if breaker.failures is None or token <= self.last_token:
            return self
        if self.opened_at is not None:  # a probe
            if well is None:
                return msgspec.structs.replace(self, probing=self.probing - 1)
            if well:
                return Circuit(last_token=self.last_token)
            return _opened(self.failed + 1, now, last_token)
        if well is None:
            return self
        if well:
            return msgspec.structs.replace(self, failed=0) if self.failed else self
        if self.failed + 1 >= breaker.failures:
            return _opened(self.failed + 1, now, last_token)
        return msgspec.structs.replace(self, failed=self.failed + 1)

    def under(self, breaker: Breaker, *, now: float, last_token: int) -> Circuit:
        """The same with other settings, which hold at once."""
        if breaker.failures is None:
            return Circuit()
        if self.opened_at is None and self.failed >= breaker.failures:
            return _opened(self.failed, now, last_token)
        return self


def _opened(failed: int, now: float, last_token: int) -> Circuit:
    return Circuit(failed=failed, opened_at=now, last_token=last_token)
