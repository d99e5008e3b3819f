"""Orders about all tasks that match a filter."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.api.bulk_actions import Act, ActStep, act
from fairlead.api.http.problems import Invalid
from fairlead.api.http.route import Reply, Request, Route
from fairlead.api.task_filter import TaskFilter, state_of
from fairlead.api.views.paging import Cursor, about
from fairlead.client.bulk_actions import STATES, Action


class ActBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do with which tasks, and from where on."""

    action: Action
    filter: TaskFilter = TaskFilter()
    all: Annotated[bool, about("Needed where the filter says nothing: all tasks are meant.")] = (
        False
    )
    priority: Annotated[
        str | int | None,
        about("Of the action `prioritize`: of the app, or critical, high, normal, low."),
    ] = None
    dry_run: Annotated[bool, about("Only count what matches.")] = False
    cursor: Cursor | None = None


async def _act(request: Request) -> ActStep | Reply:
    body: ActBody = request.body
    asked = body.filter
    state = state_of(asked)
    if not body.all and asked == TaskFilter():
        raise Invalid(
            "the filter says nothing, so every task would be meant",
            field="filter",
            rule="a filter, or all: true",
        )
    allowed = STATES[body.action]
    if state is not None and state not in allowed:
        raise Invalid(
            f"{body.action} has nothing to do with tasks that are {state}",
            field="filter.state",
            value=asked.state,
            rule=f"one of {', '.join(sorted(allowed))}",
        )
    if (body.priority is None) is (body.action == "prioritize"):
        raise Invalid(
            "a priority belongs to the action prioritize",
            field="priority",
            value=body.priority,
            rule="one of the app, with the action prioritize only",
        )
    named = request.client.priorities
    level = None if body.priority is None else named.level(body.priority)
    # Where only one state is possible, the broker need not look at the others.
    only = next(iter(allowed)) if len(allowed) == 1 else None
    order = Act(
        action=body.action,
        asked=asked,
        state=state or only,
        tenant=request.tenant(asked.tenant),
        level=level,
        dry_run=body.dry_run,
    )
    return await act(request, order, body.cursor, "tasks")


ROUTES = (
    Route(
        method="POST",
        path="/tasks/act",
        handler=_act,
        scope="manage",
        summary="Give one order about all tasks that match, in steps; a dry run only counts.",
        body=ActBody,
        answer=ActStep,
    ),
)
