"""Ids that sort by the time they were made: UUIDv7 as 32 hex characters."""

from __future__ import annotations

import os
import struct
import time

from fairlead.runtime.process_hooks import at_fork

_MANY = 256  # drawn at once: a draw is a system call, whatever its size
_SIZE = 8  # bytes of each
# What becomes of the first byte: two bits of it are always the same.
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))

_MILLISECOND = 1_000_000  # nanoseconds
_MOST_AHEAD = 10 * _MILLISECOND  # of the clock
#: What stands for each part of a millisecond in an id, behind the version: a 4,096th of it each.
_PARTS = struct.pack(">4096H", *range(0x7000, 0x8000)).hex(" ", 2).split()

_drawn: list[str] = []  # randomness in stock, the variant in front; each goes into one id
at_fork(after_in_child=_drawn.clear)  # or a child would make ids of its parent's

# Of the last id: its millisecond in nanoseconds, how ids of that begin, and its part of it. All at
# once, because another thread may be in another millisecond.
_last: tuple[int, str, int] = 0, "", -1


def new_id() -> str:
    """A fresh id; ids that one process makes one after the other sort in that order.

    Behind the milliseconds stand twelve bits of what is left of the time, a quarter of a
    microsecond each: tasks that are due at the same moment run in the order of their ids. An id
    that follows sooner, or after the clock was set back a little, has the next quarter. The rest
    is the operating system's randomness.
    """
    global _last  # noqa: PLW0603 - an id follows the one before
    try:
        chance = _drawn.pop()  # one step: no two threads get the same
    except IndexError:
        chance = _draw()
    now = time.time_ns()
    began, beginning, last = _last
    rest = now - began
    if not -_MOST_AHEAD < rest < _MILLISECOND:
        milliseconds, rest = divmod(now, _MILLISECOND)
        began, beginning, last = now - rest, milliseconds.to_bytes(6).hex(), -1
    part = rest * 64 // 15_625  # 4,096 / 1,000,000 of it, in numbers that Python divides at once
    if part <= last:
        part = last + 1
        if part == len(_PARTS):
            began, part = began + _MILLISECOND, 0
            beginning = (began // _MILLISECOND).to_bytes(6).hex()
    _last = began, beginning, part
    return f"{beginning}{_PARTS[part]}{chance}"


def _draw() -> str:
    """Fill the stock, and take one out."""
    drawn = bytearray(os.urandom(_SIZE * _MANY))
    drawn[::_SIZE] = drawn[::_SIZE].translate(_VARIANT)
    first, *others = drawn.hex(" ", _SIZE).split()
    _drawn.extend(others)
    return first
