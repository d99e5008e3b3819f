"""Ids that sort by the time they were made: UUIDv7 as 32 hex characters."""

from __future__ import annotations

import os
import struct
import time

from fairlead.runtime.process_hooks import at_fork

_VARIANT = 0x2 << 62
_RANDOM = (1 << 62) - 1
_MANY = struct.Struct("256Q")  # drawn at once: a draw is a system call, whatever its size

_drawn: list[int] = []  # randomness in stock; each number goes into one id
at_fork(after_in_child=_drawn.clear)  # or a child would make ids of its parent's


def new_id() -> str:
    """A fresh id; ids that one process makes one after the other sort in that order.

    Behind the milliseconds stand twelve bits of what is left of the time, a quarter of a
    microsecond each: tasks that are due at the same moment run in the order of their ids. The rest
    is the operating system's randomness.
    """
    try:
        chance = _drawn.pop()  # one step: no two threads get the same
    except IndexError:
        chance = _draw()
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    return "%012x7%03x%016x" % (milliseconds, (rest << 12) // 1_000_000, chance)  # noqa: UP031 - quicker


def _draw() -> int:
    """Fill the stock, and take one out."""
    numbers: tuple[int, ...] = _MANY.unpack(os.urandom(_MANY.size))
    _drawn.extend(number & _RANDOM | _VARIANT for number in numbers[1:])
    return numbers[0] & _RANDOM | _VARIANT
