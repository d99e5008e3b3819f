"""Dead letters: tasks that are dead, by what they died of; put back to work, or deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.api.bulk_actions import Act, ActStep, Tally, act
from fairlead.api.http.problems import Invalid
from fairlead.api.http.route import Reply, Request, Route
from fairlead.api.task_filter import TaskFilter, matches, selection_of
from fairlead.api.task_lookup import stored_id
from fairlead.api.views.paging import MAX_LIMIT, Cursor, Limit, about
from fairlead.api.views.timestamps import Moment, moment
from fairlead.broker.records import TaskRecord
from fairlead.client.bulk_actions import Action, Changes, order_for
from fairlead.client.error_groups import ErrorKind, kind_of
from fairlead.client.task_pages import Found, found_tasks
from fairlead.model.lifecycle import State
from fairlead.model.safe_repr import one_line

_CALLS = 8  # to the broker, for one page
_LONGEST = 1_000  # characters of an error's message
_Group = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="The group of an error.")]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead task, without arguments and traceback: see the task itself."""

    id: str
    task: str
    queue: str
    tenant: str
    attempts: int
    reason: Annotated[str, about("Why it is dead: exhausted, rejected, expired, poison, ...")]
    error_type: str = ""
    error_message: Annotated[str, about("Cut after 1,000 characters.")] = ""
    group: Annotated[str, about("The same for tasks that died of the same thing.")]
    enqueued_at: datetime
    dead_at: datetime | None = None


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the dead letters. It may have fewer than were asked for and not be the last."""

    dead_letters: list[DeadLetter]
    examined: int
    cursor: str | None = None


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead tasks of one name that died of the same error."""

    group: str
    task: str
    error_type: str
    message: Annotated[str, about("Its first line, without what differs from task to task.")]
    count: int
    newest_at: datetime | None = None
    sample: Annotated[str, about("The id of the newest.")]


class DeadLetterGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups among some of the dead letters; those of several pages are added up by ``group``."""

    groups: Annotated[list[DeadLetterGroup], about("The largest first.")]
    examined: Annotated[int, about("Dead letters that were looked at for this page.")]
    cursor: str | None = None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters."""

    queue: str | None = None
    tenant: str | None = None
    name: Annotated[str, about("Of the task; with a * at its end, its beginning.")] | None = None
    error: Annotated[str, about("A part of `type: message`, or the reason.")] | None = None
    since: Moment | None = None  # enqueued then or later
    until: Moment | None = None  # enqueued before
    cursor: Cursor | None = None


class DeadLetterQuery(DeadLetterFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of them."""

    group: _Group | None = None
    limit: Limit = 50


class DeadLetterOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters an order is about: one of ``ids``, ``group`` and ``all``."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_LIMIT)] | None = None
    group: _Group | None = None
    all: bool = False
    queue: Annotated[str | None, about("Only those of a queue; not with ids.")] = None
    tenant: str | None = None
    name: Annotated[str | None, about("Only those of a task; not with ids.")] = None
    dry_run: Annotated[bool, about("Only count what matches.")] = False
    cursor: Cursor | None = None


# -- reads -------------------------------------------------------------------------------------


async def _list(request: Request) -> DeadLetterPage:
    query: DeadLetterQuery = request.query
    found = await _found(request, query, query.limit, query.group)
    return DeadLetterPage(
        dead_letters=[_view(record) for record in found.records],
        examined=found.examined,
        cursor=found.cursor,
    )


async def _groups(request: Request) -> DeadLetterGroups:
    query: DeadLetterFilter = request.query
    found = await _found(request, query, _CALLS * MAX_LIMIT, None)
    by_group: dict[str, tuple[ErrorKind, list[TaskRecord]]] = {}
    for record in found.records:
        kind = kind_of(record)
        by_group.setdefault(kind.group, (kind, []))[1].append(record)
    groups = [_group(kind, records) for kind, records in by_group.values()]
    return DeadLetterGroups(
        groups=sorted(groups, key=lambda each: (-each.count, each.group)),
        examined=found.examined,
        cursor=found.cursor,
    )


async def _found(request: Request, query: DeadLetterFilter, limit: int, group: str | None) -> Found:
    asked = TaskFilter(
        queue=query.queue,
        name=query.name,
        error=query.error,
        since=query.since,
        until=query.until,
    )
    return await found_tasks(
        request.client,
        selection_of(asked, State.DEAD, request.tenant(query.tenant), query.cursor),
        lambda record: matches(record, asked) and (group is None or kind_of(record).group == group),
        limit=min(limit, 1_000),
        calls=_CALLS,
    )


def _view(record: TaskRecord) -> DeadLetter:
    message, error, kind = record.message, record.error, kind_of(record)
    return DeadLetter(
        id=message.id,
        task=kind.task,
        queue=message.queue,
        tenant=message.tenant,
        attempts=record.attempts,
        reason=record.reason,
        error_type="" if error is None else error.type,
        error_message="" if error is None else one_line(error.message, _LONGEST),
        group=kind.group,
        enqueued_at=moment(record.enqueued_at),
        dead_at=moment(record.finished_at),
    )


def _group(kind: ErrorKind, records: list[TaskRecord]) -> DeadLetterGroup:
    newest = max(records, key=lambda record: record.finished_at or 0.0)
    return DeadLetterGroup(
        group=kind.group,
        task=kind.task,
        error_type=kind.type,
        message=kind.message,
        count=len(records),
        newest_at=moment(newest.finished_at),
        sample=newest.message.id,
    )


# -- orders ------------------------------------------------------------------------------------


async def _requeue(request: Request) -> ActStep | Reply:
    return await _order(request, "retry")


async def _delete(request: Request) -> ActStep | Reply:
    return await _order(request, "delete")


async def _order(request: Request, action: Action) -> ActStep | Reply:
    body: DeadLetterOrder = request.body
    given = [name for name in ("ids", "group", "all") if getattr(body, name)]
    if len(given) != 1:
        raise Invalid(
            f"given are {' and '.join(given) or 'none'}",
            field="ids",
            rule="one of ids, group and all: true",
        )
    tenant = request.tenant(body.tenant)
    if body.ids is not None:
        return await _named(request, action, body)
    order = Act(
        action=action,
        asked=TaskFilter(queue=body.queue, name=body.name),
        state=State.DEAD,
        tenant=tenant,
        group=body.group,
        dry_run=body.dry_run,
    )
    return await act(request, order, body.cursor, "dead_letters")


async def _named(request: Request, action: Action, body: DeadLetterOrder) -> ActStep:
    """The order about some dead letters by their ids; those of other tenants are unknown."""
    for field in ("queue", "name", "cursor"):
        if (value := getattr(body, field)) is not None:
            detail = "ids say already which ones are meant"
            raise Invalid(detail, field=field, value=value, rule="left out with ids")
    tenant = request.tenant(body.tenant)
    ids = list(dict.fromkeys(stored_id(request, id, body.tenant) for id in body.ids or ()))
    now = await request.client.now()
    dead = [
        record
        for record in await request.client.find(ids)
        if record is not None
        and record.state is State.DEAD
        and (tenant is None or record.message.tenant == tenant)
    ]
    changes = Changes()
    try:
        if not body.dry_run:
            await changes.make(request.client, [order_for(action, each) for each in dead])
    finally:
        if changes.count:
            told = [each.message.id for each in dead]
            await request.note(f"dead_letters.{action}", "*", ids=told, changed=changes.count)
    changed = changes.count
    return ActStep(
        examined=len(ids),
        matched=len(dead),
        changed=changed,
        total=Tally(examined=len(ids), matched=len(dead), changed=changed),
        began_at=moment(now),
        sample=[each.message.id for each in dead[:10]],
    )


ROUTES = (
    Route(
        method="GET",
        path="/dead-letters",
        handler=_list,
        scope="read",
        summary="List dead tasks with what they died of, in pages.",
        query=DeadLetterQuery,
    ),
    Route(
        method="GET",
        path="/dead-letters/groups",
        handler=_groups,
        scope="read",
        summary="Group dead tasks by name and error, in bounded pages.",
        query=DeadLetterFilter,
    ),
    Route(
        method="POST",
        path="/dead-letters/requeue",
        handler=_requeue,
        scope="manage",
        summary="Put dead tasks back to work: some, a group, or all, in steps.",
        body=DeadLetterOrder,
        answer=ActStep,
    ),
    Route(
        method="POST",
        path="/dead-letters/delete",
        handler=_delete,
        scope="manage",
        summary="Forget dead tasks: some, a group, or all, in steps.",
        body=DeadLetterOrder,
        answer=ActStep,
    ),
)
