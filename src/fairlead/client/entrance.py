"""How a client's tasks get in: straight to the broker, or into a spool while that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from fairlead.broker import Caller, Store
from fairlead.broker.chunks import Room, packed_for
from fairlead.broker.repeats import Limit, late, undone
from fairlead.broker.verbs import MAX_ENQUEUE, Durability, Receipt, Submission
from fairlead.model.errors import BrokerError
from fairlead.model.message import task_name
from fairlead.runtime.batcher import Batcher
from fairlead.telemetry.counters import Counters

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback
    from fairlead.fallback.submitter import Submitter

__all__ = ("DirectEntrance", "Entrance", "Entrances", "counted")


class Entrance(Protocol):
    """Takes submissions in. Moments are those of the loop's clock."""

    async def submit(self, submission: Submission, until: float) -> Receipt:
        """Enqueue one task; concurrent calls share a trip."""
        ...

    async def enqueue(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> list[Receipt]:
        """Enqueue tasks in one call; without a limit it has the usual time."""
        ...

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest."""
        ...


class DirectEntrance:
    """Straight to the broker, for as long as a call may take."""

    def __init__(
        self,
        store: Store,
        caller: Caller,
        heard: Callable[[Sequence[Submission], Sequence[Receipt]], None],
        submitter: Submitter | None = None,
    ) -> None:
        """``heard`` is called with what was sent and what came of it.

        The ``submitter`` hears of rounds that failed: they tell of an outage, too. Its line
        remembers what the broker has accepted, in case that it loses it.
        """
        self._store = store
        self._caller = caller
        self._heard = heard
        self._submitter = submitter
        self._line = None if submitter is None else submitter.line()
        self._batcher: Batcher[Submission, Receipt] = Batcher(
            self._flush, limit=MAX_ENQUEUE, fits=Room(), again=undone, late=late
        )
        self.submit = self._batcher.submit

    async def enqueue(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> list[Receipt]:
        """Enqueue tasks in one call; without a limit it has the usual time."""
        if self._line is None or self._submitter is None:
            enqueue = partial(self._store.enqueue, submissions=submissions)
            receipts = await self._caller.call(enqueue, limit)
        else:
            clock = asyncio.get_running_loop().time
            limit = limit or Limit(clock() + self._caller.limit)
            failed = self._failed(self._submitter, submissions, limit, clock)
            receipts = await self._line.enqueue(submissions, limit, failed)
        self._heard(submissions, receipts)
        return receipts

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest."""
        await self._batcher.close()

    @staticmethod
    def _failed(
        submitter: Submitter,
        submissions: Sequence[Submission],
        limit: Limit,
        clock: Callable[[], float],
    ) -> Callable[[BrokerError], None]:
        began = clock()

        def failed(error: BrokerError) -> None:
            nonlocal began
            submitter.failed(submissions, error, began, limit.until)
            began = clock()  # of the next round

        return failed

    async def _flush(self, submissions: list[Submission]) -> list[Receipt]:
        # As long as nothing was done, those whose time is over are told so, and the others go into
        # the next call. Once something may have been, they all have to wait for the same reply.
        return await self.enqueue(submissions, Limit(self._batcher.earliest, self._batcher.latest))


class Entrances:
    """The ways in that one client has: without a fallback there is one."""

    def __init__(
        self, store: Store, caller: Caller, counters: Counters, fallback: Fallback | None
    ) -> None:
        self._store = store
        self._counters = counters
        self._submitter: Submitter | None = None
        if fallback is not None:
            # Here: most programs have none.
            from fairlead.fallback.submitter import Submitter

            self._submitter = Submitter(fallback, limit=caller.limit, heard=self._heard)
        self._direct = DirectEntrance(store, caller, self._heard, self._submitter)

    def choose(self, durability: Durability, submissions: Sequence[Submission]) -> Entrance:
        """Return where these go in.

        Raises ``Unreachable`` if they must not be spooled, and the broker is known to be away.
        """
        if self._submitter is None:
            return self._direct
        if durability == "spooled":
            return self._submitter
        self._submitter.check_present(submissions)
        return self._direct

    def packed(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """Return the same, made ready as far as that can be done before their call."""
        return submissions if self._submitter is not None else packed_for(self._store, submissions)

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest."""
        await self._direct.close()
        if self._submitter is not None:
            await self._submitter.close()

    def _heard(self, submissions: Sequence[Submission], receipts: Sequence[Receipt]) -> None:
        if self._counters.on:
            both = zip(submissions, receipts, strict=True)
            self._counters.submitted(counted(each for each, r in both if r.code == "accepted"))


def counted(accepted: Iterable[Submission]) -> Iterator[tuple[str, int]]:
    """Return the name and the level of each, as they are counted."""
    for submission in accepted:
        yield task_name(submission.message.body), submission.message.level
