"""When attempts run out of time: one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol


class Timed(Protocol):
    """Something with a time limit."""

    def expire(self) -> None:
        """Its time is up."""
        ...


class Deadlines:
    """Calls ``expire`` in time.

    A timer of its own for every attempt would cost as much as the rest of it, and nearly all of
    them are cancelled unused. There are never more entries than slots, so that a look at all of
    them, once the earliest deadline has come, is cheap.
    """

    def __init__(self) -> None:
        self._at: dict[Timed, float] = {}  # by the loop's clock
        self._next = math.inf  # when the timer goes; never later than the earliest deadline
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._at)

    def add(self, timed: Timed, at: float) -> None:
        """Expire it at this moment of the loop's clock."""
        self._at[timed] = at
        if at < self._next:
            self._arm(at)

    def remove(self, timed: Timed) -> None:
        """It needs no deadline any more."""
        self._at.pop(timed, None)

    def close(self) -> None:
        """Forget all deadlines."""
        self._at.clear()
        self._arm(math.inf)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = at
        if at < math.inf:
            self._timer = asyncio.get_running_loop().call_at(at, self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        due = self._next  # the timer may come a tick of the clock early
        over = [timed for timed, at in self._at.items() if at <= max(now, due)]
        for timed in sorted(over, key=self._at.__getitem__):
            del self._at[timed]
            timed.expire()
        self._arm(min(self._at.values(), default=math.inf))
