"""Ids that sort by the time they were made: UUIDv7 as 32 hex characters."""

from __future__ import annotations

import os
import struct
import time

from fairlead.runtime.process_hooks import at_fork

_MANY = struct.Struct("8s" * 256)  # drawn at once: a draw is a system call, whatever its size
# Which bits are random, and which are always the same, of each eight bytes that are drawn.
_RANDOM = int.from_bytes(((1 << 62) - 1).to_bytes(8) * 256)
_VARIANT = int.from_bytes((0x2 << 62).to_bytes(8) * 256)

_drawn: list[bytes] = []  # randomness in stock, the variant in front; each goes into one id
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
    now = time.time_ns()
    milliseconds = now // 1_000_000
    rest = now - milliseconds * 1_000_000
    moment = milliseconds << 16 | 0x7000 | (rest << 12) // 1_000_000
    return (moment.to_bytes(8) + chance).hex()


def _draw() -> bytes:
    """Fill the stock, and take one out."""
    drawn = int.from_bytes(os.urandom(_MANY.size)) & _RANDOM | _VARIANT
    first: bytes
    first, *others = _MANY.unpack(drawn.to_bytes(_MANY.size))
    _drawn.extend(others)
    return first
