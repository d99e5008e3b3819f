"""Pages of tasks that match: as many calls to the broker as a caller may make."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.client.client import Client
from fairlead.client.task_info import TaskInfo, has_whole_body, info_of
from fairlead.client.task_reader import PageSelection
from fairlead.model.message import task_name


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing; ``cursor`` is None at its end. A page may be empty and not the last."""

    tasks: list[TaskInfo] = []
    """The tasks of this page; there may be none although others follow."""
    cursor: str | None = None
    """Where the next page begins; None: this is the last."""


class Found(msgspec.Struct, frozen=True):
    """Tasks that match, how many were looked at for that, and where to go on."""

    records: list[TaskRecord]
    examined: int  # of this state, queue and tenant
    cursor: str | None
    calls: int


async def found_tasks(
    client: Client,
    selection: PageSelection,
    matches: Callable[[TaskRecord], bool],
    *,
    limit: int,
    calls: int,
) -> Found:
    """Read on until there are enough, the end has come, or so many calls were made.

    The broker sees to the ``selection``, which says where to begin; ``matches`` to the rest.
    """
    records: list[TaskRecord] = []
    cursor = selection.get("cursor")
    examined = made = 0
    while made < calls:
        # No more than there is room for: what is read and not shown would be lost.
        part: PageSelection = {**selection, "limit": limit - len(records), "cursor": cursor}
        page = await client.page(part)
        made, cursor, examined = made + 1, page.cursor, examined + len(page.tasks)
        records += [record for record in page.tasks if matches(record)]
        if cursor is None or len(records) >= limit:
            break
    return Found(records, examined, cursor, made)


async def read_page(client: Client, selection: PageSelection) -> TaskPage:
    """Read one page for people; with the arguments of its tasks, if these are asked for."""
    page = await client.page(selection)
    arguments = bool(selection.get("arguments"))
    records = {record.message.id: record for record in page.tasks}
    if arguments:
        cut = [id for id, record in records.items() if not has_whole_body(record)]
        whole = await client.find(cut, "all")
        records |= {record.message.id: record for record in whole if record is not None}
    named = client.priorities
    tasks = [info_of(each, named, arguments=arguments) for each in records.values()]
    return TaskPage(tasks=tasks, cursor=page.cursor)


def has_name(record: TaskRecord, asked: str) -> bool:
    """Return whether a task has this name; with a ``*`` at its end, one that begins so."""
    name = task_name(record.message.body)
    return name.startswith(asked[:-1]) if asked.endswith("*") else name == asked


def has_error(record: TaskRecord, asked: str) -> bool:
    """Return whether this is the reason, or a part of ``type: message`` of the last error."""
    error = record.error
    text = "" if error is None else f"{error.type}: {error.message}"
    return asked == record.reason or asked in text
