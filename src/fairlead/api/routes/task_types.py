"""Task types: the tasks that workers have, with what their calls take."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fairlead.api.http.problems import NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import Cursor, Limit, about, named_page
from fairlead.client.catalog import KnownTask, known_task, known_tasks


class TaskParameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a task."""

    name: str
    kind: Annotated[str, about("positional_or_keyword, keyword_only, var_positional, ...")]
    required: bool
    schema: Annotated[dict[str, Any], about("JSON Schema of its values; empty: any value.")]


class TaskType(msgspec.Struct, frozen=True, kw_only=True):
    """A task that some worker has, as its latest version was registered."""

    name: str
    version: int
    versions: Annotated[list[int], about("All that workers have, the latest first.")]
    summary: str
    queue: Annotated[str, about("Where calls go that name none.")]
    priority: Annotated[str, about("As its app calls it. Empty: the arguments decide.")]
    max_retries: int
    timeout: Annotated[float | None, about("Of an attempt, in seconds.")] = None
    retention: Annotated[
        float | None, about("Of results, in seconds; null: that of the queue.")
    ] = None
    cost: float = 1.0
    limiters: Annotated[list[str], about("Named limiters; for operators.")] = []
    workers: Annotated[int | None, about("That have it now; for operators.")] = None
    parameters: Annotated[
        list[TaskParameter] | None, about("Null: there was no room to tell of them.")
    ] = None
    definitions: Annotated[dict[str, Any], about("That the schemas refer to.")] = {}
    is_cut: Annotated[bool, about("There was no room for the schemas.")] = False


class TaskTypePage(msgspec.Struct, frozen=True, kw_only=True):
    """Task types by name."""

    task_types: list[TaskType]
    cursor: str | None = None


class TaskTypesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of them."""

    limit: Limit = 50
    cursor: Cursor | None = None


async def _list(request: Request) -> TaskTypePage:
    query: TaskTypesQuery = request.query
    found = {known.name: known for known in await known_tasks(request.client)}
    page, cursor = named_page(found, query.limit, query.cursor)
    return TaskTypePage(
        task_types=[_view(request, known) for _, known in page],
        cursor=cursor,
    )


async def _get(request: Request) -> TaskType:
    name = request.path["name"]
    known, _ = await known_task(request.client, name)
    if known is None:
        raise NotFound("no worker has this task", field="name", value=name)
    return _view(request, known)


def _view(request: Request, known: KnownTask) -> TaskType:
    entry = known.current
    operator = request.access.tenant is None
    parameters = None
    if entry.parameters is not None:
        parameters = [
            TaskParameter(
                name=each.name, kind=each.kind, required=each.required, schema=each.schema
            )
            for each in entry.parameters
        ]
    return TaskType(
        name=known.name,
        version=entry.version,
        versions=list(known.versions),
        summary=entry.summary,
        queue=entry.queue,
        priority=entry.priority_label or entry.priority,
        max_retries=entry.max_retries,
        timeout=entry.timeout,
        retention=entry.retention,
        cost=entry.cost,
        limiters=list(entry.limiters) if operator else [],
        workers=known.workers if operator else None,
        parameters=parameters,
        definitions=entry.definitions,
        is_cut=entry.is_cut,
    )


ROUTES = (
    Route(
        method="GET",
        path="/task-types",
        handler=_list,
        scope="read",
        summary="List the tasks that workers have, by name.",
        query=TaskTypesQuery,
    ),
    Route(
        method="GET",
        path="/task-types/{name}",
        handler=_get,
        scope="read",
        summary="Show one task that workers have, with the schemas of its parameters.",
        problems=(NotFound,),
    ),
)
