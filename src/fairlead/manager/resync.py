"""Compares all unfinished rows with the broker, when events were lost or the broker is another.

A row follows the state that the broker says, unless an event has moved it meanwhile. Tasks that the
broker does not know are left to the auditor, which sends them again or says that they are lost.
"""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.rows import UnfinishedTask
from fairlead.ledger.task_log import MAX_ERROR
from fairlead.manager.folding import cut
from fairlead.manager.task_details import find_in_batches

__all__ = ("resync",)

_PAGE = 500
_STATES = ("running", "queued", "scheduled", "retrying", "deferred")


async def resync(store: Store, ledger: Ledger, term: int) -> int:
    """Let unfinished rows follow the broker; how many of them were compared."""
    count = 0
    for state in _STATES:
        before, seq = None, 0
        while True:
            rows = await ledger.unfinished_tasks(
                state=state, before=before, before_seq=seq, limit=_PAGE
            )
            if not rows:
                break
            count += len(rows)
            before, seq = rows[-1].created_at, rows[-1].seq
            await _follow(store, ledger, term, rows)
    return count


async def _follow(store: Store, ledger: Ledger, term: int, rows: list[UnfinishedTask]) -> None:
    found = await find_in_batches(store, [row.id for row in rows], "info")
    known = [(row, record) for row in rows if (record := found[row.id]) is not None]
    if not known:
        return
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
