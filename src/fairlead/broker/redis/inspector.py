"""Reads for people: counts, records, pages, workers. Nothing here changes anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from importlib import import_module

import msgspec

from fairlead.broker.checks import check_limit
from fairlead.broker.redis import stored
from fairlead.broker.redis.frame import Frame
from fairlead.broker.verbs import (
    MAX_PAGE,
    Counts,
    Page,
    QueueCounts,
    Snapshot,
    TaskRecord,
    WorkerRecord,
)
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State

__all__ = ("Inspecting",)

_FIELDS = 8  # that the script ``find`` answers for each id
_AT_ONCE = 200  # tasks that one call reads: their bodies may be large
_SCANNED = 250  # ids that one step of a listing asks for
_CURSOR = re.compile(r"(\d{1,20})(?::(.+))?\Z", re.DOTALL)


class Inspecting(Frame):
    """The reading half of the broker."""

    async def snapshot(self, *, now: float | None = None) -> Snapshot:
        """Counts of the shard, its queues and their tenants."""
        time, *rest = await self._run("snapshot", [self._clock(now), MAX_PAGE])
        queues = {
            rest[i].decode(): stored.decode_queue(*rest[i + 1 : i + 5])
            for i in range(0, len(rest), 5)
        }
        totals = reduce(_sum, queues.values(), dict.fromkeys(Counts.__struct_fields__, 0))
        return Snapshot(now=float(time), shutdown=self._closed, queues=queues, **totals)

    async def find(
        self, ids: Sequence[str], *, now: float | None = None
    ) -> list[TaskRecord | None]:
        """What is known of these tasks."""
        found: list[TaskRecord | None] = []
        clock = self._clock(now)
        for start in range(0, max(len(ids), 1), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            reply = await self._run("find", [clock, *part])
            for i, id in enumerate(part):
                row = reply[_FIELDS * i : _FIELDS * (i + 1)]
                found.append(None if row[0] is None else stored.decode_record(id, row))
        return found

    async def page(
        self,
        *,
        state: State | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> Page:
        """Tasks that match, of at most 1,000 that were looked at.

        A cursor is the server's own, and behind a colon the last id that was seen of what the
        server gives for it.
        """
        check_limit(limit)
        clock = self._clock(now)
        place, seen = _place(cursor)
        tasks: list[TaskRecord] = []
        examined = 0
        while True:
            after, raw = await self._run("page", [clock, place, _SCANNED])
            ids = [id.decode() for id in raw]
            for record in await self.find(ids[_next(ids, seen) :], now=now):
                examined += 1
                if record is None:
                    continue
                seen = record.message.id
                if _matches(record, state, queue, tenant):
                    tasks.append(record)
                if len(tasks) >= limit or examined >= MAX_PAGE:
                    end = after == b"0" and seen == ids[-1]
                    return Page(tasks=tasks, cursor=None if end else f"{place}:{seen}")
            if after == b"0":
                return Page(tasks=tasks)
            place, seen = after.decode(), ""

    async def workers(self, *, now: float | None = None) -> list[WorkerRecord]:
        """Workers heard of in the last 15 seconds."""
        reply = await self._run("workers", [self._clock(now)])
        return [stored.worker_record(reply[i + 1], reply[i + 2]) for i in range(0, len(reply), 3)]

    async def audit(self, *, now: float | None = None) -> list[str]:
        """What is wrong with the stored state, a sentence each."""
        # Large, and nobody else needs it.
        auditing = import_module("fairlead.broker.redis.audit")
        found: list[str] = await auditing.audit(self, now=now)
        return found


def _sum(totals: dict[str, int], counts: QueueCounts) -> dict[str, int]:
    fields = msgspec.structs.asdict(counts)
    return {name: total + fields[name] for name, total in totals.items()}


def _place(cursor: str | None) -> tuple[str, str]:
    """The server's cursor, and the last id seen of what it stands for."""
    if cursor is None:
        return "0", ""
    match = _CURSOR.match(cursor)
    if match is None:
        raise InvalidOption("cursor", cursor, "one that an earlier page returned")
    return match[1], match[2] or ""


def _next(ids: Sequence[str], seen: str) -> int:
    """Where to go on behind an id; from the start if it is gone, rather than to leave one out."""
    return ids.index(seen) + 1 if seen in ids else 0


def _matches(
    record: TaskRecord, state: State | None, queue: str | None, tenant: str | None
) -> bool:
    message = record.message
    return (
        (state is None or record.state is state)
        and (queue is None or message.queue == queue)
        and (tenant is None or message.tenant == tenant)
    )
