"""Amounts of bytes as callers give them: a whole number, or text such as "512MB" or "256MiB"."""

from __future__ import annotations

import re

_LEAST = 16 * 1024**2  # bytes: an interpreter alone takes about as much
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_TEXT = re.compile(r"([0-9]{1,18})\s*(?:([KMG])i?B|)\Z", re.IGNORECASE)


def in_bytes(value: object, least: int = _LEAST) -> int | None:
    """The bytes that an amount stands for; None if it is none, or less than that of a process."""
    size = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if isinstance(value, str) and (found := _TEXT.match(value.strip())):
        size = int(found[1]) * _UNITS[(found[2] or "").upper()]
    return size if least <= size < 2**63 else None


def size_rule(least: int = _LEAST) -> str:
    """What an amount must be, for an error."""
    amount = f"at least {least // 1024**2} MB"
    return f"{amount}, given in bytes or as text such as '64MB', '512MB', '2GB'"
