"""Compares rows of the ledger with what the broker knows, and changes those that are wrong.

The order matters. The rows are read first, then the broker is asked, then the recorder reads all
that has happened until then, and only then rows are changed: those whose last event is still the
one that was read. So a task that ended and was forgotten before the broker was asked is over in the
ledger by then, and one that moved on meanwhile stays as it is. No task that lives is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from fairlead.broker import Store
from fairlead.broker.records import TaskRecord
from fairlead.ledger.ledger import Ledger
from fairlead.manager.leader_term import Term

#: States of rows that the broker has and no worker runs.
WAITING = ("queued", "scheduled", "retrying", "deferred")

_LONGEST_ERROR = 2_000  # characters that follow into a row


class Seen(Protocol):
    """A row as it was read."""

    @property
    def id(self) -> str: ...
    @property
    def last_entry(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def flow(self) -> str: ...


class Compared(msgspec.Struct):
    """Rows of which the broker says something else."""

    lost: list[Seen]  # it does not know them
    moved: list[tuple[Seen, TaskRecord]]  # it says something else


class Comparison:
    """Asks the broker about rows, for one term."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        term: Term,
        catch_up: Callable[[], Awaitable[object]],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._term = term
        self.catch_up = catch_up
        #: Held from the read of rows to the change: of two who saw the same rows one would be late.
        self.alone = asyncio.Lock()

    async def compare(self, rows: Sequence[tuple[Seen, str]]) -> Compared:
        """Ask about rows, given with their states; those that moved on follow the broker."""
        found = Compared([], [])
        records = await self._store.find([row.id for row, _ in rows], parts="info")
        for (row, state), record in zip(rows, records, strict=True):
            if record is None:
                found.lost.append(row)
            elif record.state != state:
                found.moved.append((row, record))
        if found.lost or found.moved:
            await self.catch_up()
        if found.moved:
            await self._follow(found.moved)
        return found

    async def lost(self, rows: Sequence[Seen]) -> list[Seen]:
        """Of rows that the broker does not know, those to send again or to end.

        The others belong to flows that it does not know either, and that the ledger can send as a
        whole: their members come with them.
        """
        flows = await self._lost_flows({row.flow for row in rows if row.flow})
        return [row for row in rows if row.flow not in flows]

    async def _lost_flows(self, flows: set[str]) -> set[str]:
        if not flows:
            return set()
        states = await self._ledger.flow_states(ids=list(flows))
        ours = [id for id, state in states.items() if state in ("pending", "claimed", "running")]
        records = await self._store.flows(ours) if ours else []
        return {id for id, record in zip(ours, records, strict=True) if record is None}

    async def _follow(self, moved: Sequence[tuple[Seen, TaskRecord]]) -> None:
        records = [record for _, record in moved]
        errors = [record.error for record in records]
        await self._ledger.follow_tasks(
            term=self._term.number,
            ids=[row.id for row, _ in moved],
            states=[str(record.state) for record in records],
            attempts=[record.attempts for record in records],
            reasons=[_text(record.reason) for record in records],
            error_types=["" if error is None else _text(error.type) for error in errors],
            errors=["" if error is None else _text(error.message) for error in errors],
            started=[record.started_at for record in records],
            finished=[record.finished_at for record in records],
            entries=[row.last_entry for row, _ in moved],
            indexes=[row.last_index for row, _ in moved],
        )


def _text(value: str) -> str:
    """What a row can hold."""
    return value[:_LONGEST_ERROR].replace("\x00", "\N{REPLACEMENT CHARACTER}")
