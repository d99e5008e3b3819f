"""Ids that sort by the time they were made: UUIDv7 as 32 hex characters."""

from __future__ import annotations

import os
import time

__all__ = ("new_id",)

_VERSION = 0x7 << 76
_VARIANT = 0x2 << 62
_RANDOM = ~(0xF << 76 | 0x3 << 62)


def new_id() -> str:
    """A fresh id; ids of different milliseconds sort by time.

    The randomness is the operating system's, read anew each time: nothing here is shared with a
    forked child that could then make the same ids.
    """
    number = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return f"{number & _RANDOM | _VERSION | _VARIANT:032x}"
