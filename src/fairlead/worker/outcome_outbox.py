"""Outcomes that the broker has not answered for, in the order in which they go to it.

In an outage they are kept in the spool as well, if there is one, so that they outlive this process.
An outcome is kept with the number of the exchange that carries it: so what goes with which exchange
is planned before it is kept, and the plan is followed. See ``fairlead.fallback.outcomes``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from fairlead.broker import Caller
from fairlead.broker.checks import check_exchange
from fairlead.broker.requests import MAX_BYTES, MAX_EXCHANGE, Settled
from fairlead.fallback.codec import moment_now
from fairlead.fallback.outcomes import KeptOutcome, Outcomes, due
from fairlead.model.errors import FairleadError
from fairlead.model.lifecycle import Settlement
from fairlead.model.outage import Moment, elapsed
from fairlead.model.spool_errors import SpoolFailed, SpoolFull

log = logging.getLogger("fairlead.worker")

_FRESH = 0.5  # seconds; an outcome goes on its way at once if there is a broker
_LATER = 1.0  # seconds before an outcome is sent again whose shard is away

_Key = tuple[str, int]  # id and token


class Batch:
    """What one exchange carries, and under which number."""

    __slots__ = ("answers", "in_doubt", "is_kept", "number", "settlements")

    def __init__(self, number: int, settlements: list[Settlement]) -> None:
        self.number = number
        self.settlements = settlements
        self.is_kept = False  # in the spool
        self.in_doubt = False  # a call with it got no reply: it keeps its number
        self.answers: Sequence[Settled] | None = None  # of the broker


class OutcomeOutbox:
    """Plans exchanges, and keeps their outcomes while the broker is away."""

    def __init__(
        self,
        caller: Caller,
        outcomes: Outcomes | None,
        *,
        is_away: Callable[[], bool],
        spooling: Callable[[str, int], None],
        refused: Callable[[str, int], None],
        woken: Callable[[], None],
    ) -> None:
        """``spooling`` is called with id and token of each outcome before it goes to the disk.

        ``refused`` is called with them if the spool was too full for it; ``woken`` when there is
        something to send again.
        """
        self._caller = caller
        self._outcomes = outcomes
        self._is_away = is_away
        self._spooling, self._refused = spooling, refused
        self._planned: deque[Batch] = deque()
        self._waiting: deque[Settlement] = deque()  # behind all that is planned
        self._off: list[Settlement] = []  # to be sent again when the timer goes off
        self._timer: asyncio.TimerHandle | None = None
        self._woken = woken
        self.moments: dict[_Key, Moment] = {}  # when those ended that are due again later
        self._sequences: dict[_Key, int] = {}  # in the spool
        self._keeping: asyncio.Task[None] | None = None
        self._is_full = False  # which was said
        self._handed_over = False  # others may use numbers of this worker

    @property
    def pending(self) -> int:
        """Outcomes that the next exchanges will carry."""
        if not self._planned:
            return len(self._waiting)
        return len(self._waiting) + sum(len(batch.settlements) for batch in self._planned)

    @property
    def unsettled(self) -> int:
        """Outcomes that the broker has not answered for."""
        return self.pending + len(self._off)

    def enter(self) -> None:
        """Begin, perhaps not for the first time."""
        self.renumber()
        if self._outcomes is not None:
            self._outcomes.enter(self._caller.incarnation)

    def add(self, settlement: Settlement) -> None:
        """Take a decided outcome."""
        self._waiting.append(settlement)
        if settlement.delay:
            self.moments[_key(settlement)] = moment_now()
        if self._outcomes is not None and self._is_away():
            self.keep_soon()

    def take(self) -> Settlement | None:
        """Take the oldest outcome out again: in a slot process somebody else carries it."""
        self.moments.clear()
        return self._waiting.popleft() if self._waiting else None

    # -- exchanges -----------------------------------------------------------------------------

    def next(self) -> Batch:
        """Return what the next exchange carries, perhaps nothing.

        It is the same batch again until ``answered`` or ``split`` is called with it.
        """
        return self._planned[0] if self._planned else self._plan()

    def _plan(self) -> Batch:
        """Plan the exchange behind all others: 128 of the oldest outcomes, or 4 MiB."""
        settlements: list[Settlement] = []
        size = 0
        waiting = self._waiting
        for _ in range(min(len(waiting), MAX_EXCHANGE)):
            settlement = waiting.popleft()
            settlements.append(settlement)
            if settlement.result is not None:
                size += len(settlement.result)
                if size >= MAX_BYTES:
                    break
        batch = Batch(self.number(), settlements)
        if settlements:
            self._planned.append(batch)
        return batch

    def number(self) -> int:
        """Reserve the next number."""
        return self._caller.reserve(_microseconds() if self._handed_over else 0)

    def due(self, batch: Batch) -> list[Settlement]:
        """Return the settlements as they are to be sent now: delays count from the outcome."""
        now = moment_now()
        return [self._due(settlement, now) for settlement in batch.settlements]

    def _due(self, settlement: Settlement, now: Moment) -> Settlement:
        moment = self.moments.get(_key(settlement))
        if moment is None or elapsed(moment, now) < _FRESH:
            return settlement
        return due(settlement, moment, now)

    async def answered(self, batch: Batch, answers: Sequence[Settled]) -> None:
        """Cross off what the broker has answered for; put off what its shard was not there for."""
        batch.answers = answers
        if not batch.settlements:
            return
        self._planned.remove(batch)
        if not (self.moments or self._sequences or "later" in answers):
            return  # as a rule: nothing else is known of any of them
        done: list[tuple[int, Settled]] = []
        is_put_off = False
        for settlement, answer in zip(batch.settlements, answers, strict=True):
            if answer == "later":
                is_put_off = True
                self._put_off(settlement)
                continue
            if self.moments:
                self.moments.pop(_key(settlement), None)
            if self._sequences:
                sequence = self._sequences.pop(_key(settlement), None)
                if sequence is not None:
                    done.append((sequence, answer))
        if self._outcomes is not None:
            if is_put_off and not batch.is_kept:
                self._keep_now(batch)
            if done:
                await self._outcomes.answered(done)

    def split(self, batch: Batch) -> list[Batch]:
        """Return a batch for each outcome of one: they are sent alone, before all others."""
        self._planned.remove(batch)
        singles = [Batch(0, [settlement]) for settlement in batch.settlements]
        for single in reversed(singles):
            single.is_kept = batch.is_kept
            self._planned.appendleft(single)
        self.renumber()
        return singles

    def renumber(self) -> None:
        """Give all planned exchanges new numbers, beyond every one that the spool may know."""
        for batch in self._planned:
            batch.number = self._caller.reserve(_microseconds())

    def _put_off(self, settlement: Settlement) -> None:
        """Send it again in a while: its shard is away, and others have something to do."""
        self._off.append(settlement)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATER, self._again)

    def _again(self) -> None:
        self._timer = None
        self._waiting.extend(self._off)
        self._off.clear()
        self._woken()

    # -- the spool -----------------------------------------------------------------------------

    def keep_soon(self) -> None:
        """Keep what is not kept yet: an exchange has failed."""
        if self._outcomes is not None and self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="keep")

    def _keep_now(self, batch: Batch) -> None:
        """Keep what is left of an exchange that was answered in part."""
        if self._keeping is None:
            keeping = self._keep(batch)
            self._keeping = asyncio.get_running_loop().create_task(keeping, name="keep")

    async def _keep(self, batch: Batch | None = None) -> None:
        try:
            batch = batch or self._unkept()
            while batch is not None:
                await self._keep_batch(batch)
                batch = self._unkept() if self._is_away() else None
        except (SpoolFull, SpoolFailed) as error:
            if not self._is_full:
                fields = {"outcomes": self.unsettled, "error": type(error).__name__}
                log.error("outcomes not kept on the disk: %s", error, extra=fields)  # noqa: TRY400
            self._is_full = True
        else:
            self._is_full = False
        finally:
            self._keeping = None

    def _unkept(self) -> Batch | None:
        """Return the next exchange whose outcomes are not kept; None if there is none."""
        for batch in self._planned:
            if not batch.is_kept:
                return batch
        return self._plan() if self._waiting else None

    async def _keep_batch(self, batch: Batch) -> None:
        assert self._outcomes is not None  # noqa: S101 - nothing is kept without
        fresh = [
            KeptOutcome(
                incarnation=self._caller.incarnation,
                number=batch.number,
                place=place,
                count=len(batch.settlements),
                moment=self.moments.get(_key(settlement)) or moment_now(),
                settlement=settlement,
            )
            for place, settlement in enumerate(batch.settlements)
            if _key(settlement) not in self._sequences and self._is_open(batch, place)
        ]
        batch.is_kept = True  # or cannot be
        if not fresh or not _is_sound(batch.settlements):
            return
        # Not afterwards: what a process has written outlives it, synced or not.
        for outcome in fresh:
            self._spooling(*_key(outcome.settlement))
        try:
            sequences = await self._outcomes.keep(fresh)
        except BaseException as error:
            batch.is_kept = False
            if isinstance(error, SpoolFull):  # a disk that failed may have them all the same
                for outcome in fresh:
                    self._refused(*_key(outcome.settlement))
            raise
        over: list[tuple[int, Settled]] = []  # answered meanwhile
        for outcome, sequence in zip(fresh, sequences, strict=True):
            if self._is_open(batch, outcome.place):
                self._sequences[_key(outcome.settlement)] = sequence
            elif batch.answers is not None:
                over.append((sequence, batch.answers[outcome.place]))
        if over:
            await self._outcomes.answered(over)

    def _is_open(self, batch: Batch, place: int) -> bool:
        return batch.answers is None or batch.answers[place] == "later"

    async def hand_over(self) -> int:
        """Leave what is unsettled to others, in the spool; return how much that is.

        For a worker that has ended. What the spool does not take stays here.
        """
        if self._outcomes is None:
            return 0
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
        if self._timer is not None:
            self._timer.cancel()
            self._again()
        while (batch := self._unkept()) is not None:
            await self._keep(batch)
            if not batch.is_kept:
                break
        count = len(self._sequences)
        if count:
            self._handed_over = True
            left = [each for batch in self._planned for each in batch.settlements]
            left += self._waiting
            self._planned.clear()
            self._waiting = deque(each for each in left if _key(each) not in self._sequences)
            for key in self._sequences:
                self.moments.pop(key, None)
            self._sequences.clear()
            log.warning("outcomes left in the spool", extra={"outcomes": count})
        self._outcomes.leave(self._caller.incarnation, is_left=count > 0)
        return count


def _key(settlement: Settlement) -> _Key:
    return settlement.id, settlement.token


def _is_sound(settlements: Sequence[Settlement]) -> bool:
    """Return whether a broker would take them: what it cannot digest must not come for ever."""
    try:
        check_exchange(settlements, (), None)
    except FairleadError:
        return False
    return True


def _microseconds() -> int:
    return int(time.time() * 1e6)
