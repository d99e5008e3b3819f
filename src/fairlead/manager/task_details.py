"""What events do not say of tasks: names, submissions and errors, asked from the broker in batches.

The broker may have forgotten a task by the time that it is asked. What it does not know any more is
left out of the row: nothing is made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.broker import Store
from fairlead.broker.records import BODY_BEGIN, Parts, TaskRecord
from fairlead.broker.requests import Submission
from fairlead.client.stored_submissions import content_of, encode_submission
from fairlead.ledger.rows import LastEvent
from fairlead.ledger.task_log import MAX_ERROR, pack_log
from fairlead.manager.event_changes import TaskChange, cut
from fairlead.model.lifecycle import State
from fairlead.model.message import task_name
from fairlead.model.options import Dependency

_AT_ONCE = 500  # ids of one call
_LARGE_AT_ONCE = 20  # ids of one call that may bring a MiB each, and checkpoints as large
_MAX_NAME = 1_024  # bytes


async def find_in_batches(
    store: Store, ids: Sequence[str], parts: Parts
) -> dict[str, TaskRecord | None]:
    """What the broker knows of these tasks; None where it knows nothing."""
    found: dict[str, TaskRecord | None] = {}
    for first in range(0, len(ids), _AT_ONCE):
        some = ids[first : first + _AT_ONCE]
        found.update(zip(some, await store.find(some, parts=parts), strict=True))
    return found


class Details(msgspec.Struct):
    """What was found of tasks."""

    found: dict[str, TaskRecord] = {}
    whole: set[str] = set()  # of these the body is not cut
    left: set[str] = set()  # of these it is, because others took up all the room


async def found_details(
    store: Store, changes: Iterable[TaskChange], known: Mapping[str, LastEvent], room: int
) -> Details:
    """Records of the tasks of which something is missing.

    The whole of a task is asked for only if it may have to be sent again: it is not over yet. Such
    bodies come a few at a time, in the order of ``changes``, until ``room`` bytes are taken up.
    """
    asked: list[str] = []
    wanted: list[str] = []
    for change in changes:
        row = known.get(change.id)
        if not change.is_final and (row is None or (change.begins and not row.is_sendable)):
            wanted.append(change.id)
        elif row is not None and row.is_named and change.failed < 0:
            continue
        asked.append(change.id)
    records = await find_in_batches(store, asked, "info")
    details = Details({id: record for id, record in records.items() if record is not None})
    large: list[str] = []
    for id in wanted:
        if id not in details.found or details.found[id].state in _OVER:
            continue
        if len(details.found[id].message.body) < BODY_BEGIN:
            details.whole.add(id)
        else:
            large.append(id)
    for first in range(0, len(large), _LARGE_AT_ONCE):
        if room <= 0:
            details.left.update(large[first:])
            break
        some = large[first : first + _LARGE_AT_ONCE]
        for id, record in zip(some, await store.find(some, parts="all"), strict=True):
            if record is not None:
                details.found[id] = msgspec.structs.replace(
                    record, checkpoint=None, log=None, result=None
                )
                details.whole.add(id)
                room -= len(record.message.body)
    return details


def row_of(
    change: TaskChange, record: TaskRecord | None, *, is_whole: bool = False
) -> tuple[Any, ...]:
    """A change as the columns of the table ``incoming``, with what was found beside it.

    ``is_whole``: the body of the record is not cut, so that the task could be sent again with it.
    """
    name, flow, error_type, error = "", "", "", ""
    level, created, due, deadline = change.level, change.at, None, None
    submission = content = None
    depends_on: list[str] | None = None
    if record is not None:
        message = record.message
        name, flow = cut(task_name(message.body), _MAX_NAME), record.flow
        if level is None:
            level = message.level
        created = record.enqueued_at or created
        due, deadline = record.due_at, record.deadline_at
        is_over = record.state in _OVER or change.is_final
        if is_whole and message.body and not is_over and not flow:
            depends_on = list(record.waiting_for) or None
            submission, content = _sendable(record), content_of(message)
        if change.failed >= 0 and record.error is not None and _is_of(change, record):
            error_type = cut(record.error.type, _MAX_NAME)
            error = cut(record.error.message, MAX_ERROR)
            line = change.log[change.failed]
            line += [0, "", ""][len(line) - 3 :]
            line += (error_type, error)
    return (
        change.id,
        change.state,
        change.queue,
        change.tenant,
        name,
        level,
        flow,
        submission,
        content,
        depends_on,
        created,
        due,
        deadline,
        change.changed_at,
        change.started_at,
        change.finished_at,
        change.attempts,
        change.begins,
        _stored(change.worker),
        None if change.reason is None else _stored(change.reason),
        error_type,
        error,
        change.entry,
        change.index,
        pack_log(change.log),
    )


_OVER = frozenset((State.COMPLETED, State.DEAD, State.CANCELLED))


def _sendable(record: TaskRecord) -> bytes:
    """The submission that would bring the task back, as far as a record tells it."""
    waits = tuple(Dependency(id, known=True) for id in record.waiting_for)
    return encode_submission(Submission(message=record.message, depends_on=waits))


def _is_of(change: TaskChange, record: TaskRecord) -> bool:
    """Whether the error in a record is that of the last failure: it has not failed again since."""
    return record.attempts == change.failed_attempt or record.state is State.DEAD


def _stored(text: str) -> str:
    return text if "\x00" not in text else cut(text, MAX_ERROR)
