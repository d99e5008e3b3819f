"""How long calls to the broker take at the moment: a drain gives way to them."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ("Latency",)

_WEIGHT = 0.2  # of the last call in the average
_FRESH = 2.0  # seconds for which it says something


class Latency:
    """A moving average over the calls of all loops of a process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._average = self._at = 0.0

    def heard(self, seconds: float) -> None:
        """Take in how long a call took. Threads may lose one to each other: it is an average."""
        now = self._clock()
        known = self._average if now - self._at < _FRESH else seconds
        self._average = known + _WEIGHT * (seconds - known)
        self._at = now

    @property
    def seconds(self) -> float:
        """How long calls took lately; 0 if there were none."""
        return self._average if self._clock() - self._at < _FRESH else 0.0
