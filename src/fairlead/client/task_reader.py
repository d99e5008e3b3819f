"""Reads tasks by id or page by page, with what codecs of the app have encoded made readable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict, get_args

import msgspec

from fairlead.broker.inspector import Inspector
from fairlead.broker.records import Page, Parts, TaskRecord
from fairlead.broker.requests import Receipt, Submission
from fairlead.client.errors import check_options
from fairlead.model.codecs import Codecs
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.names import check_queue, check_tenant
from fairlead.runtime.batcher import Batcher

_MAX_FIND = 500  # ids in one read, so that it never takes long
_MAX_WHOLE = 20  # the same, where each may bring a MiB or two

MOST_WITH_ARGUMENTS = 100  # tasks, which may have a MiB of them each


class PageSelection(TypedDict, total=False):
    """Which tasks to list: what is left out does not matter."""

    state: State | str
    """Only tasks in this state. Default: in all."""
    queue: str
    """Only tasks of this queue. Default: of all."""
    tenant: str
    """Only tasks of this tenant. Default: of all."""
    cursor: str | None
    """Where to read on: ``cursor`` of the page before. Default: None, the beginning."""
    limit: int
    """How many tasks at most: up to 1,000, and up to 100 with ``arguments``. Default: 100."""
    arguments: bool
    """True brings what the tasks were called with. Default: False."""


class TaskReader:
    """Finds tasks by id or by what they are. What cannot be decoded here stays as it is stored."""

    def __init__(self, store: Inspector, codecs: Codecs | None) -> None:
        self._store = store
        self._codecs = codecs
        self._batchers: dict[Parts, Batcher[str, TaskRecord | None]] = {
            parts: Batcher(partial(store.find, parts=parts), limit=_MAX_FIND)
            for parts in get_args(Parts)
        }

    async def one(self, id: str, parts: Parts) -> TaskRecord | None:
        """Return what the broker knows of one task; concurrent calls share a trip."""
        found = await self._batchers[parts].submit(id)
        return found if self._codecs is None or found is None else _readable(found, self._codecs)

    async def many(self, ids: Sequence[str], parts: Parts) -> list[TaskRecord | None]:
        """Return what the broker knows of these tasks; None where it knows nothing."""
        found: list[TaskRecord | None] = []
        step = _MAX_WHOLE if parts == "all" else _MAX_FIND
        for start in range(0, len(ids), step):
            found += await self._store.find(ids[start : start + step], parts=parts)
        codecs = self._codecs
        if codecs is None:
            return found
        return [None if record is None else _readable(record, codecs) for record in found]

    async def page(self, selection: PageSelection) -> Page:
        """Return part of a listing; bounded, with a cursor to read on."""
        page = await self._store.page(**_page_arguments(selection))
        if (codecs := self._codecs) is None:
            return page
        tasks = [_readable(record, codecs) for record in page.tasks]
        return msgspec.structs.replace(page, tasks=tasks)

    async def recognized(
        self, submissions: Sequence[Submission], receipts: list[Receipt]
    ) -> list[Receipt]:
        """Return the receipts, with duplicates for what only looks like other content.

        The broker compares bytes. A codec may encode the same arguments to others the second time,
        and another codec writes after a change of keys.
        """
        codecs = self._codecs
        if codecs is None or all(receipt.code != "conflict" for receipt in receipts):
            return receipts
        places = [n for n, receipt in enumerate(receipts) if receipt.code == "conflict"]
        found = await self.many([submissions[n].message.id for n in places], "all")
        made = [*receipts]
        for n, record in zip(places, found, strict=True):
            if record is not None and _same_work(submissions[n], record, codecs):
                made[n] = msgspec.structs.replace(
                    receipts[n], code="duplicate", id=record.message.id
                )
        return made


def _readable(record: TaskRecord, codecs: Codecs) -> TaskRecord:
    message = record.message
    body = codecs.readable_body(message.body)
    return msgspec.structs.replace(
        record,
        message=message if body is message.body else msgspec.structs.replace(message, body=body),
        result=codecs.readable(record.result, "the result"),
        progress=codecs.readable(record.progress, "the progress"),
        checkpoint=codecs.readable(record.checkpoint, "the checkpoint"),
    )


def _same_work(submission: Submission, record: TaskRecord, codecs: Codecs) -> bool:
    """Whether a task that is there asks for the same; its priority may have been changed since.

    A task that was cancelled has lost its body: nothing tells that it was another.
    """
    mine, other = submission.message, record.message
    return (
        (not other.body or codecs.readable_body(mine.body) == other.body)
        and mine.queue == other.queue
        and mine.tenant == other.tenant
        and mine.cost == other.cost
        and mine.limiters == other.limiters
    )


def _page_arguments(selection: PageSelection) -> dict[str, Any]:
    """Check a selection; return the arguments of ``Inspector.page`` that it stands for."""
    check_options(selection, PageSelection, "a page")
    state, cursor = selection.get("state"), selection.get("cursor")
    queue, tenant = selection.get("queue"), selection.get("tenant")
    limit = selection.get("limit", 100)
    if state is not None and state not in tuple(State):
        raise InvalidOption("state", state, f"one of {', '.join(State)}")
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidOption("cursor", cursor, "one that an earlier page returned")
    if type(limit) is not int:
        raise InvalidOption("limit", limit, "a whole number")
    if selection.get("arguments") and limit > MOST_WITH_ARGUMENTS:
        raise InvalidOption("limit", limit, f"at most {MOST_WITH_ARGUMENTS} with arguments")
    return {
        "state": None if state is None else State(state),
        "queue": None if queue is None else check_queue(queue),
        "tenant": None if tenant is None else check_tenant(tenant),
        "cursor": cursor,
        "limit": limit,
    }
