"""How a client's tasks get in: straight to the broker, or into a spool while that is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlead.broker import Caller, Store
from fairlead.broker.call_sizes import Room, chunks, packed_for
from fairlead.broker.dependency_order import ordered, redirected
from fairlead.broker.repeats import Limit, late, undone
from fairlead.broker.requests import MAX_ENQUEUE, Durability, Receipt, Submission
from fairlead.broker.submissions import Row, Submissions, kinds_of, likes_of
from fairlead.model.errors import BrokerError
from fairlead.model.message import task_name
from fairlead.runtime.batcher import Batcher
from fairlead.telemetry.counters import Counters

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback
    from fairlead.fallback.submitter import Submitter

_at, _depends_on = attrgetter("at"), attrgetter("depends_on")


class SubmitPath:
    """One client's way in: straight to the broker, unless its tasks may be spooled."""

    def __init__(
        self, store: Store, caller: Caller, counters: Counters, fallback: Fallback | None
    ) -> None:
        self._store = store
        self._caller = caller
        self._counters = counters
        self._submitter: Submitter | None = None
        if fallback is not None:
            # Here: most programs have none.
            from fairlead.fallback.submitter import Submitter

            self._submitter = Submitter(
                fallback, limit=caller.limit, heard=partial(count_accepted, counters)
            )
        # The line remembers what the broker has accepted, in case that it loses it.
        self._line = None if self._submitter is None else self._submitter.line()
        self._batcher: Batcher[Row, Receipt] = Batcher(
            self._flush, limit=MAX_ENQUEUE, fits=Room().takes_row, again=undone, late=late
        )
        # One task, until a moment of the loop's clock.
        self.submit, self.put = self._batcher.submit, self._batcher.put

    def choose(
        self, durability: Durability, submissions: Sequence[Submission]
    ) -> SubmitPath | Submitter:
        """Return where these go in; both ways have ``submit`` and ``enqueue``.

        Raises ``Unreachable`` if they must not be spooled, and the broker is known to be away.
        """
        if self._submitter is None:
            return self
        if durability == "spooled":
            return self._submitter
        self._submitter.check_present(submissions)
        return self

    def enqueue(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> Coroutine[Any, Any, list[Receipt]]:
        """Enqueue tasks in one call; without a limit it has the usual time."""
        if self._line is None and not self._counters.on:
            return self._call(submissions, limit)
        return self._counted(submissions, limit)

    def _call(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> Coroutine[Any, Any, list[Receipt]]:
        store = self._store
        return self._caller.call(lambda call: store.enqueue(call, submissions), limit)

    async def _counted(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> list[Receipt]:
        if self._line is None or self._submitter is None:
            receipts = await self._call(submissions, limit)
        else:
            clock = asyncio.get_running_loop().time
            limit = limit or Limit(clock() + self._caller.limit)
            failed = self._failed(self._submitter, submissions, limit, clock)
            receipts = await self._line.enqueue(submissions, limit, failed)
        count_accepted(self._counters, submissions, receipts)
        return receipts

    async def submit_many(
        self,
        submissions: Sequence[Submission],
        limit: Limit | None,
        durability: Durability,
    ) -> list[Receipt]:
        """Enqueue tasks that may depend on each other; return their receipts in the order given."""
        kinds = kinds_of(submissions)
        # All at once: so none goes before one ahead of it.
        submissions = dated(submissions, kinds)
        if not any(map(_depends_on, kinds)):
            return await self._submit(submissions, limit, durability)
        todo = ordered(submissions)
        receipts: dict[str, list[Receipt]] = {}
        while todo:
            sent = await self._submit(todo, limit, durability)
            for submission, receipt in zip(todo, sent, strict=True):
                receipts.setdefault(submission.message.id, []).append(receipt)
            todo = redirected(todo, receipts)
        # Equal ids were submitted in the order given, so their receipts come in that order too.
        taken = {id: iter(found) for id, found in receipts.items()}
        return [next(taken[submission.message.id]) for submission in submissions]

    async def _submit(
        self,
        submissions: Sequence[Submission],
        limit: Limit | None,
        durability: Durability,
    ) -> list[Receipt]:
        """Enqueue tasks in their order: a call is made ready while the one before is under way."""
        receipts: list[Receipt] = []
        if self._submitter is not None:  # which looks at each of them again and again
            submissions = list(submissions)
        todo = list(chunks(submissions))
        ready: Sequence[Submission] = todo[0] if todo else ()
        for place, chunk in enumerate(todo, 1):
            try:
                call = self.choose(durability, chunk).enqueue(ready, limit)
                if place == len(todo):
                    return receipts + await call
                under_way = asyncio.ensure_future(call)
                try:
                    await asyncio.sleep(0)  # it is sent
                    ready = self._packed(todo[place])
                finally:
                    sent = await under_way
                receipts += sent
            except BrokerError as error:
                error.ids = tuple(submission.message.id for submission in chunk)
                error.add_note(
                    "Some of the tasks may have been accepted. The same calls may be enqueued "
                    "again: those that were accepted are recognized by their ids."
                )
                raise
        return receipts

    def _packed(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """Return the same, made ready as far as that can be done before their call."""
        return submissions if self._submitter is not None else packed_for(self._store, submissions)

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest."""
        await self._batcher.close()
        if self._submitter is not None:
            await self._submitter.close()

    def _flush(self, rows: list[Row]) -> Awaitable[list[Receipt]]:
        # As long as nothing was done, those whose time is over are told so, and the others go into
        # the next call. Once something may have been, they all have to wait for the same reply.
        limit = Limit(self._batcher.earliest, self._batcher.latest)
        likes, ids, bodies = map(list, zip(*rows, strict=True))
        return self.enqueue(dated(Submissions(likes, ids, bodies)), limit)

    @staticmethod
    def _failed(
        submitter: Submitter,
        submissions: Sequence[Submission],
        limit: Limit,
        clock: Callable[[], float],
    ) -> Callable[[BrokerError], None]:
        """Return what tells the submitter of rounds that failed: they tell of an outage, too."""
        began = clock()

        def failed(error: BrokerError) -> None:
            nonlocal began
            submitter.failed(submissions, error, began, limit.until)
            began = clock()  # of the next round

        return failed


def dated(
    submissions: Sequence[Submission], kinds: Sequence[Submission] | None = None
) -> Sequence[Submission]:
    """Return them with the delays that they have now: what is for one moment has the same.

    ``kinds`` are those of them, if they are known.

    A ledger and a spool keep the delay and not the moment. Each was made at a time of its own, the
    last one with the shortest delay, and would run first. Each was checked then: a clock that was
    set since must not make others of the call fail.
    """
    if not any(map(_at, likes_of(submissions) if kinds is None else kinds)):
        return submissions
    now = time.time()
    return [
        each if each.at is None else replace(each, delay=max(each.at - now, 0.0))
        for each in submissions
    ]


def count_accepted(
    counters: Counters, submissions: Sequence[Submission], receipts: Sequence[Receipt]
) -> None:
    """Count the tasks that were accepted, if anybody reads the counters."""
    if counters.on:
        both = zip(submissions, receipts, strict=True)
        counters.submitted(counted(each for each, r in both if r.code == "accepted"))


def counted(accepted: Iterable[Submission]) -> Iterator[tuple[str, int]]:
    """Return the name and the level of each, as they are counted."""
    for submission in accepted:
        yield task_name(submission.message.body), submission.message.level
