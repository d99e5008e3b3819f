"""Who waits for work: what it has in its hands, and how long it sleeps."""

from __future__ import annotations

import math
import time
from asyncio import Future
from collections.abc import Sequence

from fairlead.broker.redis.answers import handed
from fairlead.broker.verbs import Call, Taken

__all__ = ("LONGEST_SLEEP", "Taker", "Waiter")

LONGEST_SLEEP = 5.0  # seconds; a bell that was lost with a server is missed for so long at most
_SHORTEST_SLEEP = 0.001  # seconds until the alarm: a clock a bit behind is not asked in a spin


class Waiter:
    """One call of ``wait``: the token it took, and whether the alarm is its to keep."""

    def __init__(self, queues: Sequence[str], mail_bell: str) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self.mail_bell = mail_bell  # empty: mail is not its business
        self.tokens: list[bytes] = []  # bells to ring again, should it leave now
        self.alarm: float | None = None  # when to wake up for what is due then
        self.asking = False  # whether it was given the alarm just now, nobody knows yet
        self.failures = 0

    def told(self, due: float | None, *, holds: bool) -> None:
        """Note what the server said; once the alarm is ours it stays so until we leave."""
        self.asking = False
        self.tokens = []  # somebody else was faster, or it was about the alarm
        if holds or self.alarm is not None:
            wake = math.inf if due is None else max(due, _SHORTEST_SLEEP)
            self.alarm = time.monotonic() + wake

    def sleep(self, left: float) -> float:
        """How long to sleep now."""
        longest = min(left, LONGEST_SLEEP)
        return longest if self.alarm is None else min(longest, self.alarm - time.monotonic())


class Taker(Waiter):
    """One call of ``take``: a waiter that may be handed a task."""

    def __init__(
        self,
        call: Call,
        queues: Sequence[str],
        mail_bell: str,
        lease: float,
        end: Future[None],
    ) -> None:
        super().__init__(queues, mail_bell)
        self.call = call
        self.lease = lease
        self.leaves = False  # its incarnation exchanges, or the broker is closed
        self.end = end  # done when nothing can be handed over any more
        self.is_drained = False  # it listened until then

    def loan(self, entry: bytes) -> Taken:
        """The task that was handed over; of another wait it is known to nobody, and goes back."""
        number, lease = handed(entry)
        return Taken(found=True, leased=[lease]) if number == self.call.number else Taken()

    def finish(self) -> None:
        """Have it return soon."""
        self.leaves = True
        if not self.end.done():
            self.end.set_result(None)
