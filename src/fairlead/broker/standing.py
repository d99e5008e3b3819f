"""Where a task stands: all that decides whether it can run now, read in one step."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.model.lifecycle import State
from fairlead.model.limits import (
    NO_BREAKER,
    PRECISION,
    Breaker,
    Circuit,
    CircuitState,
    Limit,
    room_at,
)

MAX_AHEAD = 10_000  # tasks of its own tenant in front of it that are counted
MAX_SHOWN = 20  # of the tasks that it waits for


class Waits(msgspec.Struct, frozen=True):
    """A task that another one waits for, and its state; None if it is not known."""

    id: str
    state: State | None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that applies to a task, and how it stands."""

    kind: Literal["queue", "tenant", "limiter"]
    name: str
    used: int = 0
    concurrency: int | None = None
    next_at: float | None = None  # no token of its rate before then
    rate: float | None = None  # tokens a second
    burst: int = 1  # so many at most are there at once
    circuit: CircuitState = ""  # of a breaker
    open_until: float | None = None
    probing: int = 0  # half open: probes that run
    probes: int = 0  # half open: so many may at a time
    waiting: int = 0  # tenants that wait for room there
    needed: bool = True  # by the task itself; False: by one that goes before it

    @property
    def closed(self) -> bool:
        """Whether nothing may pass now."""
        return (
            (self.concurrency is not None and self.used >= self.concurrency)
            or self.next_at is not None
            or self.open_until is not None
            or (self.circuit == "half_open" and self.probing >= self.probes)
        )


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A task and all that may keep it from running. Numbers are of the moment they were read."""

    now: float
    record: TaskRecord
    queue_paused: bool = False
    tenant_paused: bool = False
    waits_for: tuple[Waits, ...] = ()  # deferred: at most 20 of what it waits for
    rooms: tuple[Room, ...] = ()  # queued: every limit that applies to it, or to its tenant's next
    parked: Literal["", "tenant", "limiter"] = ""  # queued: what its tenant waits for room in
    parked_at: str = ""  # which limiter
    tenants_ahead: int = 0  # queued: runnable tenants that are served before its own, which is too
    tenants_ready: int = 0  # queued: all runnable tenants of the queue
    tasks_ahead: int = 0  # queued: of its own tenant, before it; at most 10,000 are counted
    started_last_minute: int = 0  # attempts in its queue, for an estimate
    held: bool = False  # running: lent to a worker that has not started it


class StandingReads(Protocol):
    """The read behind "why is it not running?"."""

    async def standing(self, id: str, *, now: float | None = None) -> Standing | None:
        """Where a task stands, without walking anything large; None if it is unknown.

        If nothing comes in or changes meanwhile, exactly ``tenants_ahead`` other tenants are served
        before its own is, some perhaps more than once, and exactly ``tasks_ahead`` tasks of its own
        tenant go before it. A store may count tasks among these that were cancelled lately.
        """
        ...


def room_of(
    kind: Literal["queue", "tenant", "limiter"],
    name: str,
    limit: Limit,
    *,
    used: int,
    since: float,
    gone: int,
    now: float,
    breaker: Breaker = NO_BREAKER,
    circuit: Circuit | None = None,
    waiting: int = 0,
    needed: bool = True,
) -> Room:
    """How a limit stands, from what stores keep of it."""
    at = -math.inf if limit.rate is None else room_at(since, gone, limit.rate, limit.burst)
    circuit = circuit or Circuit()
    state = circuit.state(breaker, now)
    return Room(
        kind=kind,
        name=name,
        used=used,
        concurrency=limit.concurrency,
        next_at=at if at > now + PRECISION else None,
        rate=limit.rate,
        burst=limit.burst,
        circuit=state,
        open_until=circuit.open_until(breaker, now),
        probing=circuit.probing if state == "half_open" else 0,
        probes=breaker.probes if state == "half_open" else 0,
        waiting=waiting,
        needed=needed,
    )
