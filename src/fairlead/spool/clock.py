"""How old a record is, by a clock that can be set and by one that cannot."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fairlead.spool.frames import Header

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_STEP = 60.0  # seconds by which the clock of the wall was set, from which a new file tells


def since_boot() -> float:
    """Return the seconds since the machine started, those asleep included."""
    return time.clock_gettime(_STEADY)


@cache
def boot() -> bytes:
    """Return which start of the machine this is: 16 bytes; without such, this process is told."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return os.urandom(16)


class Clock:
    """Tells the time of an append, and what was appended before a time.

    The time of a record is that of the wall when its file was begun, plus what has passed since by
    the steady clock. So within one boot its age is known, however the wall's clock was set.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall, self.steady = wall, steady
        self.boot = boot()

    def offset(self) -> float:
        """Return by how much the clock of the wall is ahead of the steady one."""
        return self._wall() - self.steady()

    def is_set(self, header: Header) -> bool:
        """Return whether the clock of the wall was set since a file was begun."""
        return abs(self.offset() - header.offset) > _STEP

    def before(self, header: Header, age: float) -> float:
        """Return the time, as the records of a file tell it, that was ``age`` seconds ago."""
        if header.boot == self.boot:
            return self.steady() + header.offset - age
        return self._wall() - age
