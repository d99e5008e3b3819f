"""Rates as people say them: so many a second, a minute or an hour."""

from __future__ import annotations

import re

#: A number a second, or text such as ``"5/s"``, ``"300/m"`` and ``"1000/h"``.
Rate = float | str

RATE_RULE = 'a number a second, or text such as "5/s", "300/m" or "1000/h"'

_TEXT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(?: ?/ ?(s|m|h))?\Z", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, None: 1.0}


def in_rate(value: object) -> float | None:
    """Return how many a second a rate means; None if it is none. The bounds are the limit's."""
    if isinstance(value, str):
        found = _TEXT.match(value.strip())
        return None if found is None else float(found[1]) / _UNITS[found[2]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None
