"""What events do not say themselves: the names of their tasks, and how long attempts took."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, TypeVar

from fairlead.broker.repeats import late
from fairlead.broker.views import TaskRecord
from fairlead.client.event_info import EventInfo
from fairlead.client.event_reader import Heard
from fairlead.model.errors import BrokerError
from fairlead.model.events import Event
from fairlead.model.message import task_name

__all__ = ("EventDetails", "Finder")

K = TypeVar("K")
V = TypeVar("V")

_NAMES = 20_000  # tasks whose names are remembered
_STARTS = 50_000  # attempts whose begin is remembered
_PATIENCE = 2.0  # seconds for one look; events go on without it
_REST = 5.0  # seconds in which a shard that did not answer is not asked again

#: Kinds of events that end an attempt, or fall into one.
_DURING = frozenset(
    ("completed", "retrying", "snoozed", "released", "recovered", "dead", "cancelled", "progress")
)
_NO_TASK = ("flow_", "worker_", "configured", "warned")


class Finder(Protocol):
    """Finds records of tasks: a client."""

    async def find(self, ids: list[str]) -> list[TaskRecord | None]: ...


class EventDetails:
    """Remembers names and starts of what was heard lately, and looks up what is missing.

    It costs the broker one read for each batch of tasks that it has not met. What cannot be found
    (a shard is away, or the task was forgotten) is left out.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._names: dict[str, str] = {}
        self._starts: dict[tuple[str, int], float] = {}  # by task and token
        self._resting: dict[str, float] = {}  # by shard: until when it is not asked

    def hear(self, event: Event) -> None:
        """Take note of an event, in the order of the stream; also of one that nobody wants."""
        if event.kind == "started":
            _keep(self._starts, (event.task, event.token), event.at, _STARTS)
        elif event.kind == "enqueued":
            self._names.pop(event.task, None)  # a chosen id may stand for another task by now

    async def look_up(self, events: Iterable[Event], *, needed: bool = False) -> None:
        """Find the names of the tasks of these events, as far as they can be found.

        If they are ``needed``, it raises where the broker does not answer.
        """
        missing: dict[str, list[str]] = {}
        for event in events:
            if event.task and event.task not in self._names and not _is_about_else(event.kind):
                missing.setdefault(event.id.shard, []).append(event.task)
        clock = asyncio.get_running_loop().time
        for shard, ids in missing.items():
            if clock() < self._resting.get(shard, 0.0) and not needed:
                continue
            unique = list(dict.fromkeys(ids))
            try:
                async with asyncio.timeout(_PATIENCE):
                    records = await self._finder.find(unique)
            except (BrokerError, TimeoutError) as error:
                if needed and isinstance(error, BrokerError):
                    raise
                if needed:
                    raise late(in_flight=False) from None
                self._resting[shard] = clock() + _REST
                continue
            for id, record in zip(unique, records, strict=True):
                self._note(id, record)

    def _note(self, id: str, record: TaskRecord | None) -> None:
        name = "" if record is None else task_name(record.message.body)
        _keep(self._names, id, name, _NAMES)
        if record is not None and record.started_at is not None and record.token:
            _keep(self._starts, (id, record.token), record.started_at, _STARTS)

    def name(self, event: Event) -> str:
        """The name of the task, as far as it was looked up; empty if it is not known."""
        return self._names.get(event.task, "")

    def info(self, heard: Heard, type: str) -> EventInfo:
        """The event under one of its names, with what is known beside it."""
        event = heard.event
        about = event.kind.partition("_")[0]
        subject = about if about in ("flow", "worker") else "task_id"
        told = {subject: event.task}
        if event.kind == "started":
            told["worker"] = event.reason
        return EventInfo(
            id=heard.id(type),
            type=type,
            at=event.at,
            task=self._names.get(event.task, "") if subject == "task_id" else "",
            queue=event.queue,
            tenant=event.tenant,
            state=event.state,
            attempt=event.attempt,
            duration_ms=self._duration(event),
            reason="" if event.kind == "started" else event.reason,
            **told,
        )

    def _duration(self, event: Event) -> float | None:
        if event.kind not in _DURING or not event.token:
            return None
        began = self._starts.get((event.task, event.token))
        return None if began is None else round(max(0.0, event.at - began) * 1000, 3)


def _is_about_else(kind: str) -> bool:
    return kind.startswith(_NO_TASK)


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Add to a map of which the oldest entries go."""
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
