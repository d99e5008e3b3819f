"""What a broker shows to those who read: plain structs, never needed to run tasks."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fairlead.broker.requests import (
    HEARTBEAT,
    LAYOUT,
    LEASE,
    MAX_TENANT_BYTES,
    MAX_TENANT_PINNED,
    SHARD,
    LimiterChange,
    QueueChange,
    StandingOrder,
    TenantChange,
)
from fairlead.model.events import Event, EventId
from fairlead.model.lifecycle import State
from fairlead.model.limits import CircuitState
from fairlead.model.message import ErrorInfo, Message

#: What is read of a task: ``all`` of it; its ``result`` (and its error), but neither progress nor
#: checkpoint; ``info``: progress and error, but neither result nor checkpoint. Where not all was
#: asked for, the body is its beginning. ``log``: what its attempts left, checkpoint and lines.
Parts = Literal["all", "result", "info", "log"]
MAX_OLDEST, MAX_HEADS = 50, 16  # tenants, and entries of a line, to find what waits the longest
BODY_BEGIN = 512  # bytes of it; the name of the task is among them


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who the broker is. Another generation: it was emptied or replaced; replication: restarted."""

    now: float
    generation: str
    replication: str
    layout: int = LAYOUT
    ahead: float = 0.0  # of its server's clock, in seconds; negative: behind it
    shard: str = SHARD
    heartbeat: float = HEARTBEAT
    lease: float = LEASE


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order. ``gap``: some before the first were dropped; resynchronize by reading."""

    now: float
    events: list[Event] = []
    gap: bool = False
    last: EventId | None = None  # read on from here


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that the broker knows of one task."""

    message: Message  # as it was enqueued
    state: State
    attempts: int = 0  # used up so far
    generation: int = 0  # how often it was put back from the dead
    crashes: int = 0  # in a row
    reason: str = ""  # why it is dead, or what became of the last attempt
    error: ErrorInfo | None = None  # of the last attempt that failed
    result: bytes | None = None  # encoded, as progress and checkpoint are
    progress: bytes | None = None
    checkpoint: bytes | None = None
    log: bytes | None = None  # see model/log_lines.py
    enqueued_at: float = 0.0
    due_at: float | None = None  # scheduled and retrying
    deadline_at: float | None = None
    started_at: float | None = None  # running, if the attempt has begun
    finished_at: float | None = None
    token: int = 0  # running
    incarnation: str = ""  # running
    cancelling: bool = False  # running, and cancel was asked for
    waiting_for: tuple[str, ...] = ()  # deferred: what it still waits for (at most 1,000)
    dependents: int = 0  # tasks that wait for this one
    flow: str = ""  # the id of the flow that it is a member of


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks there are, by state; ``depth`` is all that wait."""

    depth: int = 0
    """How many wait, for whatever: ready, scheduled, retrying or deferred."""
    ready: int = 0
    """How many are queued."""
    scheduled: int = 0
    """How many are due later."""
    retrying: int = 0
    """How many failed and are due again later."""
    deferred: int = 0
    """How many wait for dependencies."""
    running: int = 0
    """How many are on loan to a worker."""
    completed: int = 0
    """How many completed ones are kept."""
    dead: int = 0
    """How many dead ones are kept."""
    cancelled: int = 0
    """How many cancelled ones are kept."""


class TenantCounts(Counts, frozen=True, kw_only=True):
    """One tenant's part of a queue, and what keeps it from being served."""

    paused: bool = False
    """True: none of the tenant's tasks are handed out."""
    parked: Literal["", "tenant", "limiter"] = ""
    """What the tenant waits for room in."""
    parked_at: str = ""
    """Which limiter that is."""


class QueueCounts(Counts, frozen=True, kw_only=True):
    """One queue at one moment; tenants are those that have work, at most 1,000 of them.

    ``oldest_at`` is since when the task can run that has waited the longest, of those that are
    first in the lines of the queue's tenants: of 50 of them, if more have work. None: none is
    queued, or none was found among the first 16 entries of a line.
    """

    paused: bool = False
    """True: the queue hands out nothing."""
    oldest_at: float | None = None
    """Unix seconds since when the oldest queued task waits; None: none does."""
    tenants: dict[str, TenantCounts] = {}
    """The counts of each tenant, by name."""
    more_tenants: bool = False
    """True: there are more tenants than are listed."""


class LimiterState(msgspec.Struct, frozen=True, kw_only=True):
    """One named limiter: how many run under it, who waits for room, how its breaker stands."""

    used: int = 0
    """How many attempts run under it now."""
    waiting: int = 0
    """How many tenants' next tasks wait for room, in all queues."""
    state: CircuitState = ""
    """The state of its breaker; empty: it has none."""
    failed: int = 0
    """How many attempts failed in a row."""
    open_until: float | None = None
    """Unix seconds when the first probe may go, while it is open."""


class Snapshot(Counts, frozen=True, kw_only=True):
    """Queues, what they come to, and limiters (at most 1,000).

    Each queue is of one moment, with its tenants; several may have been read one after the other.
    """

    now: float
    """Unix seconds when the last of the counts was read."""
    shutdown: bool = False
    """True: the broker was closed, and takes in nothing more."""
    redis_active: bool = False
    """True: a Redis or Valkey server answered; False: it is in memory, or away."""
    spooled: int = 0
    """How many tasks and outcomes this process keeps on disk until the broker has them."""
    queues: dict[str, QueueCounts] = {}
    """The counts of each queue, by name."""
    limiters: dict[str, LimiterState] = {}
    """The state of each limiter, by name."""
    more_limiters: bool = False
    """True: there are more than 1,000."""


#: What holds for a queue that nobody configured, by the names of a ``QueueChange``.
DEFAULTS: dict[str, Any] = {
    "paused": False,
    "max_waiting": None,
    "max_tenant_waiting": None,
    "max_tenant_bytes": MAX_TENANT_BYTES,
    "max_tenant_pinned_bytes": MAX_TENANT_PINNED,
    "warn_depth": None,
    "concurrency": None,
    "rate": None,
    "burst": 1,
    "charge_run_time": False,
    "keep_completed": 3_600.0,
    "keep_completed_count": 10_000,
    "keep_completed_bytes": 64 * 1024 * 1024,
    "keep_dead": 7 * 86_400.0,
    "keep_dead_bytes": 256 * 1024 * 1024,
    "strict_priorities": False,
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Part of what is set, as the changes that would set it; ``cursor`` is None at the end.

    Of queues and limiters all fields say what is in force. Of tenants those are UNSET that nobody
    set: what is set for one queue goes before what is set for all, and otherwise a tenant has the
    weight 1 and no limits.
    """

    now: float
    queues: list[QueueChange] = []
    tenants: list[TenantChange] = []
    limiters: list[LimiterChange] = []
    cursor: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a listing; ``cursor`` is None at its end. A page may be empty and not the last.

    Of its tasks it has what ``info`` stands for.
    """

    tasks: list[TaskRecord] = []
    cursor: str | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it described itself in its last heartbeat."""

    incarnation: str
    """The id of the worker, another one after each start."""
    host: str = ""
    """The name of its machine, or FAIRLEAD_HOST."""
    pid: int = 0
    """The id of its process on that machine."""
    queues: tuple[str, ...] = ()
    """The queues that it serves."""
    tasks: tuple[str, ...] = ()
    """The names of the tasks that it can run."""
    concurrency: int = 0
    """How many tasks it runs at a time."""
    running: int = 0
    """How many tasks it runs now."""
    started_at: float = 0.0
    """Unix seconds when it started, by the broker's clock."""
    seen_at: float = 0.0
    """Unix seconds of its last heartbeat, by the broker's clock."""
    order: StandingOrder = ""
    """What an operator ordered: "pause", "stop", or nothing."""
    details: dict[str, Any] = {}
    """What else it tells of itself, such as ``state``."""


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A library of server functions that belongs to Fairlead."""

    name: str
    functions: int  # on the server; 0: it is not there
    current: bool  # of this release


class ShardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """In which layout a shard is stored (0: it is empty), and the way from there to this release.

    ``nothing``: this release uses it as it is. ``convert``: it can be converted. ``discard``: there
    is no way but to empty it. ``upgrade``: it takes a later release.
    """

    shard: str
    layout: int
    tasks: int
    way: Literal["nothing", "convert", "discard", "upgrade"]


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair did about one kind of damage, or would do."""

    kind: str
    text: str  # for people
    done: int = 0  # things that were mended
    left: int = 0  # things that are wrong: without ``apply`` all that were found
    busy: int = 0  # things that could not be judged, because somebody worked on them all the time


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, in a sentence; ``hint`` says what to do if it is not fine."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""
