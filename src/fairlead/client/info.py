"""What is known of one task, for people and for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.broker.views import TaskRecord
from fairlead.ledger.rows import TaskRow
from fairlead.model.lifecycle import State
from fairlead.model.message import ErrorInfo, task_name
from fairlead.model.outbox_state import OutboxState
from fairlead.model.values import unpack

__all__ = ("TaskInfo", "info_in_ledger", "info_of")


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a task but its arguments and its result. Times are the broker's."""

    id: str
    task: str  # the name it is registered under; empty if it was cancelled, which drops its body
    queue: str
    tenant: str
    state: State | OutboxState
    attempts: int  # used up so far
    reason: str  # why it is dead, or what became of the last attempt
    error: ErrorInfo | None  # the last one: type, message, traceback
    progress: Any  # the last value that a handler recorded, as plain data
    cancelling: bool  # it runs, and cancel was asked for
    waiting_for: tuple[str, ...]  # ids of unfinished dependencies
    enqueued_at: float  # unix seconds, as all of these
    due_at: float | None  # scheduled and retrying
    deadline_at: float | None
    started_at: float | None  # running
    finished_at: float | None


def info_of(record: TaskRecord) -> TaskInfo:
    """The view of a stored record, with the progress decoded."""
    message = record.message
    return TaskInfo(
        id=message.id,
        task=task_name(message.body),
        queue=message.queue,
        tenant=message.tenant,
        state=record.state,
        attempts=record.attempts,
        reason=record.reason,
        error=record.error,
        progress=None if record.progress is None else unpack(record.progress),
        cancelling=record.cancelling,
        waiting_for=record.waiting_for,
        enqueued_at=record.enqueued_at,
        due_at=record.due_at,
        deadline_at=record.deadline_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
    )


def info_in_ledger(row: TaskRow, state: State | OutboxState) -> TaskInfo:
    """The view of a task of which only the ledger knows; times are the ledger's."""
    return TaskInfo(
        id=row.id,
        task=row.name,
        queue=row.queue,
        tenant=row.tenant,
        state=state,
        attempts=row.attempts,
        reason=row.reason,
        error=ErrorInfo(row.error_type, row.error) if row.error_type else None,
        progress=None,
        cancelling=False,
        waiting_for=(),
        enqueued_at=row.created_at,
        due_at=row.due_at if state is OutboxState.PENDING else None,
        deadline_at=row.deadline_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )
