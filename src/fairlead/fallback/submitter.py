"""One loop's way in: straight to the broker, or into the spool while that is away.

Each shard has a line of calls and group commits of its own, so that one which is away costs the
others nothing. Whatever names a task of another shard goes through a further one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fairlead.broker.call_sizes import Room
from fairlead.broker.repeats import Limit, late
from fairlead.broker.requests import MAX_ENQUEUE, Receipt, Submission
from fairlead.fallback.fallback import Fallback
from fairlead.fallback.latency import transfer_time
from fairlead.fallback.numbered_enqueues import LINKED, Doubt, NumberedEnqueuer
from fairlead.fallback.outages import leads_to_spool
from fairlead.fallback.spooled_ids import SpooledIds
from fairlead.model.errors import Ambiguous, BrokerError, InvalidInput, Unreachable
from fairlead.model.spool_errors import SpoolFailed, SpoolFull
from fairlead.runtime.batcher import Batcher, own_copy

_LEAST = 0.02  # seconds that a call to the broker has, however late its caller is
_EARLY = 0.01  # seconds that a timer may be early
_EXTRA = 1.0  # seconds beyond its time that a call may take for the disk
_LATE = 0.25  # seconds; a timer that is later shows that this process had no time to listen
Heard = Callable[[Sequence[Submission], Sequence[Receipt]], None]


class Submitter:
    """Takes submissions in for one loop. Receipts say where they are."""

    def __init__(self, fallback: Fallback, *, limit: float, heard: Heard) -> None:
        """``limit`` is how many seconds a call may take that does not say so itself.

        ``heard`` is called with what was taken in and what came of it.
        """
        self._fallback = fallback
        self._heard = heard
        self._limit = limit
        self._is_whole = len(fallback.parts.stores) == 1
        self._only: _Lane | None = None  # if there is one shard
        self._lanes: dict[str, _Lane] = {}
        self._hurried_lanes: dict[str, _Lane] = {}

    def submit(self, submission: Submission, until: float) -> Coroutine[Any, Any, Receipt]:
        """Enqueue one task; concurrent calls share a trip, or a write to the disk."""
        lane = self._lane_of(submission)
        if until < asyncio.get_running_loop().time() + lane.silence:
            lane = self._hurried(lane.shard)
        return lane.batcher.submit(submission, until)

    async def enqueue(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> list[Receipt]:
        """Enqueue tasks of one call, which may depend on each other."""
        until = asyncio.get_running_loop().time() + self._limit if limit is None else limit.until
        groups: dict[_Lane, list[int]] = {}
        if self._is_whole:
            groups[self._lane_of(submissions[0])] = list(range(len(submissions)))
        elif any(each.depends_on or each.fence for each in submissions):
            groups[self._lane(LINKED)] = list(range(len(submissions)))
        else:
            for place, each in enumerate(submissions):
                groups.setdefault(self._lane_of(each), []).append(place)
        receipts: dict[int, Receipt] = {}
        answers = await asyncio.gather(
            *(lane.enter([submissions[i] for i in group], until) for lane, group in groups.items()),
            return_exceptions=True,
        )
        for group, answer in zip(groups.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            receipts.update(zip(group, answer, strict=True))
        return [receipts[place] for place in range(len(submissions))]

    def line(self) -> NumberedEnqueuer:
        """Return a line for calls that go to the broker or fail, whatever their shards."""
        shards = list(self._fallback.parts.stores)
        return NumberedEnqueuer(self._fallback, shards[0] if self._is_whole else LINKED)

    def check_present(self, submissions: Sequence[Submission]) -> None:
        """Raise ``Unreachable`` if one of them would have to go into the spool."""
        fallback = self._fallback
        fallback.start()
        for each in submissions:
            if fallback.outages.is_away(fallback.shard_of(each.message)):
                raise Unreachable("the broker is away, and the task is not to be spooled")
            if fallback.ids.any(dependency.id for dependency in each.depends_on):
                raise Unreachable(
                    f"task {each.message.id!r} depends on one that is in the spool, and is not to "
                    "be spooled itself"
                )

    def failed(
        self, submissions: Sequence[Submission], error: BrokerError, began: float, until: float
    ) -> None:
        """Take in that a round of a call failed which is not to be spooled.

        It ``began`` then, and its caller had no more time than ``until``.
        """
        if not leads_to_spool(error):
            return
        fallback, now = self._fallback, asyncio.get_running_loop().time()
        for shard in {fallback.shard_of(each.message) for each in submissions}:
            silence = fallback.options.silence * fallback.outages.patience(shard)
            is_silent = now - began >= silence + transfer_time(submissions) - _EARLY
            if is_silent or now < until - _EARLY:  # else it is the caller who has no time
                sure = is_silent or not error.passes
                fallback.outages.failed(shard, error, sure=sure)

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest."""
        for lane in (*self._lanes.values(), *self._hurried_lanes.values()):
            await lane.batcher.close()

    def _lane_of(self, submission: Submission) -> _Lane:
        if self._is_whole:
            return self._only or self._begin()
        if submission.depends_on or submission.fence:
            return self._lane(LINKED)
        return self._lane(self._fallback.shard_of(submission.message))

    def _begin(self) -> _Lane:
        self._only = self._lane(next(iter(self._fallback.parts.stores)))
        return self._only

    def _lane(self, shard: str) -> _Lane:
        lane = self._lanes.get(shard)
        if lane is None:
            self._fallback.start()
            lane = self._lanes[shard] = _Lane(self._fallback, shard, self._heard)
        return lane

    def _hurried(self, shard: str) -> _Lane:
        """Return the lane of callers with less time than a broker has to answer.

        A trip ends when the time of the first caller does: these share none with the others.
        """
        lane = self._hurried_lanes.get(shard)
        if lane is None:
            lane = self._hurried_lanes[shard] = _Lane(self._fallback, shard, self._heard)
        return lane


class _Lane:
    """The way to one shard: one call in flight, and what comes meanwhile shares the next."""

    def __init__(self, fallback: Fallback, shard: str, heard: Heard) -> None:
        self._fallback = fallback
        self._heard = heard
        self.shard = shard
        self._line = NumberedEnqueuer(fallback, shard)
        self.batcher: Batcher[Submission, Receipt] = Batcher(
            self._flush, limit=MAX_ENQUEUE, fits=Room().takes, late=late, extra=_EXTRA
        )

    async def enter(self, submissions: list[Submission], until: float) -> list[Receipt]:
        """Return a receipt for each, from the broker or from the spool.

        Raises the first error; the others may have been accepted.
        """
        receipts: list[Receipt] = []
        for answer in await self._answers(submissions, Limit(until)):
            if isinstance(answer, Exception):
                raise answer
            receipts.append(answer)
        return receipts

    async def _flush(self, submissions: list[Submission]) -> Sequence[Receipt | Exception]:
        # The disk may take as long as the last of them has time; the others are told by ``late``.
        return await self._answers(submissions, Limit(self.batcher.earliest, self.batcher.latest))

    async def _answers(
        self, submissions: list[Submission], limit: Limit
    ) -> Sequence[Receipt | Exception]:
        """Return what came of each: a receipt, or an error of its own."""
        answers = await self._enter(submissions, limit)
        receipts = [answer for answer in answers if not isinstance(answer, Exception)]
        if len(receipts) == len(submissions):
            self._heard(submissions, receipts)
        else:
            both = zip(submissions, answers, strict=True)
            self._heard([each for each, a in both if not isinstance(a, Exception)], receipts)
        return answers

    async def _enter(
        self, submissions: list[Submission], limit: Limit
    ) -> Sequence[Receipt | Exception]:
        fallback = self._fallback
        if self._is_away(submissions):
            return await fallback.keep(submissions, until=limit.in_doubt)
        spooled = fallback.ids
        if len(spooled):
            # The broker would take a handle that it does not know for completed and forgotten.
            waiting = _behind(submissions, spooled)
            if waiting:
                return await self._enter_apart(submissions, waiting, limit)
        try:
            return await self._send(spooled.settled(submissions), limit.until)
        except BrokerError as error:
            if not leads_to_spool(error):
                raise
            doubt = error if isinstance(error, Doubt) else None
            try:
                return await fallback.keep(submissions, doubt, limit.in_doubt)
            except (SpoolFull, SpoolFailed) as full:
                if isinstance(error, Ambiguous):  # that nothing was done would be a lie
                    error.add_note(str(full))
                    raise error from full
                raise

    async def _enter_apart(
        self, submissions: list[Submission], waiting: set[int], limit: Limit
    ) -> list[Receipt | Exception]:
        """Send those that nothing in the spool stands before, and keep the others.

        They are tasks of several callers. An error concerns its own part only: a caller whose task
        the broker has must not hear that the spool is full.
        """
        free = [place for place in range(len(submissions)) if place not in waiting]
        behind = sorted(waiting)
        answers: dict[int, Receipt | Exception] = {}
        if free:
            sent = self._enter([submissions[i] for i in free], limit)
            answers.update(zip(free, await _each(sent, len(free)), strict=True))
        kept = self._fallback.keep([submissions[i] for i in behind], until=limit.in_doubt)
        answers.update(zip(behind, await _each(kept, len(behind)), strict=True))
        return [answers[place] for place in range(len(submissions))]

    async def _send(self, submissions: list[Submission], until: float) -> list[Receipt]:
        """Call the broker, which has one repetition at most, and no time for silence."""
        fallback, clock = self._fallback, asyncio.get_running_loop().time
        began = clock()
        silent_at = began + self.silence + transfer_time(submissions)
        ends = max(min(until, silent_at), began + _LEAST)

        def failed(error: BrokerError) -> None:
            now = clock()
            if self.shard == LINKED or not leads_to_spool(error):
                return  # of which shard it is, the error does not tell
            silent = silent_at - _EARLY <= now < silent_at + _LATE
            if ends < silent_at and now >= ends - _EARLY:
                return  # it is the caller who has no time
            # What does not pass by itself is not tried again: that is all there is to know.
            fallback.outages.failed(self.shard, error, sure=silent or not error.passes)

        receipts = await self._line.enqueue(submissions, ends, failed)
        fallback.latency.heard(clock() - began)
        if self.shard != LINKED:
            fallback.outages.succeeded(self.shard)
        return receipts

    @property
    def silence(self) -> float:
        """Seconds that the broker has to answer."""
        silence = self._fallback.options.silence
        if self.shard == LINKED:
            return silence
        return silence * self._fallback.outages.patience(self.shard)

    def _is_away(self, submissions: list[Submission]) -> bool:
        outages = self._fallback.outages
        if self.shard != LINKED:
            return outages.is_away(self.shard)
        return any(outages.is_away(self._fallback.shard_of(each.message)) for each in submissions)


async def _each(
    answers: Awaitable[Sequence[Receipt | Exception]], count: int
) -> Sequence[Receipt | Exception]:
    """Return the answers to ``count`` tasks; an error is given to each of them."""
    try:
        return await answers
    except (BrokerError, InvalidInput) as error:
        return [own_copy(error) for _ in range(count)]


def _behind(submissions: list[Submission], spooled: SpooledIds) -> set[int]:
    """Return the places of those that depend on what is in the spool, or on one that does."""
    places: set[int] = set()
    ids: set[str] = set()
    for place, submission in enumerate(submissions):
        for dependency in submission.depends_on:
            if dependency.id in spooled or dependency.id in ids:
                places.add(place)
                ids.add(submission.message.id)
                break
    return places
