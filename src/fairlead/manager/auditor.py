"""Compares the ledger with the broker: what the broker has lost is sent again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fairlead.broker import Store
from fairlead.ledger.ledger import Ledger
from fairlead.manager.broker_identity import identity_of
from fairlead.manager.comparison import WAITING, Comparison, Seen
from fairlead.manager.counts import Counts
from fairlead.manager.leader_term import Term

UNCHECKED = 60.0  # seconds after which rows are compared again
_AT_ONCE = 500  # rows, and tasks of a page of the broker
_INTERVAL = 5.0  # seconds between two looks, if there is nothing to do
_PAGE = 2.0  # seconds between two pages of the broker
_FRESH = 60.0  # seconds that a task may be without a row: the recorder comes to it

log = logging.getLogger("fairlead.manager")

#: ``created_at`` and ``seq`` of the last row of a page; None before the first page.
_Place: TypeAlias = tuple[float, int] | None


class Auditor:
    """Goes through the rows that wait at the broker, page by page, once in a while.

    Nothing is written of rows that agree: how far it has come is only known here.

    Another generation of the broker means that it was emptied or replaced, another replication that
    it may have lost its last writes: then all unfinished rows are compared at once, running ones
    too, batch by batch. When that is done the ledger is told which servers they were compared
    with: as long as these stay the same, they lose nothing. ``generation`` is the one that the last
    leader saw, empty if none is known.
    """

    name = "auditor"

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        term: Term,
        comparison: Comparison,
        counts: Counts,
        *,
        generation: str = "",
        unchecked: float = UNCHECKED,
        wake: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wake`` is called when something is to be sent again."""
        self._store = store
        self._ledger = ledger
        self._term = term
        self._comparison = comparison
        self._counts = counts
        self._generation = generation
        self._unchecked = unchecked
        self._wake = wake
        self._clock = clock
        self._began: float | None = None  # when the pass over all rows began that is under way
        self._round_at = clock() - unchecked  # when rows were last gone through from the beginning
        self._states: list[str] = []  # that are yet to be gone through
        self._behind: _Place = None  # where the next page of the first begins
        self._cursor: str | None = None
        self._without_row = 0
        self._paged_at = clock() - _PAGE
        self._seen = generation
        self._identity: dict[str, str] = {}  # of the servers that the pass under way is about
        self._now = 0.0  # by the broker's clock

    async def run(self) -> None:
        """Audit for ever; never more than half of the time, and less while nothing is lost."""
        while True:
            began = self._clock()
            more = await self.audit_once()
            spent = self._clock() - began
            hurried = self._began is not None
            await asyncio.sleep(spent * (1 if hurried else 4) + 0.01 if more else _INTERVAL)

    async def audit_once(self) -> bool:
        """Compare one batch of each kind; whether there is more to do at once."""
        await self._look_for_another_broker()
        older = self._unchecked
        if self._began is not None:
            older = min(self._clock() - self._began, older)
        elif not self._states and self._clock() - self._round_at >= self._unchecked:
            self._begin_round(WAITING)
        async with self._comparison.alone:
            full = await self._audit_tasks()
        full = await self._audit_flows(older) or full
        if not full and self._began is not None:
            await self._end_pass()
        if self._clock() - self._paged_at >= _PAGE:
            self._paged_at = self._clock()
            await self._count_without_row()
        return full

    async def _look_for_another_broker(self) -> None:
        hello = await self._store.hello()
        self._now = hello.now
        self._seen = hello.generation
        identity = identity_of(hello)
        if self._began is not None:
            if identity != self._identity:  # what was compared before is in doubt again
                self._begin_pass(identity)
            return
        if not self._generation:
            self._generation = hello.generation
            self._counts.put("generation", hello.generation)
        if hello.generation != self._generation:
            log.warning("broker was emptied or replaced; all unfinished tasks are compared with it")
        elif await self._are_settled(identity):
            return
        else:
            log.warning("broker was restarted or replaced; unfinished tasks are compared with it")
        self._counts.add("full_audits")
        self._counts.put("auditing", 1)
        self._begin_pass(identity)

    async def _are_settled(self, identity: Mapping[str, str]) -> bool:
        """Whether rows were compared with these servers, as far as the recorder reads them."""
        return all(
            place.replication == identity[place.generation]
            for place in (await self._ledger.places()).values()
            if place.generation in identity
        )

    def _begin_pass(self, identity: dict[str, str]) -> None:
        self._began = self._clock()
        self._identity = identity
        # What an event moves to a state that was gone through before is known to this broker.
        self._begin_round(("running", *WAITING))

    def _begin_round(self, states: Sequence[str]) -> None:
        self._round_at = self._clock()
        self._states, self._behind = [*states], None

    async def _end_pass(self) -> None:
        if identity_of(await self._store.hello()) != self._identity:
            return  # the next look begins anew
        await self._ledger.settle_places(
            term=self._term.number,
            generations=list(self._identity),
            replications=list(self._identity.values()),
        )
        self._began = None
        self._counts.put("auditing", 0)
        self._generation = self._seen
        self._counts.put("generation", self._generation)

    # -- tasks ----------------------------------------------------------------------------------

    async def _audit_tasks(self) -> bool:
        rows, states, behind = await self._next_rows()
        if rows:
            found = await self._comparison.compare(rows)
            self._counts.add("compared", len(rows))
            self._counts.add("followed", len(found.moved))
            if found.lost:
                await self._send_again(found.lost)
        # Only now: if the broker failed, these are compared again.
        self._states, self._behind = states, behind
        return bool(states)

    async def _next_rows(self) -> tuple[list[tuple[Seen, str]], list[str], _Place]:
        """The next rows of the round, with their states, and where it goes on behind them."""
        found: list[tuple[Seen, str]] = []
        states, behind = [*self._states], self._behind
        older = self._unchecked if self._began is None else None  # then young ones, too
        while states and len(found) < _AT_ONCE:
            limit = _AT_ONCE - len(found)
            before, seq = behind or (None, 0)
            rows = await self._ledger.unfinished_tasks(
                state=states[0], limit=limit, older=older, before=before, before_seq=seq
            )
            found += [(row, states[0]) for row in rows]
            if len(rows) < limit:
                del states[0]
                behind = None
            else:
                behind = rows[-1].created_at, rows[-1].seq
        return found, states, behind

    async def _send_again(self, rows: Sequence[Seen]) -> None:
        """Send lost tasks again, but for those whose flow will be."""
        now = await self._comparison.lost(rows)
        if not now:
            return
        moved = await self._ledger.send_again(
            term=self._term.number,
            ids=[row.id for row in now],
            entries=[row.last_entry for row in now],
            indexes=[row.last_index for row in now],
        )
        dead = sum(each.state == "dead" for each in moved)
        self._counts.add("sent_again", len(moved) - dead)
        self._counts.add("lost", dead)
        if moved:
            fields = {"sent_again": len(moved) - dead, "dead": dead}
            log.warning("tasks were unknown to the broker", extra=fields)
            if self._wake is not None:
                self._wake()

    # -- flows ----------------------------------------------------------------------------------

    async def _audit_flows(self, older: float) -> bool:
        ids = await self._ledger.unchecked_flows(older=older, limit=_AT_ONCE)
        if not ids:
            return False
        records = await self._store.flows(ids)
        if None in records:  # it may have ended and be forgotten: then the row says so afterwards
            await self._comparison.catch_up()
        same = []
        for id, record in zip(ids, records, strict=True):
            if record is None:
                await self._follow_flow(id, "pending", "lost")
                self._counts.add("flows_sent_again")
                if self._wake is not None:
                    self._wake()
            elif record.state == "running":
                same.append(id)
            else:
                await self._follow_flow(id, str(record.state), "")
        if same:
            await self._ledger.touch_flows(term=self._term.number, ids=same)
        return len(ids) >= _AT_ONCE

    async def _follow_flow(self, id: str, state: str, reason: str) -> None:
        await self._ledger.follow_flow(term=self._term.number, id=id, state=state, reason=reason)

    # -- tasks without a row --------------------------------------------------------------------

    async def _count_without_row(self) -> None:
        """Look at one page of the broker. How many were without a row is told behind the last."""
        page = await self._store.page(cursor=self._cursor, limit=_AT_ONCE)
        old = [each.message.id for each in page.tasks if each.enqueued_at < self._now - _FRESH]
        if old:
            self._without_row += len(old) - len(await self._ledger.states_of(ids=old))
        self._cursor = page.cursor
        if page.cursor is None:
            self._counts.put("without_row", self._without_row)
            self._without_row = 0
