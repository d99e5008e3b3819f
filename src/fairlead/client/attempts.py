"""Attempts and changes of state of one task, worked out from what was written down of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.ledger.rows import TaskRow
from fairlead.ledger.task_log import LogEntry
from fairlead.model.lifecycle import FINAL

#: How an attempt ended, by the kind of the event that ended it.
_OUTCOMES = {
    "completed": "completed",
    "retrying": "failed",
    "dead": "failed",
    "snoozed": "snoozed",
    "released": "released",
    "recovered": "crashed",
    "cancelled": "cancelled",
}
_CRASHES = frozenset(("crash", "crashed", "poison"))
_UNSENT = frozenset(("pending", "claimed", "refused"))


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a task. Times are unix seconds, by the broker's clock."""

    number: int  # from one; anew after the task was requeued
    worker: str = ""  # its incarnation; empty if it was not told
    host: str = ""  # empty, and a pid of 0: nobody heard who that was
    pid: int = 0
    started_at: float | None = None
    ended_at: float | None = None  # None: it runs
    outcome: str = ""  # completed, failed, crashed, cancelled, snoozed, released or unclaimed
    reason: str = ""
    error_type: str = ""
    error: str = ""


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a task, and the state that it was in afterwards."""

    at: float
    kind: str  # committed, refused, or that of an event: enqueued, started, retrying, ...
    state: str
    attempt: int = 0
    reason: str = ""


class _Worker(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...


def attempts_of(log: Sequence[LogEntry], workers: Mapping[str, _Worker]) -> list[Attempt]:
    """The attempts that a log tells of, in their order."""
    found: list[Attempt] = []
    runs = False  # the last of them
    for entry in log:
        if entry.kind == "started":
            worker = workers.get(entry.worker)
            found.append(
                Attempt(
                    number=entry.attempt,
                    worker=entry.worker,
                    host="" if worker is None else worker.host,
                    pid=0 if worker is None else worker.pid,
                    started_at=entry.at,
                )
            )
            runs = True
        elif entry.kind in _OUTCOMES and runs:
            found[-1] = msgspec.structs.replace(
                found[-1],
                ended_at=entry.at,
                outcome=_outcome(entry.kind, entry.reason),
                reason=entry.reason,
                error_type=entry.error_type,
                error=entry.error,
            )
            runs = False
    return found


def changes_of(row: TaskRow, log: Sequence[LogEntry]) -> list[StateChange]:
    """All that happened to a task: what the ledger did first, then what the broker told."""
    changes = [
        StateChange(
            at=entry.at,
            kind=entry.kind,
            state=entry.state,
            attempt=entry.attempt,
            reason=entry.reason,
        )
        for entry in log
    ]
    if row.pushes or row.state in _UNSENT:
        changes.insert(0, StateChange(at=row.created_at, kind="committed", state="pending"))
    if row.state == "refused" and row.finished_at is not None:
        changes.append(
            StateChange(at=row.finished_at, kind="refused", state="refused", reason=row.reason)
        )
    return changes


def record_attempts(
    record: TaskRecord, workers: Mapping[str, _Worker]
) -> tuple[list[Attempt], list[StateChange]]:
    """What the broker itself keeps: the last attempt, and the first and the last state."""
    state = record.state.value
    changes = [StateChange(at=record.enqueued_at, kind="enqueued", state="")]
    attempts: list[Attempt] = []
    if record.started_at is not None:
        worker = workers.get(record.incarnation)
        number = record.attempts + 1
        attempts.append(
            Attempt(
                number=number,
                worker=record.incarnation,
                host="" if worker is None else worker.host,
                pid=0 if worker is None else worker.pid,
                started_at=record.started_at,
            )
        )
        changes.append(
            StateChange(at=record.started_at, kind="started", state=state, attempt=number)
        )
    elif record.attempts:
        error = record.error
        attempts.append(
            Attempt(
                number=record.attempts,
                ended_at=record.finished_at,
                outcome=_outcome(state, record.reason) if state in _OUTCOMES else "failed",
                reason=record.reason,
                error_type="" if error is None else error.type,
                error="" if error is None else error.message[:2_048],
            )
        )
    if record.state in FINAL and record.finished_at is not None:
        changes.append(
            StateChange(at=record.finished_at, kind=state, state=state, reason=record.reason)
        )
    return attempts, changes


def _outcome(kind: str, reason: str) -> str:
    if kind == "recovered" and reason not in _CRASHES:
        return "unclaimed"
    return "crashed" if reason in _CRASHES else _OUTCOMES[kind]
