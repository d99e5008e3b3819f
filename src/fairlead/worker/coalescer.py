"""When the next exchange goes: at once, or a moment later together with what comes meanwhile."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

SPACING = 0.003  # seconds from one exchange to the next while tasks come one by one
FEW = 8  # outcomes that wait for no others
_REST = 0.005  # seconds without an exchange: what comes then comes to an idle worker
_AGE = 0.010  # seconds without such a rest after which there may be a stream
_MEMORY = 0.020  # seconds for which two outcomes in one exchange show that there is one
_LEAST = 0.0005  # seconds: a timer is no more exact than that


class Coalescer:
    """Lets an exchange wait for company while a worker keeps up with a stream of tasks.

    A call that settles and fetches one task costs the server three times as much for it as a call
    of five. A worker that answers each task at once makes calls of one, as many as the server has
    time for. So exchanges are spaced while there is a stream: the worker had no rest for a while,
    and lately several tasks ended at a time.

    Nothing else waits. Outcomes after a rest go at once. A caller who waits for each result before
    the next task, and a chain of tasks that follow each other, have one outcome at a time, which
    shows no stream. Where tasks wait in the queues, the slots come first.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.wake = asyncio.Event()  # something to exchange, or a slot that became free
        self._clock = clock
        self._sent_at = -math.inf
        self._busy_since = 0.0  # the last rest ended then
        self._together_at = -math.inf  # when an exchange last carried several outcomes
        self._may_wait = False  # the last exchange was answered, and no task waits for a slot
        self._hurries = False  # since the last exchange was sent

    def sent(self, outcomes: int) -> None:
        """An exchange with so many outcomes is on its way."""
        now = self._clock()
        if now - self._sent_at > _REST:
            self._busy_since = now
        self._sent_at, self._may_wait, self._hurries = now, False, False
        if outcomes > 1:
            self._together_at = now

    def answered(self, *, more: bool) -> None:
        """The last exchange was answered; ``more``: tasks wait, or may wait, in the queues."""
        self._may_wait = not more

    def hurry(self) -> None:
        """Let the next exchange go at once, also if one is under way."""
        self._hurries = True
        self.wake.set()

    def pause(self, outcomes: int) -> float:
        """Return the seconds for which the next exchange waits, with so many outcomes by now."""
        if not self._may_wait or self._hurries or not 0 < outcomes < FEW:
            return 0.0
        now = self._clock()
        if now - self._busy_since < _AGE or now - self._together_at > _MEMORY:
            return 0.0
        left = self._sent_at + SPACING - now
        return left if left > _LEAST else 0.0
