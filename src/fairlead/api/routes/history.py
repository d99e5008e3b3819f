"""What became of tasks, of those too that the broker has forgotten, if there is a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from fairlead.api.http.problems import LedgerAway, NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.routes.tasks import Whose
from fairlead.api.task_lookup import is_foreign, task_id
from fairlead.api.views.timestamps import Moment, moment
from fairlead.client.attempts import Attempt, StateChange
from fairlead.client.history import (
    HistorySelection,
    HistoryTask,
    Source,
    history_of,
    read_history,
)

T = TypeVar("T")

HistoryState = Literal[
    "pending", "claimed", "scheduled", "deferred", "queued", "running", "retrying", "completed",
    "dead", "cancelled", "refused",
]  # fmt: skip


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks, and which part of them. Moments are RFC 3339, about ``created_at``."""

    state: HistoryState | None = None
    queue: str | None = None
    tenant: str | None = None
    name: str | None = None  # of the task
    error: str | None = None  # words in the type or the text of the last error
    since: Moment | None = None
    until: Moment | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class HistoryTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands, or as it ended; never its payload."""

    id: str
    task: str  # its name; empty if it was forgotten before anybody asked for it
    queue: str
    tenant: str
    state: str
    priority: str
    attempts: int
    reason: str = ""
    error_type: str = ""
    error: str = ""  # the text of the last one, cut at 2 KiB
    worker: str = ""  # that ran it last; not for tokens of a tenant
    flow: str = ""
    stands_for: str = ""  # refused as a duplicate: the task that runs in its place
    recoveries: int = 0
    created_at: Moment | None = None
    due_at: Moment | None = None
    deadline_at: Moment | None = None
    updated_at: Moment | None = None
    started_at: Moment | None = None
    finished_at: Moment | None = None


class HistoryPageView(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing, the newest first if ``source`` is the ledger.

    From the broker it may be empty, and not the last.
    """

    tasks: list[HistoryTaskView]
    source: Source
    cursor: str | None = None  # for the next page; None: this is the last


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a task. Its worker, host and pid are not for tokens of a tenant."""

    number: int
    worker: str = ""
    host: str = ""
    pid: int = 0
    started_at: Moment | None = None
    ended_at: Moment | None = None
    outcome: str = ""  # empty: it runs
    reason: str = ""
    error_type: str = ""
    error: str = ""


class StateChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a task, and the state that it was in afterwards."""

    at: Moment | None
    kind: str
    state: str
    attempt: int = 0
    reason: str = ""


class TaskHistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts and changes of one task; from the broker, the last of them only."""

    task: HistoryTaskView
    attempts: list[AttemptView]
    changes: list[StateChangeView]
    source: Source
    is_cut: bool = False  # more happened than is kept


async def listing(request: Request) -> HistoryPageView:
    """Tasks that match, newest first."""
    query: HistoryQuery = request.query
    given = {key: getattr(query, key) for key in query.__struct_fields__}
    given["tenant"] = request.tenant(query.tenant)
    selection = {key: value for key, value in given.items() if value is not None}
    page = await _soon(
        request,
        read_history(request.service.ledger, request.client, cast(HistorySelection, selection)),
    )
    return HistoryPageView(
        tasks=[_task(request, task) for task in page.tasks],
        source=page.source,
        cursor=page.cursor,
    )


async def show(request: Request) -> TaskHistoryView:
    """All that happened to a task."""
    found = await _soon(
        request, history_of(request.service.ledger, request.client, task_id(request))
    )
    own = request.tenant(request.query.tenant)
    if found is None or (own is not None and found.task.tenant != own):
        raise NotFound("there is no such task", field="id", value=request.path["id"])
    return TaskHistoryView(
        task=_task(request, found.task),
        attempts=[_attempt(request, each) for each in found.attempts],
        changes=[_change(each) for each in found.changes],
        source=found.source,
        is_cut=found.is_cut,
    )


async def _soon(request: Request, reading: Awaitable[T]) -> T:
    """What is read, within the patience of the API. Raises ``LedgerAway``."""
    if request.service.ledger is None:
        return await reading
    try:
        async with asyncio.timeout(request.service.settings.patience):
            return await reading
    except TimeoutError:
        raise LedgerAway("the ledger did not answer in time", retry_after=2.0) from None


def _task(request: Request, task: HistoryTask) -> HistoryTaskView:
    fields: dict[str, Any] = msgspec.structs.asdict(task)
    for name, value in fields.items():
        if name.endswith("_at"):
            fields[name] = moment(value)
    own = request.access.tenant
    if own is not None:
        fields["worker"] = ""
        fields["flow"] = "" if is_foreign(task.flow, own) else task.flow
    return HistoryTaskView(**fields)


def _attempt(request: Request, attempt: Attempt) -> AttemptView:
    fields: dict[str, Any] = msgspec.structs.asdict(attempt)
    fields |= {
        "started_at": moment(attempt.started_at),
        "ended_at": moment(attempt.ended_at),
    }
    if request.access.tenant is not None:
        fields |= {"worker": "", "host": "", "pid": 0}
    return AttemptView(**fields)


def _change(change: StateChange) -> StateChangeView:
    fields: dict[str, Any] = msgspec.structs.asdict(change)
    return StateChangeView(**{**fields, "at": moment(change.at)})


ROUTES = (
    Route(
        method="GET",
        path="/history",
        handler=listing,
        scope="read",
        summary="List what became of tasks, those too that the broker has forgotten, in pages.",
        query=HistoryQuery,
        problems=(LedgerAway,),
    ),
    Route(
        method="GET",
        path="/tasks/{id}/history",
        handler=show,
        scope="read",
        summary="Show every attempt of a task, and every change of its state.",
        query=Whose,
        problems=(LedgerAway,),
    ),
)
