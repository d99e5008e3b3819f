"""Lengths of time as callers give them: a number of seconds, a timedelta, or text such as "5m"."""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta

Duration = float | int | str | timedelta  # seconds, "90s", "5m", "1h", "7d", or a timedelta

LEAST_LIMIT = 0.001  # seconds that a call must be given

_LONGEST = 10 * 365 * 86_400.0  # ten years: further off is a mistake in units
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\Z")


def in_seconds(value: object, least: float = 0.0) -> float | None:
    """The seconds that a duration stands for; None if it is none, or out of bounds."""
    number: float
    if isinstance(value, bool):
        return None
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, int | float):
        number = value
    elif isinstance(value, str) and (found := _TEXT.match(value.strip())):
        number = float(found[1]) * _UNITS[found[2]]
    else:
        return None
    # Compared before it becomes a float: of a huge integer there is none. NaN fails, as it should.
    return float(number) if least <= number <= _LONGEST else None


def limit_in_seconds(value: object) -> float | None:
    """The same for the time limit of a call. Text may be a bare number: settings have no other."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # then it has a unit, or is wrong
            value = float(value)
    return in_seconds(value, LEAST_LIMIT)


def duration_rule(least: float = 0.0) -> str:
    """What a duration must be, for an error."""
    return (
        f"from {least:g} to {_LONGEST:g} seconds, "
        'given as a number, a timedelta or text such as "90s", "5m", "1h", "7d"'
    )
