"""The clocks of this machine."""

from __future__ import annotations

import time

#: Counts on while the machine sleeps, which ``time.monotonic`` does not everywhere.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock:
    """A clock that may be set, and one that only counts. Tests hand in others."""

    def wall(self) -> float:
        """Return unix seconds."""
        return time.time()

    def steady(self) -> float:
        """Return seconds since some moment, the machine's sleep included."""
        return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)
