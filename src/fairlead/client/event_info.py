"""Events as programs and clients see them: their names, their fields, and who wants which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.event_places import joined, places_of
from fairlead.model.events import EVENT_KINDS, Event, EventId
from fairlead.model.names import (
    DEFAULT_TENANT,
    check_queue,
    check_task_name,
    check_tenant,
    full_id,
)

__all__ = (
    "EVENT_TYPES",
    "GAP",
    "EventFilter",
    "EventInfo",
    "event_filter",
    "event_text",
    "parse_event_text",
    "types_of",
)

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

    id: str  # where it stands in the stream: read on behind it with ``after``
    type: str  # "task.completed"; "stream.gap": events before this place are missing
    at: float  # unix seconds, by the broker's clock
    task_id: str = ""
    task: str = ""  # the name of the task
    queue: str = ""
    tenant: str = ""
    state: str = ""  # the state it went to
    attempt: int = 0
    duration_ms: float | None = None  # from the start of the attempt to this event
    reason: str = ""
    flow: str = ""  # of events of flows, in the place of a task
    worker: str = ""  # of task.started: who runs it; of events of workers, in the place of a task

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
            raise InvalidOption("types", each, f"one of {', '.join(sorted(known))}, or task.*")
        found |= some
    return frozenset(found)


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
