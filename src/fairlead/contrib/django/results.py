"""What the broker knows of a task, as Django's ``TaskResult``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.utils.module_loading import import_string

from fairlead.broker.records import TaskRecord
from fairlead.contrib.django.api import Task, TaskError, TaskResult, TaskResultStatus
from fairlead.contrib.django.runs import UNKNOWN_WORKER, enqueued_at, task_as_said
from fairlead.model import errors
from fairlead.model.argument_packing import unpack, unpack_arguments
from fairlead.model.lifecycle import State
from fairlead.model.message import Body

_STATUS = {
    State.RUNNING: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}


def result_of(record: TaskRecord) -> Any:
    """Return the result of a task; None if it is none of Django's.

    Nor can that be told of a task that was cancelled, which drops what it was.
    """
    message = record.message
    if not message.body:
        return None
    body = Body.decode(message.body)
    given, _ = unpack_arguments(body.arguments)
    if len(given) != 3 or not isinstance(given[2], dict) or "queue_name" not in given[2]:
        return None
    args, kwargs, said = given
    kept: dict[str, Any] = {}
    if record.result is not None:
        kept = unpack(record.result)
    elif record.progress is not None:
        kept = unpack(record.progress)
    started = _started_at(record, kept)
    result = TaskResult(
        task=_task(body.task, said),
        id=message.id,
        status=_STATUS.get(record.state, TaskResultStatus.READY),
        enqueued_at=enqueued_at(said, record.enqueued_at, _moment(started)),
        started_at=_moment(started),
        last_attempted_at=_moment(started),
        finished_at=_moment(record.finished_at),
        args=args,
        kwargs=kwargs,
        backend=said["backend"],
        errors=_errors(record, kept),
        worker_ids=_workers(record, kept),
    )
    if record.state is State.COMPLETED:
        object.__setattr__(result, "_return_value", kept.get("value"))
    return result


def _task(path: str, said: dict[str, Any]) -> Any:
    found = import_string(path)
    if not isinstance(found, Task):
        raise ImportError(f"{path} is not a task any more")
    return task_as_said(found, said)


def _errors(record: TaskRecord, kept: dict[str, Any]) -> list[Any]:
    """The last error: by the words of the handler, or by those of the broker."""
    if record.state is State.COMPLETED:
        return []
    if "error" in kept:
        return [TaskError(exception_class_path=kept["error"], traceback=kept["traceback"])]
    if record.error is None:
        return []
    name = record.error.type
    if "." not in name:
        name = f"{'fairlead' if hasattr(errors, name) else 'builtins'}.{name}"
    text = record.error.traceback or f"{record.error.type}: {record.error.message}\n"
    return [TaskError(exception_class_path=name, traceback=text)]


def _workers(record: TaskRecord, kept: dict[str, Any]) -> list[str]:
    attempts = record.attempts + (record.state is State.RUNNING)
    if not attempts:
        return []
    last = record.incarnation or kept.get("worker", UNKNOWN_WORKER)
    return [*[UNKNOWN_WORKER] * (attempts - 1), last]


def _started_at(record: TaskRecord, kept: dict[str, Any]) -> float | None:
    """When the last attempt began, by the broker's clock; None if that is not known any more."""
    if record.state is State.RUNNING:
        return record.started_at
    if record.finished_at is None or "seconds" not in kept:
        return None
    return max(record.finished_at - float(kept["seconds"]), record.enqueued_at)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
