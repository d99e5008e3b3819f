"""Ids that sort by the time they were made: UUIDv7 as 32 hex characters."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable

from fairlead.runtime.process_hooks import at_fork

_MANY = 256  # drawn at once: a draw is a system call, whatever its size
_SIZE = 8  # bytes of each
# What becomes of the first byte: two bits of it are always the same.
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))

_MILLISECOND = 1_000_000  # nanoseconds
_MOST_AHEAD = 10 * _MILLISECOND  # of the clock
_PART = 245  # nanoseconds: the least that always leads to another part
#: What stands for each part of a millisecond in an id, behind the version: a 4,096th of it each.
_PARTS = struct.pack(">4096H", *range(0x7000, 0x8000)).hex(" ", 2).split()

_drawn: list[str] = []  # randomness in stock, the variant in front; each goes into one id
at_fork(after_in_child=_drawn.clear)  # or a child would make ids of its parent's


def _maker() -> Callable[[], str]:
    """Return ``new_id``; what it changes are variables of its own, which takes half as long."""
    take, parts = _drawn.pop, _PARTS
    # The least moment of the next id, and of the last millisecond how ids of that begin. These are
    # one, because another thread may be in another millisecond.
    least = 0
    millisecond = 0, ""

    def new_id() -> str:
        """A fresh id; ids that one process makes one after the other sort in that order.

        Behind the milliseconds stand twelve bits of what is left of the time, a quarter of a
        microsecond each: tasks that are due at the same moment run in the order of their ids. An id
        that follows sooner, or after the clock was set back a little, has the next quarter. The
        rest is the operating system's randomness.
        """
        nonlocal least, millisecond
        try:
            chance = take()  # one step: no two threads get the same
        except IndexError:
            chance = _draw()
        now = time.time_ns()
        if now < least and now > least - _MOST_AHEAD:
            now = least
        least = now + _PART
        began, beginning = millisecond
        rest = now - began
        if not 0 <= rest < _MILLISECOND:
            milliseconds, rest = divmod(now, _MILLISECOND)
            beginning = milliseconds.to_bytes(6).hex()
            millisecond = now - rest, beginning
        # 4,096 / 1,000,000 of it, in numbers that Python divides at once.
        return f"{beginning}{parts[rest * 64 // 15_625]}{chance}"

    return new_id


def _draw() -> str:
    """Fill the stock, and take one out."""
    drawn = bytearray(os.urandom(_SIZE * _MANY))
    drawn[::_SIZE] = drawn[::_SIZE].translate(_VARIANT)
    _drawn.extend(drawn.hex(" ", _SIZE).split())
    return _drawn.pop()


new_id = _maker()
