"""Compares all unfinished rows with the broker, when events were lost or the broker is another.

A row follows the state that the broker says, unless an event has moved it meanwhile. A task that
the broker does not know has ended unseen and was forgotten, if the broker is still the one that the
rows were last compared with: it is over, and does not run again. If the broker is another, the task
may be lost: it is left to the auditor, which sends it again or says that it is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from fairlead.broker import Store
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.rows import UnfinishedTask
from fairlead.ledger.task_log import MAX_ERROR
from fairlead.manager.comparison import WAITING
from fairlead.manager.event_changes import cut
from fairlead.manager.task_details import find_in_batches

_PAGE = 500


class Resynced(msgspec.Struct):
    """What came of a comparison."""

    compared: int = 0
    forgotten: int = 0


async def resync(
    store: Store, ledger: Ledger, term: int, is_same: Callable[[], Awaitable[bool]]
) -> Resynced:
    """Let unfinished rows follow the broker.

    ``is_same`` says whether the broker is still the one that the rows were compared with. It is
    asked after each look: before it the broker may have become another.
    """
    came = Resynced()
    for state in ("running", *WAITING):
        before, seq = None, 0
        while True:
            rows = await ledger.unfinished_tasks(
                state=state, before=before, before_seq=seq, limit=_PAGE
            )
            if not rows:
                break
            came.compared += len(rows)
            before, seq = rows[-1].created_at, rows[-1].seq
            unknown = await _follow(store, ledger, term, rows)
            if unknown and await is_same():
                came.forgotten += await _forget(ledger, term, unknown)
    came.forgotten += await _forget_flows(store, ledger, term, is_same)
    return came


async def _follow(
    store: Store, ledger: Ledger, term: int, rows: Sequence[UnfinishedTask]
) -> list[UnfinishedTask]:
    """Let rows follow; those that the broker does not know."""
    found = await find_in_batches(store, [row.id for row in rows], "info")
    known = [(row, record) for row in rows if (record := found[row.id]) is not None]
    if known:
        errors = [record.error for _, record in known]
        await ledger.follow_tasks(
            term=term,
            ids=[row.id for row, _ in known],
            states=[record.state.value for _, record in known],
            attempts=[record.attempts for _, record in known],
            reasons=[cut(record.reason, MAX_ERROR) for _, record in known],
            error_types=["" if error is None else cut(error.type, MAX_ERROR) for error in errors],
            errors=["" if error is None else cut(error.message, MAX_ERROR) for error in errors],
            started=[record.started_at for _, record in known],
            finished=[record.finished_at for _, record in known],
            entries=[row.last_entry for row, _ in known],
            indexes=[row.last_index for row, _ in known],
        )
    return [row for row in rows if found[row.id] is None]


async def _forget(ledger: Ledger, term: int, rows: Sequence[UnfinishedTask]) -> int:
    forgotten = await ledger.forget_tasks(
        term=term,
        ids=[row.id for row in rows],
        entries=[row.last_entry for row in rows],
        indexes=[row.last_index for row in rows],
    )
    return len(forgotten)


async def _forget_flows(
    store: Store, ledger: Ledger, term: int, is_same: Callable[[], Awaitable[bool]]
) -> int:
    """The same for flows; those that the broker knows are left to the auditor."""
    count = 0
    after, after_id = None, ""
    while flows := await ledger.unfinished_flows(limit=_PAGE, after=after, after_id=after_id):
        after, after_id = flows[-1].checked_at, flows[-1].id
        records = await store.flows([flow.id for flow in flows])
        unknown = [flow for flow, record in zip(flows, records, strict=True) if record is None]
        if unknown and await is_same():
            for flow in unknown:
                count += await ledger.follow_flow(
                    term=term, id=flow.id, state="completed", reason="forgotten"
                )
    return count
