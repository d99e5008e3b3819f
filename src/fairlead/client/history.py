"""What became of tasks: from the ledger, where it is kept, or from the broker as far as that knows.

Whoever asks is told which of the two answered: the broker forgets what is past its retention, and
knows of attempts the last one only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.client.attempts import Attempt, StateChange, attempts_of, changes_of, record_attempts
from fairlead.client.client import Client
from fairlead.client.errors import check_options
from fairlead.client.task_reader import PageSelection
from fairlead.ledger.rows import TaskRow
from fairlead.ledger.task_log import is_full, unpack_log
from fairlead.model.errors import InvalidName, InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.message import task_name
from fairlead.model.names import check_queue, check_task_name, check_tenant
from fairlead.model.priorities import Priorities

if TYPE_CHECKING:
    from fairlead.ledger.ledger import Ledger

Source = Literal["ledger", "broker"]

#: States of a row of the ledger: those of the broker, and what comes before and beside them.
HISTORY_STATES: tuple[str, ...] = (
    "pending",
    "claimed",
    *(state.value for state in State),
    "refused",
)

_MOST = 1_000  # tasks of one page
_LONGEST = 500  # characters of what is searched for in errors


class HistorySelection(TypedDict, total=False):
    """Which tasks, and which part of them; what is left out does not matter."""

    state: str
    """Only tasks in this state. Default: in all."""
    queue: str
    """Only tasks of this queue. Default: of all."""
    tenant: str
    """Only tasks of this tenant. Default: of all."""
    name: str
    """Only tasks with this name. Default: with all."""
    error: str
    """Only tasks with these words in the type or the text of their last error. Default: all."""
    since: float | datetime
    """Only tasks enqueued at this moment or later: unix seconds, or a datetime. Default: all."""
    until: float | datetime
    """Only tasks enqueued before this moment: unix seconds, or a datetime. Default: all."""
    cursor: str | None
    """Where to read on: ``cursor`` of the page before. Default: None, the beginning."""
    limit: int
    """How many tasks at most, up to 1,000. Default: 50."""


class HistoryTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands, or as it ended. Times are unix seconds."""

    id: str
    task: str  # its name; empty if it was forgotten before anybody asked for it
    queue: str
    tenant: str
    state: str
    priority: str
    attempts: int = 0
    worker: str = ""  # the incarnation that ran it last
    reason: str = ""
    error_type: str = ""
    error: str = ""  # the text of the last one, cut at 2 KiB
    flow: str = ""
    stands_for: str = ""  # refused as a duplicate: the task that runs in its place
    recoveries: int = 0  # how often it was sent again, because nobody ran it any more
    created_at: float
    due_at: float | None = None
    deadline_at: float | None = None
    updated_at: float | None = None  # the last change of its state
    started_at: float | None = None  # the last attempt
    finished_at: float | None = None


_AS_IN_THE_ROW = set(HistoryTask.__struct_fields__) & set(TaskRow.__struct_fields__)


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing; ``cursor`` is None at its end.

    From the ledger, the newest come first. From the broker they come in an order of its own, and a
    page may be empty and not the last.
    """

    tasks: list[HistoryTask]
    source: Source
    cursor: str | None = None


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that happened to one task, as far as it is kept."""

    task: HistoryTask
    attempts: list[Attempt]
    changes: list[StateChange]
    source: Source
    is_cut: bool = False  # more happened than is kept: the last of it may be missing


async def read_history(
    ledger: Ledger | None, client: Client, selection: HistorySelection
) -> HistoryPage:
    """A page of what became of tasks: of the ledger, if there is one."""
    asked = _checked(selection)
    if ledger is not None:
        return await _from_ledger(ledger, asked, client.priorities)
    return await _from_broker(client, asked)


async def history_of(ledger: Ledger | None, client: Client, id: str) -> TaskHistory | None:
    """What happened to the task of this stored id; None if nobody knows it.

    A task that the ledger does not have yet is looked for in the broker.
    """
    row = None if ledger is None else await ledger.task(id=id)
    if ledger is not None and row is not None:
        return await _row_history(ledger, row, client.priorities)
    record = await client.reader.one(id, "info")
    if record is None:
        return None
    workers = {each.incarnation: each for each in await client.store.workers()}
    attempts, changes = record_attempts(record, workers)
    task = _of_record(record, client.priorities)
    return TaskHistory(task=task, attempts=attempts, changes=changes, source="broker")


# -- the ledger ------------------------------------------------------------------------------------


async def _from_ledger(
    ledger: Ledger, asked: dict[str, Any], priorities: Priorities
) -> HistoryPage:
    cursor, limit = asked.pop("cursor"), asked.pop("limit")
    before, seq = (None, 0) if cursor is None else _place(cursor)
    rows = await ledger.list_tasks(before=before, before_seq=seq, limit=limit + 1, **asked)
    more = len(rows) > limit
    return HistoryPage(
        tasks=[_of_row(row, priorities) for row in rows[:limit]],
        source="ledger",
        cursor=_cursor(rows[limit - 1]) if more else None,
    )


async def _row_history(ledger: Ledger, row: TaskRow, priorities: Priorities) -> TaskHistory:
    log = unpack_log(row.log)
    workers = await ledger.workers_of(incarnations=list({each.worker for each in log} - {""}))
    return TaskHistory(
        task=_of_row(row, priorities),
        attempts=attempts_of(log, workers),
        changes=changes_of(row, log),
        source="ledger",
        is_cut=is_full(row.log),
    )


def _of_row(row: TaskRow, priorities: Priorities) -> HistoryTask:
    same: dict[str, Any] = {name: getattr(row, name) for name in _AS_IN_THE_ROW}
    return HistoryTask(task=row.name, priority=priorities.name(row.level), **same)


def _cursor(row: TaskRow) -> str:
    return f"l{round(row.created_at * 1_000_000)}-{row.seq}"


def _place(cursor: str) -> tuple[float, int]:
    micros, dash, seq = cursor[1:].partition("-")
    fits = cursor[:1] == "l" and dash and micros.isdecimal() and seq.isdecimal()
    if not fits or len(cursor) > 60 or int(seq) >= 2**63 or int(micros) >= 2**56:
        raise _not_a_cursor(cursor)
    return int(micros) / 1_000_000, int(seq)


def _not_a_cursor(cursor: object) -> InvalidOption:
    return InvalidOption("cursor", cursor, "one that an earlier page returned")


# -- the broker ------------------------------------------------------------------------------------


async def _from_broker(client: Client, asked: dict[str, Any]) -> HistoryPage:
    cursor, state = asked["cursor"], asked["state"]
    if cursor is not None and cursor[:1] != "b":
        raise _not_a_cursor(cursor)
    if state is not None and state not in tuple(State):
        return HistoryPage(tasks=[], source="broker")  # the broker has none in that state
    selection: PageSelection = {"limit": asked["limit"]}
    if cursor is not None:
        selection["cursor"] = cursor[1:]
    if state is not None:
        selection["state"] = state
    if asked["queue"] is not None:
        selection["queue"] = asked["queue"]
    if asked["tenant"] is not None:
        selection["tenant"] = asked["tenant"]
    page = await client.page(selection)
    tasks = [_of_record(record, client.priorities) for record in page.tasks]
    found = [task for task in tasks if _is_asked(task, asked)]
    end = None if page.cursor is None else f"b{page.cursor}"
    return HistoryPage(tasks=found, source="broker", cursor=end)


def _is_asked(task: HistoryTask, asked: Mapping[str, Any]) -> bool:
    """Whether a task is meant, as far as the broker does not see to it itself."""
    since, until, error = asked["since"], asked["until"], asked["error"]
    if asked["name"] is not None and task.task != asked["name"]:
        return False
    if error is not None:
        text = f"{task.error_type} {task.error}".lower()
        if not all(word in text for word in error.lower().split()):
            return False
    return (since is None or task.created_at >= since) and (
        until is None or task.created_at < until
    )


def _of_record(record: TaskRecord, priorities: Priorities) -> HistoryTask:
    message, error = record.message, record.error
    return HistoryTask(
        id=message.id,
        task=task_name(message.body),
        queue=message.queue,
        tenant=message.tenant,
        state=record.state.value,
        priority=priorities.name(message.level),
        attempts=record.attempts + (record.started_at is not None),
        worker=record.incarnation,
        reason=record.reason,
        error_type="" if error is None else error.type,
        error="" if error is None else error.message[:2_048],
        flow=record.flow,
        created_at=record.enqueued_at,
        due_at=record.due_at,
        deadline_at=record.deadline_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
    )


# -- what is asked for -----------------------------------------------------------------------------


def _checked(selection: HistorySelection) -> dict[str, Any]:
    check_options(selection, HistorySelection, "a history")
    state, error, cursor = (selection.get(key) for key in ("state", "error", "cursor"))
    queue, tenant, name = (selection.get(key) for key in ("queue", "tenant", "name"))
    limit = selection.get("limit", 50)
    if state is not None and state not in HISTORY_STATES:
        raise InvalidOption("state", state, f"one of {', '.join(HISTORY_STATES)}")
    if error is not None and (not isinstance(error, str) or not 0 < len(error) <= _LONGEST):
        raise InvalidOption("error", error, f"words, of up to {_LONGEST} characters")
    if error is not None and "\x00" in error:
        raise InvalidOption("error", error, "without NUL")
    if cursor is not None and not isinstance(cursor, str):
        raise _not_a_cursor(cursor)
    if type(limit) is not int or not 1 <= limit <= _MOST:
        raise InvalidOption("limit", limit, f"a whole number from 1 to {_MOST:,}")
    return {
        "state": None if state is None else str(state),
        "queue": None if queue is None else check_queue(queue),
        "tenant": None if tenant is None else check_tenant(tenant),
        "name": None if name is None else _task_name(name),
        "error": error,
        "since": _seconds("since", selection.get("since")),
        "until": _seconds("until", selection.get("until")),
        "cursor": cursor,
        "limit": limit,
    }


def _task_name(name: object) -> str:
    """Check a name; the error is about the option."""
    try:
        return check_task_name(name)
    except InvalidName as error:
        raise InvalidOption("name", name, error.rule) from None


def _seconds(option: str, value: object) -> float | None:
    """A moment as unix seconds."""
    if value is None:
        return None
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.timestamp()
    if type(value) not in (int, float) or not -1e10 < value < 1e11:  # type: ignore[operator]
        raise InvalidOption(option, value, "unix seconds, or a datetime with a zone")
    return float(value)  # type: ignore[arg-type]
