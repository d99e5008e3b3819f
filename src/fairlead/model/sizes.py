"""Amounts of memory as callers give them: a number of bytes, or text such as "512MB"."""

from __future__ import annotations

import re

__all__ = ("in_bytes", "size_rule")

_LEAST = 16 * 1024**2  # bytes: an interpreter alone takes about as much
_UNITS = {"": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
_TEXT = re.compile(r"([0-9]{1,18})\s*(KB|MB|GB|)\Z", re.IGNORECASE)


def in_bytes(value: object) -> int | None:
    """The bytes that an amount stands for; None if it is none, or too little for a process."""
    size = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if isinstance(value, str) and (found := _TEXT.match(value.strip())):
        size = int(found[1]) * _UNITS[found[2].upper()]
    return size if _LEAST <= size < 2**63 else None


def size_rule() -> str:
    """What an amount must be, for an error."""
    return "at least 16 MB, given in bytes or as text such as '64MB', '512MB', '2GB'"
