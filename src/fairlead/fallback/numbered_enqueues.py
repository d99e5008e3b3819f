"""Numbered enqueues whose last number tells, after a failover, which of them were lost.

The broker keeps the last number of an incarnation in the same step as its tasks. So an incarnation
is used over one connection only: once that is lost, the number stays what it was, and can be asked
for at leisure. See ``fairlead.fallback.replay``. A call that concerns several shards is counted by
each of them, stage by stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.broker import Caller, Store
from fairlead.broker.repeats import Limit, OtherConnection
from fairlead.broker.requests import Call, Receipt, Submission
from fairlead.broker.sharded.stages import incarnation_of, stages_of
from fairlead.model.errors import Ambiguous, BrokerError, OutOfOrder
from fairlead.runtime.ids import new_id

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

LINKED = ""  # in the place of a shard: calls that may concern several

_TRIES = 2  # rounds of a call
_GRACE = 0.5  # seconds beyond its time after which a call is given up from outside
_LATE = "there was no answer in time; the call may have been executed"


class Doubt(Ambiguous):
    """A call whose reply was lost: who made it, under which number, tells what came of it later."""

    def __init__(self, message: str, incarnation: str, number: int) -> None:
        super().__init__(message)
        self.incarnation, self.number = incarnation, number


class NumberedEnqueuer:
    """One call in flight to one shard; or to several, which may name each other's tasks."""

    def __init__(self, fallback: Fallback, shard: str) -> None:
        self._fallback = fallback
        self._shard = shard
        self._is_linked = shard == LINKED
        self._caller = Caller(new_id())
        self._last: dict[tuple[str, str], int] = {}  # of LINKED: by shard and incarnation

    async def enqueue(
        self,
        submissions: Sequence[Submission],
        until: float | Limit,
        failed: Callable[[BrokerError], None],
    ) -> list[Receipt]:
        """Send tasks, twice at most, or as a limit says; ``failed`` hears of rounds that failed.

        Raises what ``Caller.call`` raises, and ``Doubt`` where that is ``Ambiguous``.
        """
        limit = until if isinstance(until, Limit) else Limit(until, tries=_TRIES)
        sent = _Sent(self._caller.incarnation, self._last)
        try:
            async with asyncio.timeout_at(max(limit.until, limit.in_doubt) + _GRACE):
                receipts = await self._enqueue(sent, submissions, limit, failed)
        except TimeoutError:
            failed(Ambiguous(_LATE))
            raise self._doubt(sent, _LATE) from None
        except Ambiguous as error:
            raise self._doubt(sent, str(error)) from error
        window = self._fallback.recent_enqueues
        is_first = not len(window)
        if self._is_linked:
            self._add_linked(sent, submissions, receipts)
        else:
            window.add(self._shard, sent.incarnation, sent.number, submissions, receipts)
        if is_first:
            self._fallback.wake()
        return receipts

    async def _enqueue(
        self,
        sent: _Sent,
        submissions: Sequence[Submission],
        limit: Limit,
        failed: Callable[[BrokerError], None],
    ) -> list[Receipt]:
        store = self._fallback.store

        def send(call: Call) -> Awaitable[list[Receipt]]:
            sent.incarnation, sent.number = call.incarnation, call.number
            return store.enqueue(msgspec.structs.replace(call, bound=True), submissions)

        def heard(error: BrokerError) -> None:
            if isinstance(error, OtherConnection) or isinstance(error.__cause__, OtherConnection):
                sent.is_moved = True
            else:
                failed(error)

        caller = self._caller
        try:
            return await caller.call(send, limit, failed=heard)
        except BrokerError as error:
            if not sent.is_moved:
                raise
            self._leave(sent.incarnation)
            self._tell_moved(submissions)
            if isinstance(error, Ambiguous):
                if self._is_linked:
                    return await self._completed(caller, sent, submissions, limit, error)
                part = self._fallback.parts.stores[self._shard]
                try:
                    kept = await recall(part, sent.incarnation, sent.number, limit.in_doubt)
                except BrokerError as again:  # that nothing was done would be a lie
                    raise error from again
                if kept is not None:
                    return kept
        return await self._caller.call(send, limit, failed=heard)

    def _tell_moved(self, submissions: Sequence[Submission]) -> None:
        shards = {self._shard}
        if self._is_linked:
            shards = {self._fallback.shard_of(each.message) for each in submissions}
        for shard in shards:
            self._fallback.replayer.moved(shard)

    # -- calls to several shards ----------------------------------------------------------------

    def _parts(
        self, incarnation: str, submissions: Sequence[Submission]
    ) -> Iterator[tuple[str, str, list[int]]]:
        """Yield each shard, under which incarnation it counts its part, and the places of that."""
        homes = [self._fallback.shard_of(each.message) for each in submissions]
        for number, stage in enumerate(stages_of(submissions, homes)):
            for shard, places in stage.items():
                yield shard, incarnation_of(incarnation, number), places

    def _add_linked(
        self, sent: _Sent, submissions: Sequence[Submission], receipts: Sequence[Receipt]
    ) -> None:
        for shard, incarnation, places in self._parts(sent.incarnation, submissions):
            some, answers = [submissions[i] for i in places], [receipts[i] for i in places]
            self._fallback.recent_enqueues.add(shard, incarnation, sent.number, some, answers)
            if sent.incarnation == self._caller.incarnation:
                self._last[shard, incarnation] = sent.number

    async def _completed(
        self,
        caller: Caller,
        sent: _Sent,
        submissions: Sequence[Submission],
        limit: Limit,
        error: Ambiguous,
    ) -> list[Receipt]:
        """Carry out the rest of a call that some shards have carried out; else raise ``error``.

        Only if they have all that they accepted from this incarnation: its number would hide what
        they have lost.
        """
        store, stores = self._fallback.store, self._fallback.parts.stores
        try:
            for shard, incarnation, _ in self._parts(sent.incarnation, submissions):
                least = sent.last.get((shard, incarnation), 0)
                if await last_number(stores[shard], incarnation, limit.in_doubt) < least:
                    raise error
            return await caller.call(
                lambda call: store.enqueue(call, submissions), limit, number=sent.number
            )
        except BrokerError as again:
            raise error from again

    def _doubt(self, sent: _Sent, message: str) -> Ambiguous:
        """Leave the incarnation, so that its last number tells whether the call was carried out."""
        self._leave(sent.incarnation)
        if self._is_linked:
            return Ambiguous(message)  # several shards have numbers of their own
        return Doubt(message, sent.incarnation, sent.number)

    def _leave(self, incarnation: str) -> None:
        if self._caller.incarnation == incarnation:
            self._caller = Caller(new_id())
            self._last = {}


class _Sent:
    """What was sent last, and whether the connection was another one."""

    def __init__(self, incarnation: str, last: Mapping[tuple[str, str], int]) -> None:
        self.incarnation, self.number, self.is_moved = incarnation, 0, False
        self.last = last  # what several shards have accepted before


async def recall(
    store: Store, incarnation: str, number: int, until: float | None
) -> list[Receipt] | None:
    """Return the answer to the last call of an incarnation; None if it was not carried out."""
    if await last_number(store, incarnation, until) != number:
        return None
    return await store.enqueue(Call(incarnation, number, until), [])


async def last_number(store: Store, incarnation: str, until: float | None) -> int:
    """Return the number of the last call of an incarnation that the server knows; 0: of none.

    Asks with a number that is older than all of them.
    """
    try:
        await store.enqueue(Call(incarnation, 0, until, hasty=True), [])
    except OutOfOrder as error:
        return error.last
    return 0
