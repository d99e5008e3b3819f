"""A broker that notes what is enqueued, and cuts off workers that are to die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairlead.broker import Store
from fairlead.broker.flows import FlowPart, Staged
from fairlead.broker.requests import (
    BeatReply,
    Call,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    Moved,
    Receipt,
    Settled,
    Submission,
    Write,
)
from fairlead.model.lifecycle import Settlement
from fairlead.testing.crashes import Crashes, empty_reply

_SHORT_WAYS = frozenset(("stores", "place", "thread_line"))  # past this broker


class Recorded(NamedTuple):
    """A submission that the broker accepted, and the schedule that fired it."""

    submission: Submission
    schedule: str = ""


class RecordingBroker:
    """Stands in front of another broker, which does all the work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.recorded: list[Recorded] = []
        self.crashes = Crashes()
        self._staged: dict[str, list[Submission]] = {}  # of flows that are not committed

    def __getattr__(self, name: str) -> Any:
        if name in _SHORT_WAYS:
            raise AttributeError(name)
        return getattr(self._store, name)

    async def close(self) -> None:
        """Stay open: the program under test has ended, and the test still looks at its tasks."""

    # -- what is enqueued ----------------------------------------------------------------------

    async def enqueue(
        self, call: Call, submissions: Sequence[Submission], **options: Any
    ) -> list[Receipt]:
        """Enqueue, and note what is new."""
        receipts = await self._store.enqueue(call, submissions, **options)
        self._note(map(Recorded, submissions), receipts)
        return receipts

    async def fire(self, call: Call, firings: Sequence[Firing], **options: Any) -> list[Receipt]:
        """Fire slots, and note what is new."""
        receipts = await self._store.fire(call, firings, **options)
        fired = (Recorded(each.submission, each.schedule) for each in firings)
        self._note(fired, receipts)
        return receipts

    async def stage(self, call: Call, part: FlowPart, **options: Any) -> Staged:
        """Write a part of a flow, and keep its members in mind."""
        staged = await self._store.stage(call, part, **options)
        if staged.code == "staged":
            if part.number == 0:
                self._staged[part.flow] = []
            self._staged.setdefault(part.flow, []).extend(part.members)
        return staged

    async def commit(self, call: Call, flow: str, **options: Any) -> Staged:
        """Commit a flow, and note its members."""
        staged = await self._store.commit(call, flow, **options)
        members = self._staged.pop(flow, [])
        if staged.code == "committed":
            self.recorded += map(Recorded, members)
        return staged

    def _note(self, recorded: Any, receipts: Sequence[Receipt]) -> None:
        for each, receipt in zip(recorded, receipts, strict=True):
            if receipt.code == "accepted":
                self.recorded.append(each)

    # -- what a worker says --------------------------------------------------------------------

    async def exchange(
        self,
        call: Call,
        settlements: Sequence[Settlement] = (),
        *,
        started: Sequence[LeaseRef] = (),
        fetch: Fetch | None = None,
        **options: Any,
    ) -> ExchangeReply:
        """Exchange, unless the worker is dead or dies here."""
        who, crashes = call.incarnation, self.crashes
        if crashes.is_dead(who) or crashes.ends(settlements, "finished", who):
            return await self._quiet(len(settlements), len(started))
        reply = await self._store.exchange(
            call, settlements, started=started, fetch=crashes.fetch_of(fetch), **options
        )
        if crashes.ends(settlements, "settled", who) or crashes.lends(reply.leased, who):
            return await self._quiet(len(settlements), len(started))
        return reply

    async def _quiet(self, settlements: int, started: int) -> ExchangeReply:
        return empty_reply((await self._store.hello()).now, settlements, started)

    async def write(self, call: Call, writes: Sequence[Write], **options: Any) -> list[Settled]:
        """Write, unless the worker is dead."""
        if any(self.crashes.is_dead(each.lease.incarnation) for each in writes):
            return ["fenced"] * len(writes)
        return await self._store.write(call, writes, **options)

    async def beat(self, incarnation: str, *held: Any, **options: Any) -> BeatReply:
        """Keep leases, unless the worker is dead."""
        if self.crashes.is_dead(incarnation):
            return BeatReply(now=(await self._store.hello()).now)
        return await self._store.beat(incarnation, *held, **options)

    async def give_back(self, incarnation: str, *started: Any, **options: Any) -> Moved:
        """Give leases back, unless the worker is dead: it cannot do that itself any more."""
        if self.crashes.is_dead(incarnation):
            return Moved(now=(await self._store.hello()).now)
        return await self._store.give_back(incarnation, *started, **options)

    async def bury(self) -> int:
        """Give back what dead workers held, as the supervisor of a process does; how many died."""
        victims, self.crashes.victims = self.crashes.victims, []
        for incarnation, charged in victims:
            more = True
            while more:
                more = (await self._store.give_back(incarnation, list(charged))).more
        return len(victims)
