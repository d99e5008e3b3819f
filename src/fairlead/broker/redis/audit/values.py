"""Stored values as the audit needs them."""

from __future__ import annotations

import math

import msgspec

from fairlead.broker.redis.layout import STATES
from fairlead.broker.redis.standing import Counters
from fairlead.model.limits import PRECISION, Breaker, Circuit, room_at

SENTINEL = "~" * 80  # a member that scripts put into sets and orders of their own
COUNTED = 100  # bytes that a task counts for beside what is stored of it
PARTS = {1: "errors", 2: "results", 4: "progress", 8: "checkpoints"}  # by bit of a record's flags

SCHEDULED, DEFERRED, QUEUED, RUNNING, RETRYING, COMPLETED, DEAD, CANCELLED = range(1, 9)
WAITING = frozenset((SCHEDULED, DEFERRED, QUEUED, RETRYING))
FINAL = frozenset((COMPLETED, DEAD, CANCELLED))

IDLE, READY, PARKED, AT_LIMITER, PAUSED = range(5)
STATUSES = ("idle", "ready", "parked", "waiting at a limiter", "paused")

_BODY_GONE, _ASIDE, _CANCELLING = 16, 64, 128


class Message(msgspec.Struct):
    """What was accepted, without its body."""

    life: int
    head: bytes
    size: int  # bytes of body and trace
    at: float = 0.0  # when it was accepted


class Record(msgspec.Struct, kw_only=True):
    """What became of a task; of one that has no record it is queued for the first time."""

    state: int = QUEUED
    flags: int = 0
    policy: int = 0
    generation: int = 0
    token: int = 0
    due: float = 0.0
    deadline: float = 0.0
    expires: float = 0.0
    hold: int = 0
    moved: int = 0  # 0, or a number that grows with each change of its level
    incarnation: str = ""
    unique: str = ""
    head: bytes
    life: int
    size: int
    extra: int = 0


class Flow(msgspec.Struct, frozen=True):
    """A flow's record."""

    phase: int
    work: int
    total: int
    edges: int  # rows of further edges
    place: int
    counts: tuple[int, int, int]  # members that completed, died, were cancelled
    life: int
    finished: float
    # Queue, tenant, members, how many are to be written, bytes of the others.
    shares: list[tuple[str, str, int, int, int]]


class Task(msgspec.Struct, kw_only=True):
    """A message and its record, either of which may be missing."""

    id: str
    queue: str
    tenant: str
    level: int
    limiters: tuple[str, ...]
    record: Record
    message: Message | None
    recorded: bool  # False: ``record`` is what the lack of one means
    flow: str = ""  # that it is a member of: its id and, behind US, its life if it has one

    @property
    def state(self) -> int:
        return self.record.state

    @property
    def special(self) -> bool:
        """Whether there is more to it than its id says while it is queued."""
        return self.recorded or self.record.life > 0

    @property
    def shown(self) -> str:
        """The name of its state."""
        state = STATES[self.record.state]
        return "" if state is None else state.value

    @property
    def entry(self) -> str:
        """What stands for it in a line."""
        r = self.record
        if not (r.life or r.generation or r.moved):
            return self.id
        moved = f".{r.moved}" if r.moved else ""
        return f"{self.id}\x1f{r.life}.{r.generation}{moved}"

    @property
    def cancelling(self) -> bool:
        return self.record.flags >= _CANCELLING

    @property
    def bodiless(self) -> bool:
        return bool(self.record.flags & _BODY_GONE)

    @property
    def set_aside(self) -> bool:
        """Whether it was pinned after its end: then no entry of a list is its own."""
        return bool(self.record.flags & _ASIDE)

    @property
    def bytes(self) -> int:
        """What it counts for, wherever bytes are counted."""
        return COUNTED + self.record.size + self.record.extra


class Limit(msgspec.Struct, kw_only=True):
    """A limit and what its rate remembers; ``concurrency`` below 0 and ``rate`` 0 mean none."""

    concurrency: float = -1.0
    rate: float = 0.0
    burst: int = 1
    since: float = 0.0
    gone: float = 0.0

    def closed(self, used: float) -> bool:
        """Whether only the end of a running task makes room."""
        return 0 <= self.concurrency <= used

    def waits(self, now: float) -> bool:
        """Whether the rate allows none at this moment."""
        if self.rate <= 0:
            return False
        return room_at(self.since, int(self.gone), self.rate, self.burst) > now + PRECISION


class Gate(Limit, kw_only=True):
    """The limit of one tenant in one queue."""


class Limiter(Limit, kw_only=True):
    """A named limit, how many hold room in it, and how its breaker stands."""

    used: float
    breaker: Breaker
    circuit: Circuit

    def full(self, now: float) -> bool:
        """Whether only the end of a running task makes room."""
        probed = self.circuit.closed_until(self.breaker, now) == math.inf
        return probed or self.closed(self.used)


class Conf(msgspec.Struct, kw_only=True):
    """Of a queue's settings what the audit needs."""

    paused: bool
    concurrency: float
    rate: float
    burst: int


class Queue(msgspec.Struct, kw_only=True):
    """A queue as it stands."""

    clock: float
    weight: float
    counts: tuple[int, ...]  # by state, from scheduled on
    since: float
    gone: float
    done_bytes: float
    dead_bytes: float
    large: tuple[int, int]  # tenants with an order of their own: of finished, of dead tasks
    look: float  # when tidy looks at it; 0: never
    counted: Counters


class Tenant(msgspec.Struct, kw_only=True):
    """A tenant's part of a queue."""

    counts: tuple[int, ...]
    lengths: tuple[int, ...]  # of its lines, by level
    special: int  # queued tasks that have a record
    tag: float
    weight: int
    status: int
    pause: bool
    gated: bool
    busy: bool
    spot: str  # the limiter it waits at
    woken: str  # the limiter whose room it was woken for
    done_bytes: float
    dead_bytes: float
    live_bytes: float
    pin_bytes: float
    large: int  # shelves on which it has an order of its own: 1 finished, 2 dead

    def count(self, *states: int) -> int:
        return sum(self.counts[state - 1] for state in states)
