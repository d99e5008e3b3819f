"""What is known of one task, for people and for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.broker.records import BODY_BEGIN, TaskRecord
from fairlead.ledger.rows import TaskRow
from fairlead.model.argument_packing import unpack, unpack_arguments
from fairlead.model.codecs import CodecError
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, ErrorInfo, run_limits, task_name
from fairlead.model.outbox_state import OutboxState
from fairlead.model.priorities import DEFAULT, Priorities


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a task but its result. Times are the broker's.

    Its arguments are there if they were asked for: ``args`` and ``kwargs``, as plain data.
    """

    id: str
    """The id of the task."""
    task: str
    """The name it is registered under; empty if it was cancelled, which drops its body."""
    queue: str
    """The queue it is in."""
    tenant: str
    """Whose task it is."""
    state: State | OutboxState
    """Where it is now."""
    priority: str
    """Its level, or what the app calls that."""
    max_retries: int | None
    """How many attempts may follow the first; None: not known."""
    attempts: int
    """How many attempts are used up so far."""
    reason: str
    """Why it is dead, or what became of the last attempt."""
    error: ErrorInfo | None
    """The last error: type, message, traceback."""
    progress: Any
    """The last value that a handler recorded, as plain data."""
    cancelling: bool
    """True: it runs, and cancel was asked for."""
    waiting_for: tuple[str, ...]
    """The ids of unfinished dependencies."""
    enqueued_at: float
    """Unix seconds when it was accepted."""
    due_at: float | None
    """Unix seconds when it is due, while it is scheduled or retrying."""
    deadline_at: float | None
    """Unix seconds after which no attempt may start; None: no deadline."""
    started_at: float | None
    """Unix seconds when the attempt began, while it is running."""
    finished_at: float | None
    """Unix seconds when it ended; None: it has not."""
    worker: str = ""
    """The incarnation of the worker that runs it, as in ``app.workers()``."""
    args: tuple[Any, ...] | None = None
    """What it was called with by position, where that was asked for."""
    kwargs: dict[str, Any] | None = None
    """What it was called with by name, where that was asked for."""
    encoded: str = ""
    """The codec of what is missing here because it cannot be decoded."""

    @property
    def attempt(self) -> int:
        """The attempt that runs, or else the last that was used up; 0: none has begun."""
        return self.attempts + (self.state is State.RUNNING)


def has_whole_body(record: TaskRecord) -> bool:
    """Return whether a record has the arguments of its task, and not only the name."""
    return len(record.message.body) < BODY_BEGIN


def info_of(
    record: TaskRecord, priorities: Priorities = DEFAULT, *, arguments: bool = False
) -> TaskInfo:
    """The view of a stored record, with the progress decoded; with arguments, if it has them."""
    message = record.message
    runs, _ = run_limits(message.flags)
    missing: list[str] = []
    args, kwargs = _arguments(message.body, missing) if arguments else (None, None)
    return TaskInfo(
        id=message.id,
        task=task_name(message.body),
        queue=message.queue,
        tenant=message.tenant,
        state=record.state,
        priority=priorities.name(message.level),
        max_retries=None if runs is None else runs - 1,
        attempts=record.attempts,
        reason=record.reason,
        error=record.error,
        progress=_progress(record.progress, missing),
        cancelling=record.cancelling,
        waiting_for=record.waiting_for,
        enqueued_at=record.enqueued_at,
        due_at=record.due_at,
        deadline_at=record.deadline_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        worker=record.incarnation,
        args=args,
        kwargs=kwargs,
        encoded=missing[0] if missing else "",
    )


def _progress(data: bytes | None, missing: list[str]) -> Any:
    try:
        return None if data is None else unpack(data)
    except CodecError as error:
        missing.append(error.codec)
        return None


def _arguments(
    body: bytes, missing: list[str]
) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    """The arguments in a body; None of a task that was cancelled, or of a later release."""
    try:
        args, kwargs = unpack_arguments(Body.decode(body).arguments)
    except InvalidInput:
        return None, None
    except CodecError as error:
        missing.append(error.codec)
        return None, None
    return tuple(args), kwargs


def info_in_ledger(
    row: TaskRow, state: State | OutboxState, priorities: Priorities = DEFAULT
) -> TaskInfo:
    """The view of a task of which only the ledger knows; times are the ledger's."""
    return TaskInfo(
        id=row.id,
        task=row.name,
        queue=row.queue,
        tenant=row.tenant,
        state=state,
        priority=priorities.name(row.level),
        max_retries=None,  # it is not in the ledger
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
        worker=row.worker if state is State.RUNNING else "",
    )
