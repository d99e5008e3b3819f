"""Events as programs and clients see them: their names, their fields, and who wants which."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.broker.repeats import late
from fairlead.model.errors import BrokerError, InvalidInput, InvalidOption
from fairlead.model.event_places import joined, places_of
from fairlead.model.events import EVENT_KINDS, Event, EventId
from fairlead.model.message import LEVEL_NAMES, task_name
from fairlead.model.names import (
    DEFAULT_TENANT,
    check_queue,
    check_task_name,
    check_tenant,
    full_id,
)
from fairlead.model.priorities import Priorities

if TYPE_CHECKING:
    from fairlead.client.event_stream import Heard

K = TypeVar("K")
V = TypeVar("V")

GAP = "stream.gap"
FAILED = "task.failed"

_NAMED = {
    "enqueued": "task.submitted",
    "configured": "queue.configured",
    "warned": "queue.warned",
}
_AREAS = ("flow", "worker")  # kinds such as flow_dead, worker_joined
_ENDS = ("retrying", "dead")  # kinds that may follow an attempt that failed
_BEFORE = ("enqueued", "started")
_FORGOTTEN = ("task.completed", "task.cancelled")  # after which a broker may not know it any more
_NO_FAILURE = ("unroutable",)  # reasons of these that no failed attempt stands behind
_ID_TEXT = re.compile(r"[A-Za-z0-9_:+.*?-]{1,4096}\Z")  # it is shown to others, line by line
_FAILED_MARK = ".failed."  # between the id of an event and its shard: see event_text


_NAMES = 20_000  # tasks whose names are remembered
_STARTS = 50_000  # attempts whose begin is remembered
_PATIENCE = 2.0  # seconds for one look; events go on without it
_REST = 5.0  # seconds in which a shard that did not answer is not asked again

#: Kinds of events that end an attempt, or fall into one.
_DURING = frozenset(
    ("completed", "retrying", "snoozed", "released", "recovered", "dead", "cancelled", "progress")
)
_NO_TASK = ("flow_", "worker_", "configured", "warned")


def _type_of(kind: str) -> str:
    if kind in _NAMED:
        return _NAMED[kind]
    area, _, name = kind.partition("_")
    return f"{area}.{name}" if area in _AREAS and name else f"task.{kind}"


_TYPES: Mapping[str, tuple[str, ...]] = {kind: (_type_of(kind),) for kind in EVENT_KINDS}

#: What an event may be called; ``stream.gap`` comes to everybody and need not be asked for.
EVENT_TYPES: frozenset[str] = frozenset({FAILED, *(each for (each,) in _TYPES.values())})


def types_of(event: Event) -> tuple[str, ...]:
    """What an event of the broker is called: two names where an attempt failed and ended a run.

    ``task.failed`` says so, and ``task.retrying`` or ``task.dead`` what follows from it.
    """
    types = _TYPES.get(event.kind) or (_type_of(event.kind),)  # of a later release
    if event.kind in _ENDS and event.token and event.reason not in _NO_FAILURE:
        return (FAILED, *types)
    return types


class EventInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. What is not known, or says nothing, is empty or None."""

    id: str
    """Where it stands in the stream: read on behind it with ``after``."""
    type: str
    """Such as "task.completed"; "stream.gap": events before this place are missing."""
    at: float
    """Unix seconds, by the broker's clock."""
    task_id: str = ""
    """The id of the task that it is about; else empty, as all of these."""
    task: str = ""
    """The name of that task."""
    queue: str = ""
    """The queue of that task."""
    tenant: str = ""
    """The tenant of that task."""
    state: str = ""
    """The state that the task went to."""
    attempt: int = 0
    """The number of the attempt."""
    duration_ms: float | None = None
    """Milliseconds from the start of the attempt to this event."""
    reason: str = ""
    """Why it happened, such as what a dead task died of."""
    flow: str = ""
    """The id of the flow that it is about, in the place of a task."""
    worker: str = ""
    """The worker that started the task, or that the event is about, in the place of a task."""

    @property
    def name(self) -> str:
        """The last part of the type: "completed"."""
        return self.type.rpartition(".")[2]


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted; None: it does not matter."""

    types: frozenset[str] | None = None
    queue: str | None = None
    tenant: str | None = None
    task: str | None = None  # an id
    name: str | None = None  # of a task
    workers: bool = True  # whether events of tasks may say which worker runs them

    def admits(self, event: Event, type: str) -> bool:
        """Whether an event is wanted, as far as that can be said without the name of its task."""
        return (
            (self.types is None or type in self.types)
            and (self.tenant is None or event.tenant == self.tenant)
            and (self.queue is None or event.queue == self.queue)
            and (self.task is None or event.task == self.task)
            and (self.name is None or type.startswith("task."))
        )

    def awaits(self, event: Event) -> bool:
        """Whether the end of this task may be wanted for its name, which may be gone by then."""
        return (
            self.name is not None
            and event.kind in _BEFORE
            and any(self.admits(event, type) for type in _FORGOTTEN)
        )


def event_filter(
    types: str | Iterable[str] | None = None,
    *,
    queue: str | None = None,
    tenant: str | None = None,
    task: str | None = None,
    name: str | None = None,
    known: frozenset[str] = EVENT_TYPES,
) -> EventFilter:
    """Make a filter of what a caller asked for; errors name the option.

    ``types`` are names such as ``task.dead``, ``dead`` for short, or ``worker.*``.
    """
    return EventFilter(
        types=None if types is None else _types(types, known),
        queue=None if queue is None else check_queue(queue),
        tenant=None if tenant is None else check_tenant(tenant),
        task=None if task is None else _task_id(task, tenant),
        name=None if name is None else check_task_name(name),
    )


def _types(types: str | Iterable[str], known: frozenset[str]) -> frozenset[str]:
    found: set[str] = set()
    for each in (types,) if isinstance(types, str) else types:
        if not isinstance(each, str):
            raise InvalidOption("types", each, "names of events, such as task.dead")
        full = each if "." in each else f"task.{each}"
        area, _, last = full.partition(".")
        some = {type for type in known if type.startswith(f"{area}.")} if last == "*" else {full}
        if not some or not some <= known:
            raise InvalidOption("types", each, _type_rule(full, known))
        found |= some
    return frozenset(found)


def _type_rule(type: str, known: frozenset[str]) -> str:
    from difflib import get_close_matches

    close = [f"{each}, or " for each in get_close_matches(type, sorted(known), n=1)]
    return f"{''.join(close)}one of {', '.join(sorted(known))}, or task.*"


def _task_id(id: object, tenant: str | None) -> str:
    if isinstance(id, str) and ":" in id and tenant is None:
        owner, _, chosen = id.rpartition(":")
        return full_id(check_tenant(owner), chosen)
    return full_id(tenant or DEFAULT_TENANT, id)


# -- texts of ids ------------------------------------------------------------------------------


def event_text(place: EventId, type: str, shard: str = "") -> str:
    """The id that a client gets for an event, from the place behind it.

    ``task.failed`` comes before another event of the same place, and so has a mark.
    """
    if place.index < 0:  # before the first event of all: it has no text of its own
        place = joined({place.shard: place})
    return f"{place}{_FAILED_MARK}{shard}" if type == FAILED else str(place)


def parse_event_text(text: object) -> tuple[EventId, EventId | None]:
    """The place to read on behind, and the event there of which ``task.failed`` was seen."""
    if not isinstance(text, str) or not _ID_TEXT.match(text):
        raise InvalidInput(f"{str(text)[:80]!r} is not an event id, as an earlier event had it")
    plain, mark, shard = text.partition(_FAILED_MARK)
    places = places_of(EventId.parse(plain))
    if not places or (mark and shard not in places):
        raise InvalidInput(f"{text[:80]!r} is not an event id")
    seen = places.get(shard) if mark else None
    if seen is not None:
        # One before it: the event is read again, and what was seen of it is left out.
        places[shard] = EventId(seen.generation, shard, seen.entry, seen.index - 1)
    return joined(places) if len(places) > 1 else next(iter(places.values())), seen


# -- what events do not say themselves -------------------------------------------------------------


class Finder(Protocol):
    """Finds records of tasks, and knows what the app calls priorities: a client."""

    priorities: Priorities

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
            reason=self._reason(event),
            **told,
        )

    def _reason(self, event: Event) -> str:
        if event.kind == "prioritized" and event.reason in LEVEL_NAMES:
            return self._finder.priorities.name(LEVEL_NAMES.index(event.reason))
        return "" if event.kind == "started" else event.reason

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
