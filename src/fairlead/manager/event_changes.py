"""Folds events into one change for each task and flow that they are about. Pure.

Events of one task come from one shard, in the order of their ids. So what a row becomes does not
depend on how the stream was cut into pages, nor on what was read twice: an event that is not newer
than the last one in the row is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlead.model.events import Event
from fairlead.model.message import LEVEL_NAMES

FINAL = frozenset(("completed", "dead", "cancelled"))

#: Kinds that say something of a task and leave it in the state that it is in.
_STAYS = frozenset(("cancelling", "prioritized", "deleted", "dropped", "fenced"))
#: Kinds that may come a thousand times in one attempt, and change no state.
_UNRECORDED = frozenset(("progress",))
#: Kinds with which the attempts of a task are counted from one again.
_BEGINS = frozenset(("enqueued", "requeued"))
_FAILS = frozenset(("retrying", "dead"))
_FLOWS = {
    "flow_committed": "running",
    "flow_completed": "completed",
    "flow_dead": "dead",
    "flow_cancelled": "cancelled",
}
_LEVELS = {name: level for level, name in enumerate(LEVEL_NAMES)}


class TaskChange(msgspec.Struct, kw_only=True, gc=False):
    """What became of one task. None: these events say nothing of it."""

    id: str
    queue: str
    tenant: str
    at: float  # of the first of these events
    state: str = ""
    entry: int = 0  # the last event
    index: int = -1
    changed_at: float | None = None  # the last one that moved it to another state
    started_at: float | None = None
    finished_at: float | None = None
    attempts: int = 0
    begins: bool = False  # attempts count from one again
    worker: str = ""
    reason: str | None = None
    level: int | None = None
    failed: int = -1  # place in the log of the last attempt that failed
    failed_attempt: int = 0
    log: list[list[Any]] = []

    @property
    def is_final(self) -> bool:
        """Whether the task is over."""
        return self.state in FINAL


class FlowChange(msgspec.Struct, frozen=True):
    """What became of one flow."""

    id: str
    state: str
    at: float


class Folded(msgspec.Struct, frozen=True):
    """All that some events come to."""

    tasks: dict[str, TaskChange]
    flows: dict[str, FlowChange]
    workers: set[str]  # incarnations that joined, or began attempts


def subject(event: Event) -> str:
    """The id of the task whose row an event may change; empty if it changes none."""
    kind = event.kind
    if kind in _UNRECORDED or not event.task or kind.startswith(("flow_", "worker_")):
        return ""
    # "configured" and "warned" carry no task.
    return event.task if event.state else ""


def fold(events: Iterable[Event], known: Mapping[str, tuple[int, int]]) -> Folded:
    """Fold events, in the order of their ids for each task, into one change for each.

    ``known`` has the last event of the rows that there are: it and older ones are left out.
    """
    tasks: dict[str, TaskChange] = {}
    flows: dict[str, FlowChange] = {}
    workers: set[str] = set()
    for event in events:
        kind = event.kind
        id = event.task
        if kind in _FLOWS:
            flows[id] = FlowChange(id, _FLOWS[kind], event.at)
            continue
        if kind == "worker_joined":
            workers.add(id)
            continue
        if not subject(event):
            continue
        place = event.id
        entry, index = place.entry, place.index
        change = tasks.get(id)
        if change is None:
            if id in known and (entry, index) <= known[id]:
                continue
            change = tasks[id] = TaskChange(
                id=id, queue=event.queue, tenant=event.tenant, at=event.at, log=[]
            )
        elif (entry, index) <= (change.entry, change.index):
            continue
        change.entry = entry
        change.index = index
        _apply(change, event)
        if kind == "started" and event.reason:
            workers.add(event.reason)
    return Folded(tasks, flows, workers)


def _apply(change: TaskChange, event: Event) -> None:
    kind, at, attempt, reason = event.kind, event.at, event.attempt, event.reason
    state = change.state = event.state
    line: list[Any] = [at, kind, state]
    if kind == "started":
        change.started_at = at
        change.worker = reason
        change.attempts = attempt
        line += (attempt, reason)
        reason = ""
    elif reason:
        line += (attempt, "", reason)
    elif attempt:
        line.append(attempt)
    if kind in _STAYS:
        if kind == "prioritized":
            change.level = _LEVELS.get(reason)
    else:
        change.changed_at = at
        change.reason = reason
        change.finished_at = at if state in FINAL else None
        if kind in _BEGINS:
            change.begins = True
            change.attempts = 0
        elif kind in _FAILS and event.token:
            change.failed = len(change.log)
            change.failed_attempt = attempt
    change.log.append(line)


def cut(text: str, most: int) -> str:
    """The beginning of a text, at most so many bytes of it, without what no row can hold."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    data = text.encode(errors="replace")
    return data[:most].decode(errors="ignore") if len(data) > most else data.decode()
