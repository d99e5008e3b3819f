"""How long calls to the broker take at the moment, and how long one of this size may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from fairlead.broker.requests import Submission

_UP, _DOWN = 0.2, 0.02  # weights of the last call, if it took longer than others or not
_FORGET = 1.001  # by which the shortest time is forgotten with each call
_FRESH = 2.0  # seconds for which it says something
_LATELY = 0.2  # seconds after the last call in which it need not be asked for
_FREE = 64 * 1024  # bytes that take no time of their own
_SPEED = 256 * 1024  # bytes in a second that any link and any broker is expected to take


class Latency:
    """What the slower calls of all loops of a process take, beside the fastest.

    One that takes longer counts ten times as much as one that does not: so it is about what nine
    calls of ten do not exceed.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow = self._least = 0.0
        self._at = -_FRESH

    def heard(self, seconds: float) -> None:
        """Take in how long a call took. Threads may lose one to each other: it is an average."""
        now = self._clock()
        slow = self._slow if now - self._at < _FRESH else seconds
        self._slow = slow + (_UP if seconds > slow else _DOWN) * (seconds - slow)
        self._least = min(self._least * _FORGET or seconds, seconds)
        self._at = now

    @property
    def is_known(self) -> bool:
        """Whether there was a call just now."""
        return self._clock() - self._at < _LATELY

    @property
    def excess(self) -> float:
        """By how much slower calls took longer than the fastest lately; 0 if there were none."""
        return self._slow - self._least if self._clock() - self._at < _FRESH else 0.0


def transfer_time(submissions: Iterable[Submission]) -> float:
    """Return the seconds to add to the usual silence of a broker."""
    size = sum(len(each.message.body) for each in submissions)
    return max(size - _FREE, 0) / _SPEED
