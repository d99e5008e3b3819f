"""Tasks in pages: those that match a filter."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.api.http.route import Request, Route
from fairlead.api.task_filter import TaskFilter, matches, selection_of, state_of
from fairlead.api.task_lookup import told_to_caller
from fairlead.api.views.tasks import TaskView, view_of
from fairlead.client.task_pages import found_tasks

_MOST_CALLS = 8  # to the broker, for one page


class TaskQuery(TaskFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks, and which part of them."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing. It may have less than was asked for, even none, and not be the last."""

    tasks: list[TaskView]
    examined: int  # how many were looked at
    cursor: str | None = None  # for the next page; None: this is the last


async def listing(request: Request) -> TaskPage:
    """Tasks that match, in an order of the store's own."""
    query: TaskQuery = request.query
    found = await found_tasks(
        request.client,
        selection_of(query, state_of(query), request.tenant(query.tenant), query.cursor),
        lambda record: matches(record, query),
        limit=query.limit,
        calls=_MOST_CALLS,
    )
    tasks = [
        view_of(record, request.service.redaction, request.client.priorities, traceback=False)
        for record in await told_to_caller(request, found.records)
    ]
    return TaskPage(tasks=tasks, examined=found.examined, cursor=found.cursor)


ROUTES = (
    Route(
        method="GET",
        path="/tasks",
        handler=listing,
        scope="read",
        summary="List tasks by state, queue, tenant, name, error and time, in pages.",
        query=TaskQuery,
    ),
)
