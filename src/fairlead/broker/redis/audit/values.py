"""Stored values as the audit needs them, in the formats that ``lua/lib`` writes.

Every reader raises ``ValueError`` for bytes that no script of this release writes.
"""

from __future__ import annotations

import struct
from struct import Struct

import msgspec

from fairlead.broker.redis.stored import (
    SIZES,
    STATES,
    STORED,
    US,
    decode_error,
    parse_head,
    parsed_heads,
    worker_record,
)
from fairlead.model.limits import PRECISION, room_at

__all__ = (
    "AT_LIMITER",
    "FINAL",
    "IDLE",
    "PARKED",
    "PARTS",
    "PAUSED",
    "READY",
    "SENTINEL",
    "STATUSES",
    "WAITING",
    "Conf",
    "Gate",
    "Limiter",
    "Message",
    "Queue",
    "Record",
    "Task",
    "Tenant",
    "join",
    "read_answer",
    "read_conf",
    "read_error",
    "read_gate",
    "read_limiter",
    "read_message",
    "read_queue",
    "read_record",
    "read_settings",
    "read_tenant",
    "read_watchers",
    "read_worker",
)

SENTINEL = "~" * 80  # a member that scripts put into sets and orders of their own
PARTS = {1: "errors", 2: "results", 4: "progress", 8: "checkpoints"}  # by bit of a record's flags

SCHEDULED, DEFERRED, QUEUED, RUNNING, RETRYING, COMPLETED, DEAD, CANCELLED = range(1, 9)
WAITING = frozenset((SCHEDULED, DEFERRED, QUEUED, RETRYING))
FINAL = frozenset((COMPLETED, DEAD, CANCELLED))

IDLE, READY, PARKED, AT_LIMITER, PAUSED = range(5)
STATUSES = ("idle", "ready", "parked", "waiting at a limiter", "paused")

_BODY_GONE, _CANCELLING = 16, 128
_FATE = Struct("<BBBIBHHdddddd")
_HOLD = Struct("<B")
_SIZE = Struct("<HIII")  # place, life, bytes of body and trace, bytes of parts
_TENANT = Struct("<13IdIBBBBB")
_QUEUE = Struct("<dd8IdddBdd")
_CONF = Struct("<BdddddIBddddd")
_GATE = Struct("<ddIdd")
_USED = Struct("<d")
_SETTINGS = 5  # paused, weight, concurrency, rate, burst


class Message(msgspec.Struct):
    """What was accepted, without its body."""

    life: int
    head: bytes
    size: int  # bytes of body and trace


class Record(msgspec.Struct, kw_only=True):
    """What became of a task."""

    state: int
    flags: int
    policy: int
    generation: int
    token: int
    due: float
    deadline: float
    expires: float
    hold: int
    incarnation: str
    unique: str
    head: bytes
    life: int
    size: int
    extra: int


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

    @property
    def state(self) -> int:
        return self.record.state

    @property
    def shown(self) -> str:
        """The name of its state."""
        state = STATES[self.record.state]
        return "" if state is None else state.value

    @property
    def entry(self) -> str:
        """What stands for it in a line."""
        r = self.record
        return f"{self.id}\x1f{r.life}.{r.generation}" if r.life or r.generation else self.id

    @property
    def cancelling(self) -> bool:
        return self.record.flags >= _CANCELLING

    @property
    def bodiless(self) -> bool:
        return bool(self.record.flags & _BODY_GONE)

    @property
    def bytes(self) -> int:
        """What it counts for on a shelf."""
        return 100 + self.record.size + self.record.extra


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
    """A named limit, and how many hold room in it."""

    used: float


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

    def count(self, *states: int) -> int:
        return sum(self.counts[state - 1] for state in states)


def read_message(stored: bytes) -> Message:
    _, life, size = _unpack(STORED, stored)
    cut = STORED.size + size
    body, trace = _unpack(SIZES, stored, cut)
    if len(stored) < cut + SIZES.size + body + trace:
        raise ValueError("a message is cut off")
    return Message(life, stored[STORED.size : cut], body + trace)


def read_record(stored: bytes) -> Record:
    state, flags, policy, _, _, _, generation, token, _, *moments = _unpack(_FATE, stored)
    due, deadline, _, expires = moments
    if not SCHEDULED <= state <= CANCELLED:
        raise ValueError(f"there is no state {state}")
    (hold,) = _unpack(_HOLD, stored, _FATE.size)
    incarnation, place = _text(stored, _FATE.size + _HOLD.size, 1)
    unique, place = _text(stored, place, 2)
    _, place = _text(stored, place, 2)
    head, place = _text(stored, place, 2)
    if len(stored) != place + _SIZE.size:
        raise ValueError("a record has another length than it says")
    _, life, size, extra = _unpack(_SIZE, stored, place)
    return Record(
        state=state,
        flags=flags,
        policy=policy,
        generation=generation,
        token=int(token),
        due=due,
        deadline=deadline,
        expires=expires,
        hold=hold,
        incarnation=incarnation.decode(),
        unique=unique.decode(),
        head=head,
        life=life,
        size=size,
        extra=extra,
    )


def join(id: str, message: Message | None, record: Record | None) -> Task:
    """The task that a message, a record or both make."""
    if record is not None:
        head = record.head
    elif message is not None:
        head = message.head
    else:
        raise ValueError("there is neither")
    queue, tenant, level, _, limiters, _, _ = parsed_heads.get(head) or parse_head(head)
    return Task(
        id=id,
        queue=queue,
        tenant=tenant,
        level=level,
        limiters=limiters,
        record=record or _untouched(message or Message(0, head, 0)),
        message=message,
        recorded=record is not None,
    )


def _untouched(message: Message) -> Record:
    """What it means that there is no record: queued for the first time."""
    return Record(
        state=QUEUED,
        flags=0,
        policy=0,
        generation=0,
        token=0,
        due=0.0,
        deadline=0.0,
        expires=0.0,
        hold=0,
        incarnation="",
        unique="",
        head=message.head,
        life=message.life,
        size=message.size,
        extra=0,
    )


def read_tenant(stored: bytes) -> Tenant:
    *numbers, tag, weight, status, _, pause, gated, busy = _unpack(_TENANT, stored)
    spot, place = _text(stored, _TENANT.size, 1)
    woken, place = _text(stored, place, 1)
    if len(stored) != place or status >= len(STATUSES):
        raise ValueError("a tenant is stored as no script does it")
    return Tenant(
        counts=tuple(numbers[:8]),
        lengths=tuple(numbers[8:12]),
        special=numbers[12],
        tag=tag,
        weight=weight,
        status=status,
        pause=pause == 1,
        gated=gated == 1,
        busy=busy == 1,
        spot=spot.decode(),
        woken=woken.decode(),
    )


def read_queue(stored: bytes) -> Queue:
    clock, weight, *rest = _unpack(_QUEUE, stored)
    since, gone, _, _, done_bytes, dead_bytes = rest[8:]
    return Queue(
        clock=clock,
        weight=weight,
        counts=tuple(rest[:8]),
        since=since,
        gone=gone,
        done_bytes=done_bytes,
        dead_bytes=dead_bytes,
    )


def read_conf(stored: bytes) -> Conf:
    paused, _, _, _, concurrency, rate, burst, *_ = _unpack(_CONF, stored)
    return Conf(paused=paused == 1, concurrency=concurrency, rate=rate, burst=burst)


def read_gate(stored: bytes) -> Gate:
    concurrency, rate, burst, since, gone = _unpack(_GATE, stored)
    return Gate(concurrency=concurrency, rate=rate, burst=burst, since=since, gone=gone)


def read_limiter(stored: bytes) -> Limiter:
    concurrency, rate, burst, since, gone = _unpack(_GATE, stored)
    (used,) = _unpack(_USED, stored, _GATE.size)
    return Limiter(
        concurrency=concurrency, rate=rate, burst=burst, since=since, gone=gone, used=used
    )


def read_error(stored: bytes) -> int:
    """What an error counts for."""
    decode_error(stored)
    return int.from_bytes(stored[:4], "little")


def read_settings(stored: bytes) -> str:
    if stored.count(US) != _SETTINGS - 1:
        raise ValueError("settings of a tenant have another number of fields")
    return stored.decode()


def read_answer(stored: bytes) -> int:
    """The number of the call."""
    number, verb, _ = stored.split(US, 2)
    if not verb.isalpha():
        raise ValueError("an answer is kept without its verb")
    return int(number)


def read_worker(stored: bytes) -> str:
    return worker_record(stored, b"0").incarnation


def read_watchers(stored: bytes) -> list[str]:
    if not stored:
        raise ValueError("nobody watches")
    return stored.decode().split("\x1f")


def _unpack(form: Struct, stored: bytes, place: int = 0) -> tuple[int, ...]:
    try:
        return form.unpack_from(stored, place)
    except struct.error as error:
        raise ValueError(str(error)) from error


def _text(stored: bytes, place: int, length: int) -> tuple[bytes, int]:
    """A text with its length before it, and where it ends."""
    start = place + length
    end = start + int.from_bytes(stored[place:start], "little")
    if end > len(stored):
        raise ValueError("a text is cut off")
    return stored[start:end], end
