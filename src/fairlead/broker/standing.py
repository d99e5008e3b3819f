"""Where a task stands: all that decides whether it can run now, read in one step."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fairlead.broker.views import TaskRecord
from fairlead.model.lifecycle import State
from fairlead.model.limits import CircuitState

__all__ = ("Room", "Standing", "StandingReads", "Waits")


class Waits(msgspec.Struct, frozen=True):
    """A task that another one waits for, and its state; None if it is not known."""

    id: str
    state: State | None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that applies to a task, and how it stands."""

    kind: str  # queue, tenant, limiter
    name: str
    used: int = 0
    concurrency: int | None = None
    next_at: float | None = None  # no token of its rate before then
    circuit: CircuitState = ""  # of a breaker
    open_until: float | None = None
    waiting: int = 0  # tenants that wait for room there


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A task and all that may keep it from running. Numbers are of the moment they were read."""

    now: float
    record: TaskRecord
    queue_paused: bool = False
    tenant_paused: bool = False
    waits_for: tuple[Waits, ...] = ()  # deferred: at most 20 of what it waits for
    rooms: tuple[Room, ...] = ()  # queued: every limit that applies to it
    parked: bool = False  # queued: its tenant waits for room
    tenants_ahead: int = 0  # queued: runnable tenants that are served before its own
    tenants_ready: int = 0  # queued: all runnable tenants of the queue
    tasks_ahead: int = 0  # queued: of its own tenant, in front of it; at most 10,000 are counted
    started_last_minute: int = 0  # in its queue, for an estimate
    held: bool = False  # running: lent to a worker that has not started it


class StandingReads(Protocol):
    """The read behind "why is it not running?"."""

    async def standing(self, id: str, *, now: float | None = None) -> Standing | None:
        """Where a task stands, without walking anything large; None if it is unknown."""
        ...
