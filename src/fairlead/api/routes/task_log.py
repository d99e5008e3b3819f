"""The lines that handlers keep with their task."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.api.http.problems import Conflicting, NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.routes.tasks import Whose
from fairlead.api.task_lookup import found_task
from fairlead.api.views.timestamps import Moment, moment
from fairlead.model.log_lines import read_log


class LineView(msgspec.Struct, frozen=True, kw_only=True):
    """A line: when and in which attempt it was written, by the clock of the worker."""

    at: Moment
    attempt: int
    text: str
    fields: dict[str, Any]


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a task, oldest first. ``dropped`` is how many older ones are gone."""

    lines: list[LineView]
    dropped: int


async def log(request: Request) -> LogView:
    """The lines that handlers kept with a task."""
    record = await found_task(request, "log")
    found, hide = read_log(record.log, request.client.codecs), request.service.redaction.hide
    lines = [
        LineView(at=moment(each.at), attempt=each.attempt, text=each.text, fields=hide(each.fields))
        for each in found
    ]
    return LogView(lines=lines, dropped=found.dropped)


ROUTES = (
    Route(
        method="GET",
        path="/tasks/{id}/log",
        handler=log,
        scope="payload",
        summary="The lines that handlers kept with a task: ctx.log.",
        query=Whose,
        problems=(NotFound, Conflicting),
    ),
)
