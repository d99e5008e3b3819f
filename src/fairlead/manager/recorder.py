"""Records what the broker tells: reads its events and writes what became of tasks to the ledger.

One step reads some pages, folds them into one change for each task, asks the broker for what events
do not say, and writes rows and the place behind the events in one transaction. The place is
compared with where this step began, so of two recorders at one place only one writes. An event is
never counted twice, whatever dies when.

Before the auditor or the janitor sends a task again that the broker does not know, they call
``catch_up``; docs/internals/manager.md says why that is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from fairlead.broker import Store
from fairlead.broker.records import EventPage
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.record_writer import Record, write_record
from fairlead.ledger.rows import LastEvent, Place
from fairlead.manager.broker_identity import identity_of
from fairlead.manager.counts import Counts
from fairlead.manager.event_changes import fold, subject
from fairlead.manager.resync import resync
from fairlead.manager.task_details import found_details, row_of
from fairlead.model.errors import BrokerError
from fairlead.model.event_places import is_joined, joined, places_of, reached
from fairlead.model.events import Event, EventId
from fairlead.model.ledger_errors import LedgerError

if TYPE_CHECKING:
    from fairlead.manager.leader_term import Term

_BATCH = 10_000  # events of one transaction; the more, the fewer rows are written twice
_PAGE = 1_000  # events of one call
_ROOM = 32 * 1024 * 1024  # bytes of bodies of one transaction; the rest comes with the next one
_POLL = 5.0  # seconds that it waits for the next event
_WORKERS = 10_000  # incarnations that are remembered as written down

log = logging.getLogger("fairlead.manager")


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What one step came to."""

    count: int  # events that were new
    tasks: int  # rows that were moved or added
    gap: bool  # events before these are lost, or the broker is another: rows were compared with it
    at_end: bool  # there was nothing more to read
    lag: float  # seconds between the last event and the broker's time; 0 at the end


class _Read(msgspec.Struct):
    """What some pages had, from where on."""

    began: dict[str, EventId]
    events: list[Event]
    places: dict[str, EventId]
    gap: bool = False
    at_end: bool = False
    now: float = 0.0


class _Ready(msgspec.Struct, frozen=True):
    """What was read, and the record of it. None: there is nothing to write, or a gap before it."""

    read: _Read
    record: Record | None


class Recorder:
    """Records events, for one term."""

    name = "recorder"

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        term: Term,
        counts: Counts,
        *,
        batch: int = _BATCH,
        page: int = _PAGE,
        room: int = _ROOM,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._term = term
        self._counts = counts
        self._batch = batch
        self._page = page
        self._room = room
        self._stepping = asyncio.Lock()
        self._places: dict[str, EventId] | None = None  # None: the ledger has to be asked
        self._identity: dict[str, str] = {}  # of the broker, before it was first read
        self._several = False  # the broker has shards
        self._more = True  # the last step left something
        self._workers: dict[str, None] = {}  # written down lately
        self._ahead: _Ready | None = None  # made while the last step was written

    async def run(self) -> None:
        """Record whatever happens, for ever."""
        while True:
            await self.record_once(_POLL)

    async def record_once(self, timeout: float = 0.0) -> Recorded:
        """Record a batch; wait so many seconds at most if there is nothing to record yet.

        Raises ``LostLeadership``, and the errors of broker and ledger: then nothing was written.
        """
        if timeout > 0.0 and not self._more:
            # Without the lock: who has to catch up must not wait for this. It only looks, because
            # reading changes nothing.
            places = await self._begin()
            await self._store.events(after=self._after(places), limit=1, timeout=timeout)
        async with self._stepping:
            recorded = await self._step()
        self._more = not recorded.at_end
        return recorded

    async def catch_up(self) -> int:
        """Record all that happened before this call; how many events that were."""
        latest = await self._store.events(latest=True)
        ends = {} if latest.last is None else places_of(latest.last)
        count = 0
        while True:
            recorded = await self.record_once()
            count += recorded.count
            here = self._places or {}
            if recorded.at_end or all(reached(here, end) for end in ends.values()):
                return count

    # -- one step -------------------------------------------------------------------------------

    async def _step(self) -> Recorded:
        began = await self._begin()
        ahead, self._ahead = self._ahead, None
        ready = ahead if ahead is not None and ahead.read.began == began else None
        if ready is None:
            ready = await self._make_ready(began)
        if ready.read.gap:
            # Before the place moves: if this dies, whoever comes next finds the same gap.
            await self._compare_all(began, ready.read.places)
            ready = await self._recorded(ready.read)
        tasks = 0
        if ready.record is not None:
            # While the ledger writes these, the next ones are read and folded.
            reading = asyncio.create_task(self._make_ahead(ready.read))
            try:
                tasks = await self._write(ready.record)
            finally:
                await _ended(reading)
        read = ready.read
        self._places = read.places
        lag = 0.0 if read.at_end or not read.events else max(read.now - read.events[-1].at, 0.0)
        self._counts.add("events", len(read.events))
        self._counts.add("tasks", tasks)
        self._counts.put("lag_seconds", lag)
        return Recorded(
            count=len(read.events), tasks=tasks, gap=read.gap, at_end=read.at_end, lag=lag
        )

    async def _make_ahead(self, read: _Read) -> None:
        if not read.at_end:
            with contextlib.suppress(BrokerError, LedgerError):  # the next step tries again
                self._ahead = await self._make_ready(read.places)

    async def _make_ready(self, began: dict[str, EventId]) -> _Ready:
        """Read and fold what comes next.

        Of rows that are being written meanwhile the ledger may not know yet: then the broker is
        asked again for what they have, and nothing is written twice.
        """
        read = await self._read(began)
        return _Ready(read, None) if read.gap else await self._recorded(read)

    async def _read(self, began: dict[str, EventId]) -> _Read:
        """Read on until the batch is full or a page is empty."""
        read = _Read(dict(began), [], dict(began))
        count = 0
        while count < self._batch and not read.at_end:
            page = await self._store.events(after=self._after(read.places), limit=self._page)
            read.now = page.now
            read.gap = read.gap or page.gap
            read.at_end = not page.events
            count += len(page.events)
            # After a gap the broker begins with the oldest event that it keeps.
            read.events += [
                event for event in page.events if not page.gap or not reached(began, event.id)
            ]
            self._move(read.places, page)
        return read

    def _move(self, places: dict[str, EventId], page: EventPage) -> None:
        """Go to where the page ends; a shard that is away stays where it was."""
        if page.last is not None:
            self._several = is_joined(page.last)
            places.update(places_of(page.last))

    async def _recorded(self, read: _Read) -> _Ready:
        """Fold what was read, and find what the events do not say; what of it is in the record.

        Where bodies are large that is less than was read.
        """
        if not read.events and read.places == read.began:
            return _Ready(read, None)
        ids = {event.task for event in read.events}  # and of flows and workers: they have no rows
        known = {row.id: row for row in await self._ledger.last_events(ids=list(ids))}
        last = {id: _last(row) for id, row in known.items()}
        folded = fold(read.events, last)
        details = await found_details(self._store, folded.tasks.values(), known, self._room)
        if details.left:
            read = _before(read, details.left, last)
            folded = fold(read.events, last)
        record = Record(
            term=self._term.number,
            tasks=[
                row_of(change, details.found.get(id), is_whole=id in details.whole)
                for id, change in folded.tasks.items()
            ],
            flows=[(flow.id, flow.state, flow.at) for flow in folded.flows.values()],
            workers=await self._new_workers(folded.workers),
            places=[
                (
                    self._place(place),
                    self._place(read.began[shard]) if shard in read.began else None,
                )
                for shard, place in read.places.items()
                if place != read.began.get(shard)
            ],
        )
        return _Ready(read, record)

    async def _write(self, record: Record) -> int:
        try:
            count = await write_record(self._ledger, record)
        except Exception:
            self._places = None  # of a doubt, and of another recorder, the ledger tells
            raise
        self._workers |= dict.fromkeys(incarnation for incarnation, *_ in record.workers)
        while len(self._workers) > _WORKERS:
            del self._workers[next(iter(self._workers))]
        return count

    async def _new_workers(self, heard: set[str]) -> list[tuple[str, str, int, float | None]]:
        """Who the incarnations are that were not written down yet."""
        new = heard - self._workers.keys()
        if not new:
            return []
        found = {
            worker.incarnation: (worker.host, worker.pid, worker.started_at or None)
            for worker in await self._store.workers(silent=True)
            if worker.incarnation not in self._workers
        }
        for incarnation in new:
            found.setdefault(incarnation, ("", 0, None))
        return [(incarnation, *rest) for incarnation, rest in sorted(found.items())]

    async def _compare_all(
        self, began: Mapping[str, EventId], places: Mapping[str, EventId]
    ) -> None:
        """Events are lost: compare what is not over with the broker."""
        changed = any(
            place.generation != began[shard].generation
            for shard, place in places.items()
            if shard in began
        )
        self._counts.add("generations" if changed else "gaps")
        log.warning(
            "events were lost%s: comparing unfinished tasks with the broker",
            ", the broker is another" if changed else "",
        )

        async def is_same() -> bool:
            return not changed and await self._is_as_compared(began)

        came = await resync(self._store, self._ledger, self._term.number, is_same)
        self._counts.add("resynced", came.compared)
        self._counts.add("forgotten", came.forgotten)
        if came.forgotten:
            log.warning(
                "tasks ended while their events were lost, and are forgotten",
                extra={"tasks": came.forgotten},
            )

    async def _is_as_compared(self, began: Mapping[str, EventId]) -> bool:
        """Whether the broker is the one that all rows were compared with, in each shard."""
        stored = await self._ledger.places()
        now = identity_of(await self._store.hello())
        return bool(began) and all(
            shard in stored
            and stored[shard].generation == place.generation
            # Some servers do not tell theirs: then nobody can say that they are the same.
            and stored[shard].replication == (now.get(place.generation) or None)
            for shard, place in began.items()
        )

    # -- places ---------------------------------------------------------------------------------

    async def _begin(self) -> dict[str, EventId]:
        """The places to read on from; asked from the ledger at first, and after a failure."""
        if self._places is None:
            # Before anything is read: what was lost since then came after it.
            self._identity = identity_of(await self._store.hello())
            latest = await self._store.events(latest=True)
            self._several = latest.last is not None and is_joined(latest.last)
            shards = {} if latest.last is None else places_of(latest.last)
            self._places = {
                place.shard: EventId(place.generation, place.shard, place.entry, place.index)
                for place in (await self._ledger.places()).values()
                if self._several or place.shard in shards
            }
        return self._places

    def _place(self, id: EventId) -> Place:
        replication = self._identity.get(id.generation, "")
        return Place(id.shard, id.generation, id.entry, id.index, replication)

    def _after(self, places: Mapping[str, EventId]) -> EventId | None:
        if not places:
            return None
        return joined(places) if self._several else next(iter(places.values()))


async def _ended(reading: asyncio.Task[None]) -> None:
    """Wait for what was begun beside a write; whoever is cancelled meanwhile takes it along."""
    try:
        await asyncio.wait([reading])
    finally:
        reading.cancel()
    reading.result()


def _before(read: _Read, tasks: Collection[str], last: Mapping[str, tuple[int, int]]) -> _Read:
    """What was read before the first event that changes one of these tasks."""
    places = dict(read.began)
    events: list[Event] = []
    for event in read.events:
        id, place = subject(event), (event.id.entry, event.id.index)
        if id in tasks and (id not in last or place > last[id]):
            break
        events.append(event)
        places[event.id.shard] = event.id
    return _Read(read.began, events, places, gap=read.gap, now=read.now)


def _last(row: LastEvent) -> tuple[int, int]:
    return row.last_entry, row.last_index
