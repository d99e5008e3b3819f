"""Tasks as callers see them: one shape for a task, its payload and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from fairlead.api.views.redaction import Redaction
from fairlead.api.views.timestamps import Moment, moment
from fairlead.broker.records import TaskRecord
from fairlead.model.argument_packing import unpack, unpack_arguments
from fairlead.model.codecs import CodecError
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, Message, Trace, task_name
from fairlead.model.priorities import Priorities
from fairlead.model.result_refs import Output

T = TypeVar("T")

CUT = 64 * 1024  # bytes of a payload or result that are shown beside the rest of a task

#: Words of other vocabularies for our states, understood where one is asked for.
_WORDS = {
    "pending": State.QUEUED,
    "submitted": State.QUEUED,
    "active": State.RUNNING,
    "retry": State.RETRYING,
    "dead_letter": State.DEAD,
    "failed": State.DEAD,
    "archived": State.DEAD,
    "canceled": State.CANCELLED,
}


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The last error of a task, as text."""

    type: str
    message: str
    traceback: str = ""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A payload or result. One that is too long is cut: ``text`` is the beginning of its JSON."""

    size: int  # bytes, as JSON
    value: Any = None
    truncated: bool = False
    text: str | None = None


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a task."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task. ``payload`` and ``result`` are there for callers with the scope ``payload``."""

    id: str
    task: str  # its name; empty once it was cancelled, which drops its body
    queue: str
    tenant: str
    state: State
    priority: str
    attempts: int = 0
    reason: str = ""
    error: ErrorView | None = None
    progress: Any = None
    cancelling: bool = False
    waiting_for: tuple[str, ...] = ()
    flow: str = ""
    correlation_id: str = ""
    enqueued_at: Moment | None = None
    due_at: Moment | None = None
    deadline_at: Moment | None = None
    started_at: Moment | None = None
    finished_at: Moment | None = None
    payload: Value | None = None
    result: Value | None = None
    encoded: str = ""  # the codec of what is missing here because it cannot be decoded


def view_of(
    record: TaskRecord,
    redaction: Redaction,
    priorities: Priorities,
    *,
    payload: bool = False,
    traceback: bool = True,
) -> TaskView:
    """What a caller sees of a stored task; its payload and result only if it may."""
    message, error = record.message, record.error
    shown = None
    missing: list[str] = []

    def unless_encoded(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except CodecError as error:
            missing.append(error.codec)
            return None

    progress = arguments = result = None
    if (stored := record.progress) is not None:
        progress = unless_encoded(lambda: redaction.hide(_stored(stored)))
    if payload:
        arguments = unless_encoded(lambda: _value(_encoded(payload_of(record, redaction))))
    if payload and record.result:
        result = unless_encoded(lambda: _value(result_of(record, redaction)))
    if error is not None:
        lines = error.traceback if traceback else ""
        shown = ErrorView(type=error.type, message=error.message, traceback=lines)
    return TaskView(
        id=message.id,
        task=task_name(message.body),
        queue=message.queue,
        tenant=message.tenant,
        state=record.state,
        priority=priorities.name(message.level),
        attempts=record.attempts,
        reason=record.reason,
        error=shown,
        progress=progress,
        cancelling=record.cancelling,
        waiting_for=record.waiting_for[:100],
        flow=record.flow,
        correlation_id=_correlation(message),
        enqueued_at=moment(record.enqueued_at or None),
        due_at=moment(record.due_at or None),
        deadline_at=moment(record.deadline_at or None),
        started_at=moment(record.started_at or None),
        finished_at=moment(record.finished_at or None),
        payload=arguments,
        result=result,
        encoded=missing[0] if missing else "",
    )


def payload_of(record: TaskRecord, redaction: Redaction) -> Payload | None:
    """The arguments of a task; None if they are gone, or of a release that is not known here.

    Raises ``CodecError`` if they cannot be decoded here, like ``result_of``.
    """
    try:
        args, kwargs = unpack_arguments(Body.decode(record.message.body).arguments)
    except InvalidInput:
        return None
    return Payload(args=redaction.hide(args), kwargs=redaction.hide(kwargs))


def result_of(record: TaskRecord, redaction: Redaction) -> bytes:
    """The result of a task as JSON."""
    return _encoded(
        None if record.result is None else redaction.hide(_stored(record.result, "the result"))
    )


def state_named(word: str) -> State | None:
    """Our state for a word, of ours or of another vocabulary; None if it is no such word."""
    lower = word.lower()
    found = _WORDS.get(lower)
    if found is None and lower in tuple(State):
        found = State(lower)
    return found


def _value(data: bytes) -> Value:
    if len(data) <= CUT:
        return Value(size=len(data), value=msgspec.Raw(data))
    return Value(size=len(data), truncated=True, text=data[:CUT].decode(errors="ignore"))


def _stored(data: bytes, what: str = "the progress") -> Any:
    try:
        return unpack(data, what)
    except InvalidInput:
        return None


def _correlation(message: Message) -> str:
    try:
        return Trace.of(message).correlation_id
    except InvalidInput:
        return ""


def _plain(value: Any) -> Any:
    """What JSON has no form for: the output of another task, by its id."""
    return {"output_of": value.id} if isinstance(value, Output) else str(value)


_encoded = msgspec.json.Encoder(enc_hook=_plain).encode
