"""Pages of tasks that match a filter: as many calls to the broker as a request may make."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.api.task_filter import TaskFilter, matches
from fairlead.broker.views import TaskRecord
from fairlead.client import Client, PageSelection
from fairlead.model.lifecycle import State

__all__ = ("Found", "found_tasks")


class Found(msgspec.Struct, frozen=True):
    """Tasks that match, how many were looked at for that, and where to go on."""

    records: list[TaskRecord]
    examined: int  # of this state, queue and tenant
    cursor: str | None
    calls: int


async def found_tasks(
    client: Client,
    asked: TaskFilter,
    *,
    state: State | None,
    tenant: str | None,
    cursor: str | None,
    limit: int,
    calls: int,
    also: Callable[[TaskRecord], bool] | None = None,
) -> Found:
    """Read on until there are enough, the end has come, or so many calls were made.

    ``tenant`` is the one that the caller may see, whatever the filter says.
    """
    selection: PageSelection = {}
    if state is not None:
        selection["state"] = state
    if asked.queue is not None:
        selection["queue"] = asked.queue
    if tenant is not None:
        selection["tenant"] = tenant
    records: list[TaskRecord] = []
    examined = made = 0
    while made < calls:
        # No more than there is room for: what is read and not shown would be lost.
        selection["limit"] = limit - len(records)
        selection["cursor"] = cursor
        page = await client.page(selection)
        made, cursor, examined = made + 1, page.cursor, examined + len(page.tasks)
        records += [
            record
            for record in page.tasks
            if matches(record, asked) and (also is None or also(record))
        ]
        if cursor is None or len(records) >= limit:
            break
    return Found(records, examined, cursor, made)
