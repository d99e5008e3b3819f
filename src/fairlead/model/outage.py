"""An outage of the broker, decided: when to spool, when to go back, and how fast to catch up.

    healthy ──a round failed──▶ suspect ──another, or silence──▶ spooling
       ▲ ▲─────────a round went well──┘                         │    ▲
       │                                          3 good probes │    │ 2 failed rounds, or silence
       └──────────nothing left to send────────── draining ◀─────┘────┘

The way back is longer than the way there, so a broker that comes and goes causes no storm: each
relapse doubles the time between two probes, and only a quiet while makes it short again. Time and
dice are arguments.
"""

from __future__ import annotations

from typing import Literal

import msgspec

BrokerState = Literal["healthy", "suspect", "spooling", "draining"]

FAILURES = 2  # rounds in a row that lead into the spool: the call and its one repetition
GOOD_PROBES = 3  # in a row that lead out of it
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0  # seconds between two probes; doubles with each relapse
QUIET = 30.0  # seconds without a relapse after which the pause is the first one again

_ORDER: tuple[BrokerState, ...] = ("healthy", "suspect", "draining", "spooling")


def worst(states: list[BrokerState]) -> BrokerState:
    """Return the state of several brokers together."""
    return max(states, key=_ORDER.index, default="healthy")


class Outage:
    """How one broker stands, as far as calls and probes tell. ``since`` is when that began."""

    def __init__(self, now: float = 0.0) -> None:
        self.state: BrokerState = "healthy"
        self.since = now
        self._failures = 0  # rounds in a row
        self._good = 0  # probes in a row
        self._relapses = 0
        self._left = 0.0  # when spooling was left the last time

    @property
    def is_away(self) -> bool:
        """Whether a call should not even be tried."""
        return self.state == "spooling"

    @property
    def is_doubted(self) -> bool:
        """Whether the last round failed."""
        return self._failures > 0

    def failed(self, now: float, *, sure: bool = False) -> bool:
        """Take in that a round of a call failed; whether the state is another one.

        ``sure``: another round would not tell more. The broker was given all the time there was and
        said nothing, for example.
        """
        self._failures += 1
        self._good = 0
        if self.state == "spooling":
            return False
        if sure or self._failures >= FAILURES:
            self._relapses = self._relapses + 1 if now - self._left < QUIET and self._left else 0
            return self._enter("spooling", now)
        return self.state == "healthy" and self._enter("suspect", now)

    def succeeded(self, now: float) -> bool:
        """Take in that a call went well; whether the state is another one.

        While spooling that changes nothing: it is an answer to a call from before.
        """
        self._failures = 0
        return self.state == "suspect" and self._enter("healthy", now)

    def probed(self, now: float, *, good: bool) -> bool:
        """Take in what a probe came to; whether the state is another one."""
        self._good = self._good + 1 if good else 0
        if self.state != "spooling" or self._good < GOOD_PROBES:
            return False
        self._failures, self._left = 0, now
        return self._enter("draining", now)

    def found(self, now: float) -> bool:
        """Take in that there is something to send; whether the state is another one."""
        return self.state in ("healthy", "suspect") and self._enter("draining", now)

    def drained(self, now: float) -> bool:
        """Take in that nothing is left to send; whether the state is another one."""
        return self.state == "draining" and self._enter("healthy", now)

    @property
    def patience(self) -> float:
        """How many times the usual silence a broker is given.

        One that answers to probes and then takes too long for calls, again and again, is not away
        but slow: it is given more time, up to four times as much.
        """
        return 2.0 ** min(self._relapses, 2)

    def pause(self, dice: float) -> float:
        """Return the seconds until the next probe; half of them by ``dice``, from [0, 1)."""
        longest = min(FIRST_PAUSE * 2.0 ** min(self._relapses, 16), LONGEST_PAUSE)
        return longest * (0.5 + dice / 2.0)

    def _enter(self, state: BrokerState, now: float) -> bool:
        self.state, self.since = state, now
        self._good = 0
        return True


class Ramp:
    """How much of the broker's measured speed a drain takes: little at first, half at most.

    Less while calls take longer than they might: what a drain sends is work for others, too, so it
    sets the pace at which all of them catch up. It is found as TCP finds the speed of a network:
    less with each batch while calls are slow, soon back below what was too much, and from there on
    slowly, so that calls are slow for a small part of the time only.
    """

    START, FACTOR, EVERY, MOST = 0.1, 2.0, 5.0, 0.5
    JITTER = 1.0  # seconds at most before the first batch, so that no crowd begins at once
    EXCESS = 0.010  # seconds by which calls may take longer than usual before a drain gives way
    SLOWER, FASTER = 0.7, 1.1  # factors of the share, with each batch
    CAREFUL = 1.1  # the factor with each second, near what was too much
    LEAST = 0.01  # of the broker's time, which a drain takes in any case
    FEW = 32  # tasks: a batch of fewer says little about the speed
    FORGET = 1.02  # by which the best speed is forgotten with each batch
    BATCH, BUSY = 256, 0.0025  # tasks in a batch, and seconds that it may keep the broker busy

    def __init__(self, now: float, dice: float) -> None:
        """``dice`` from [0, 1) says how long to wait before the first batch."""
        self.begins = now + self.JITTER * dice
        self._best = 0.0  # seconds that a task took, when the broker had least to do
        self._allowed = self.MOST  # the share that others leave to it
        self._safe = self.MOST  # up to which that grows with each batch
        self._gives_way = False  # calls were slow when the last batch was sent
        self._at = now  # when that was

    @property
    def batch(self) -> int:
        """How many tasks the next batch may have, so that others need not wait long for it."""
        if not self._best:
            return self.FEW
        return max(min(int(self.BUSY / self._best), self.BATCH), self.FEW)

    def share(self, now: float) -> float:
        """Return the part of the broker's speed that may be taken now."""
        steps = max(now - self.begins, 0.0) // self.EVERY
        return float(min(self.START * self.FACTOR ** min(steps, 16.0), self.MOST))

    def wait(self, now: float, busy: float, count: int, excess: float = 0.0) -> float:
        """Return the seconds to wait after so many tasks that took the broker ``busy`` seconds.

        A batch measures the speed: what it took is the share, the wait is the rest. It grows where
        others need the broker: a batch that took longer than before shows it, and calls that take
        longer than usual, by ``excess`` seconds. It ends where the drain has its least share.
        """
        share = self._adapted(now, excess)
        crowd = self._crowd(busy, count)
        longest = busy / crowd / self.LEAST
        return max(min(busy * crowd / share, longest), 2.0 * busy) - busy

    def _adapted(self, now: float, excess: float) -> float:
        """Return the share of the next batch; calls take ``excess`` seconds longer than usual."""
        passed, self._at = max(now - self._at, 0.0), now
        if excess > self.EXCESS:
            share = min(self._allowed, self.share(now))
            self._allowed = max(share * self.SLOWER, self.LEAST)
            if not self._gives_way:
                self._safe = self._allowed
            self._gives_way = True
        elif excess < self.EXCESS / 2.0:
            self._gives_way = False
            if self._allowed < self._safe:
                self._allowed = min(self._allowed * self.FASTER, self._safe)
            else:
                more = self._allowed * self.CAREFUL ** min(passed, 1.0)
                self._allowed = min(more, self.MOST)
        return min(self._allowed, self.share(now))

    def _crowd(self, busy: float, count: int) -> float:
        """Return how many times the shortest time of a task the last ones took."""
        if count < self.FEW or busy <= 0.0:
            return 1.0
        each = busy / count
        self._best = min(self._best * self.FORGET, each) if self._best else each
        return each / self._best


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """When a call was made, by a clock that can be set and by one that cannot."""

    wall: float  # unix seconds
    boot: float  # seconds since the machine started, those asleep included
    boot_id: str  # which start that was; empty if the machine does not tell


def elapsed(then: Moment, now: Moment) -> float:
    """Return the seconds since a call, never less than none.

    The wall clock counts only where the machine was started anew, or on another machine.
    """
    if then.boot_id and then.boot_id == now.boot_id:
        return max(now.boot - then.boot, 0.0)
    return max(now.wall - then.wall, 0.0)


def remaining(delay: float, deadline: float | None, passed: float) -> tuple[float, float | None]:
    """Return what is left of a delay and of a deadline; one that is over has nothing left."""
    left = None if deadline is None else max(deadline - passed, 0.0)
    return max(delay - passed, 0.0), left
