"""When a call is repeated, for how long, and what is raised in the end: decided here, for all.

A connection that was lost (``redis.connection``), a line of numbered calls (``Caller``), a worker's
exchanges and whoever waits for a result all count their rounds here:

* What passes by itself (``BrokerError.passes``) is worth another round, with growing pauses.
  Anything else is raised at once.
* Once a round was ``Ambiguous`` the call stays so, whatever the later rounds come to: only a reply
  says what became of it. So it is repeated after every error, also one that is a defect of ours,
  and if its time ends first, it is ``Ambiguous`` that is raised.
* The time is that of the whole call, from its begin: rounds inside of rounds share it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    FairleadError,
    OutOfOrder,
    Refused,
    Unreachable,
)
from fairlead.runtime.component import within
from fairlead.runtime.randomness import generator

T = TypeVar("T")

LIMIT = 10.0  # seconds that a call may take, unless its caller says otherwise

_FIRST_PAUSE = 0.05  # seconds; doubles with each failure in a row
_LONGEST_PAUSE = 1.0
_MOST_DOUBLINGS = 10
_LEAST = 0.05  # seconds that another round has at least after one that was refused


def pause(failures: int) -> float:
    """How long to wait after so many failures in a row: full jitter, so that no crowd stays one."""
    longest = _FIRST_PAUSE * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
    return generator.random() * min(_LONGEST_PAUSE, longest)


class Limit:
    """Until when a call may go on, by the loop's clock."""

    #: Whether also what does not pass by itself is tried again.
    insists = False

    def __init__(
        self, until: float, in_doubt: float | None = None, *, tries: int | None = None
    ) -> None:
        """``tries`` is how many rounds there are at most; None: as many as there is time for."""
        self.until = until  # while nothing can have been done
        self.in_doubt = until if in_doubt is None else in_doubt  # once something may have been
        self.tries = tries

    async def pause(self, seconds: float) -> None:
        """Let some time pass between two rounds."""
        await asyncio.sleep(seconds)


class Insistence(Limit):
    """No limit at all, until somebody sets one: that of a worker, which has to know its leases."""

    insists = True

    def __init__(self) -> None:
        super().__init__(math.inf)
        self._news = asyncio.Event()

    def end(self, moment: float) -> None:
        """Go on no longer than this moment of the loop's clock; also with what is under way."""
        self.until = self.in_doubt = moment
        self._news.set()  # wakes those who pause now; the others look when their round has failed
        self._news.clear()

    async def pause(self, seconds: float) -> None:
        await within(seconds, self._news)


class Rounds:
    """What the rounds of one call came to so far."""

    def __init__(self, limit: Limit) -> None:
        self.count = 0  # those that failed
        self.last: BrokerError = Unreachable("the call was not tried")
        self.doubtful = False  # one of them may have been carried out
        self._limit = limit

    @property
    def until(self) -> float:
        """When the time is over."""
        return self._limit.in_doubt if self.doubtful else self._limit.until

    def meaning(self, error: Exception) -> BrokerError:
        """Return what an error of a round says about the call; raise it if it is none of a round.

        An error that nobody foresaw does not say what became of a call in doubt.
        """
        if isinstance(error, BrokerError):
            return error
        if not self.doubtful or isinstance(error, FairleadError):  # it is an answer
            raise error
        doubt = Ambiguous(f"the call may have been executed; then: {type(error).__name__}")
        doubt.__cause__ = error
        return doubt

    def failed(self, error: BrokerError, now: float, wait: float | None = None) -> float:
        """Take in how a round failed; the seconds to wait before the next.

        Raises what the caller may assume if there is no time for another, or no use. ``wait``
        is given where somebody else makes the pause.
        """
        self.count += 1
        self.last = error
        self.doubtful = self.doubtful or isinstance(error, Ambiguous)
        if self._limit.tries is not None:
            wait = 0.0  # somebody has another way, and is in a hurry to take it
            if self.count >= self._limit.tries:
                self.give_up()
        wait = pause(self.count) if wait is None else wait
        # So late a round would end without a reply, and make a refusal that is sure a doubt.
        least = _LEAST if isinstance(error, Refused) and not self.doubtful else 0.0
        if now + wait + least >= self.until or not self._worth_repeating(error):
            self.give_up()
        return wait

    def give_up(self) -> NoReturn:
        """Raise what the caller may assume after all rounds, not only after the last."""
        if self.doubtful and not isinstance(self.last, Ambiguous):
            raise Ambiguous(
                f"the call may have been executed; repeating it failed: {self.last}"
            ) from self.last
        raise self.last

    def _worth_repeating(self, error: BrokerError) -> bool:
        if isinstance(error, OutOfOrder):
            return False  # a later number was carried out: nobody can be asked about this one
        if isinstance(error, Refused) and error.cause == "emptied":
            return False  # another server stands in its place, which knows nothing of it
        if isinstance(error, Unreachable):
            return error.passes  # not where the connection was closed here, by ourselves
        return error.passes or self.doubtful or self._limit.insists


def undone(error: Exception) -> bool:
    """Whether it says that nothing was done, and it may go better another time."""
    return isinstance(error, BrokerError) and error.passes and not isinstance(error, Ambiguous)


class OtherConnection(Unreachable):
    """A bound call was not sent: the connection of its incarnation is lost, and there is another.

    Perhaps to another server, which knows nothing of the last calls of the incarnation.
    """

    passes = False


def late(in_flight: bool) -> BrokerError:
    """What to tell one whose time is over before anybody could say what came of the call."""
    if in_flight:
        return Ambiguous("there was no answer in time; the call may have been executed, or will be")
    return Unreachable("the calls before this one took all the time it had; it was not sent")


async def repeated(
    ask: Callable[[Rounds], Awaitable[T]],
    limit: Limit,
    *,
    after: BrokerError | None = None,
    failed: Callable[[BrokerError], None] | None = None,
) -> T:
    """Ask until there is a reply or the time is over; ``failed`` hears of every round that failed.

    Only for what may be repeated: a numbered call under its number, or a read. ``after`` is what
    came of the first round, if that was made already.
    """
    clock = asyncio.get_running_loop().time
    rounds = Rounds(limit)
    while True:
        try:
            if after is not None:
                raise after
            return await ask(rounds)
        except Exception as raised:  # noqa: BLE001 - what it means is decided there
            error, after = rounds.meaning(raised), None
            if failed is not None:
                failed(error)
            wait = rounds.failed(error, clock())
        await limit.pause(wait)
