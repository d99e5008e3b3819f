"""The formats of what is stored, as ``lua/lib/record``, ``queue`` and ``tenant`` write it.

A stored task is a message (accepted at, life, head, body, trace, extra) and, unless it is simply
queued for the first time, a record of what became of it. The head is what the server must know of a
message; the same few come again and again, so both directions remember them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Literal

import msgspec

from fairlead.broker.verbs import StandingOrder
from fairlead.broker.views import (
    LimiterState,
    QueueCounts,
    TaskRecord,
    TenantCounts,
    WorkerRecord,
)
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.limits import NO_BREAKER, Breaker, Circuit
from fairlead.model.message import ErrorInfo, Message

__all__ = (
    "DIGITS",
    "GS",
    "ORDERS",
    "RS",
    "SIZES",
    "STATES",
    "STORED",
    "US",
    "blob",
    "decode_breaker",
    "decode_error",
    "decode_limiter",
    "decode_message",
    "decode_queue",
    "decode_record",
    "encode_error",
    "head_of",
    "heads",
    "new_head",
    "parse_head",
    "parsed_heads",
    "read_extra",
    "tenant_counts",
    "worker_bytes",
    "worker_record",
)

US, RS, GS = b"\x1f", b"\x1e", b"\x1d"

#: By the digit that stands for it; 0 is none.
STATES: tuple[State | None, ...] = (
    None,
    State.SCHEDULED,
    State.DEFERRED,
    State.QUEUED,
    State.RUNNING,
    State.RETRYING,
    State.COMPLETED,
    State.DEAD,
    State.CANCELLED,
)
#: By the letter that stands for it.
ORDERS: dict[bytes, StandingOrder] = {b"": "", b"p": "pause", b"s": "stop"}
DIGITS: dict[State, str] = {state: str(i) for i, state in enumerate(STATES) if state is not None}

STORED = Struct("<dIH")  # accepted at, life, bytes of the head, which follows
SIZES = Struct("<II")  # bytes of body and trace, which follow; what is left is the extra

# A record begins with state, flags, policy, attempts, crashes, unroutable, generation, token,
# started, due, deadline, finished, expires; then comes the unique hold and how often it was given
# another level, then four texts with their lengths before them: incarnation, unique key, reason,
# head; then what only scripts need. The head is that of the message but for the level.
_FATE = Struct("<BBBIBHHdddddd")
_HOLD = Struct("<B")
_MOVED = 4  # times how often it was given another level, in the byte of the unique hold
_CANCELLING = 128
_BODY_GONE = 16
_SHORT = Struct("<B")
_LONG = Struct("<H")

_QUEUE = Struct("<dd8I")  # virtual clock, weight of the ready; tasks by state; more follows
_TENANT = Struct("<8I32xBxB")  # tasks by state, what it does, whether it is paused; more follows
_RARE = 117  # where a tenant has what few have: first of all the limiter that it waits at
_AT_LIMITER = 3
_PARKED: dict[int, Literal["tenant", "limiter"]] = {2: "tenant", _AT_LIMITER: "limiter"}
# Concurrency, rate, burst, what the rate remembers, room in use; then, if there is a breaker: its
# failures, cooldown and probes, how many failed, when it opened, after which token, running probes.
_LIMITER = Struct("<ddIddd")
_BREAKER = Struct("<7d")
_ERROR_SIZE = Struct("<I")  # what an error counts for in the retention

_MOST_HEADS = 50_000  # remembered; then all are forgotten, which is cheaper than to choose

_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(ErrorInfo).decode
_decode_worker = msgspec.msgpack.Decoder(WorkerRecord).decode
_decode_extra = msgspec.msgpack.Decoder(list[Any]).decode

HeadKey = tuple[str, str, int, float, tuple[str, ...], int, int]
Head = tuple[str, str, int, float, tuple[str, ...], int, int, str]

#: (queue, tenant, level, cost, limiters, version, flags) -> head, and back; of members with a flow.
heads: dict[HeadKey, bytes] = {}
parsed_heads: dict[bytes, Head] = {}


def new_head(key: HeadKey) -> bytes:
    """The head of a message, which is remembered from now on."""
    queue, tenant, level, cost, limiters, version, flags = key
    fields = (
        queue,
        tenant,
        str(level),
        repr(float(cost)),
        ",".join(limiters),
        str(version),
        str(flags),
    )
    head = "\x1f".join(fields).encode()
    if len(heads) >= _MOST_HEADS:
        heads.clear()
    heads[key] = head
    return head


def head_of(message: Message) -> bytes:
    """The head of one message; a batch of tasks does the same in its own loop, which is sooner."""
    key = (
        message.queue,
        message.tenant,
        message.level,
        message.cost,
        message.limiters,
        message.version,
        message.flags,
    )
    return heads.get(key) or new_head(key)


def parse_head(head: bytes) -> Head:
    """What a head says, which is remembered from now on."""
    queue, tenant, level, cost, limiters, version, flags, *flow = head.decode().split("\x1f")
    names = tuple(limiters.split(",")) if limiters else ()
    member = flow[0] if flow else ""  # its life follows, where it has one
    parsed = (queue, tenant, int(level), float(cost), names, int(version), int(flags), member)
    if len(parsed_heads) >= _MOST_HEADS:
        parsed_heads.clear()
    parsed_heads[head] = parsed
    return parsed


def blob(message: Message) -> bytes:
    """What the server keeps of a message without looking into it."""
    body, trace = message.body, message.trace
    extra = _encode(list(message.extra)) if message.extra else b""
    return b"%b%b%b%b" % (SIZES.pack(len(body), len(trace)), body, trace, extra)


def read_extra(data: bytes) -> tuple[Any, ...]:
    """Trailing fields of a later release."""
    return tuple(_decode_extra(data))


def decode_message(id: str, stored: bytes, *, bodiless: bool = False) -> tuple[float, Message, str]:
    """When a task was accepted, its message, its flow. ``exchange`` has a copy of this, unrolled.

    Of a task whose body was dropped a digest of it is stored in its place.
    """
    at, _, size = STORED.unpack_from(stored)
    cut = STORED.size + size
    head = stored[STORED.size : cut]
    known = parsed_heads.get(head) or parse_head(head)
    queue, tenant, level, cost, limiters, version, flags, flow = known
    body, trace = SIZES.unpack_from(stored, cut)
    start = cut + SIZES.size
    middle = start + body
    end = middle + trace
    message = Message(
        id=id,
        queue=queue,
        tenant=tenant,
        level=level,
        cost=cost,
        limiters=limiters,
        version=version,
        flags=flags,
        body=b"" if bodiless else stored[start:middle],
        trace=stored[middle:end],
        extra=read_extra(stored[end:]) if end < len(stored) else (),
    )
    return at, message, flow


def encode_error(error: ErrorInfo) -> bytes:
    """An error as it is stored. Text that is no text (lone surrogates) is stored escaped."""
    try:
        packed = _encode(error)
    except UnicodeEncodeError:
        texts = (error.type, error.message, error.traceback)
        error = ErrorInfo(*(text.encode("utf-8", "backslashreplace").decode() for text in texts))
        packed = _encode(error)
    return _ERROR_SIZE.pack(len(error.message) + len(error.traceback)) + packed


def decode_error(stored: bytes) -> ErrorInfo:
    """The error that ``encode_error`` or a script stored."""
    return _decode_error(stored[_ERROR_SIZE.size :])


def decode_record(id: str, row: Sequence[Any]) -> TaskRecord:
    """All that is known of a task, from the eight values that the script ``find`` gives for it."""
    stored, record, error, result, progress, checkpoint, waiting_for, dependents = row
    if record is None:
        at, message, flow = decode_message(id, stored)
        return TaskRecord(
            message=message,
            state=State.QUEUED,
            enqueued_at=at,
            dependents=int(dependents),
            flow=flow,
        )
    digit, flags, _, attempts, crashes, _, generation, token, *times = _FATE.unpack_from(record)
    started, due, deadline, finished, _ = times
    incarnation, _, reason, head = _texts(record)
    state = STATES[digit]
    if state is None:
        raise ValueError(f"task {id!r} is stored without a state")
    running = state is State.RUNNING
    waits = state is State.SCHEDULED or state is State.RETRYING
    at, message, flow = decode_message(id, stored, bodiless=bool(flags & _BODY_GONE))
    if record[_FATE.size] >= _MOVED:
        level = (parsed_heads.get(head) or parse_head(head))[2]
        message = msgspec.structs.replace(message, level=level)
    return TaskRecord(
        message=message,
        state=state,
        attempts=attempts,
        generation=generation,
        crashes=crashes,
        reason=reason,
        error=decode_error(error) if error is not None else None,
        result=result,
        progress=progress,
        checkpoint=checkpoint,
        enqueued_at=at,
        due_at=due if waits else None,
        deadline_at=deadline or None,
        started_at=(started or None) if running else None,
        finished_at=finished or None,
        token=int(token) if running else 0,
        incarnation=incarnation if running else "",
        cancelling=running and flags >= _CANCELLING,
        waiting_for=tuple(waiting_for.decode().split("\x1f")) if waiting_for else (),
        dependents=int(dependents),
        flow=flow,
    )


def _texts(record: bytes) -> tuple[str, str, str, bytes]:
    """A record's incarnation, unique key, reason and head."""
    place = _FATE.size + _HOLD.size
    texts: list[bytes] = []
    for length in (_SHORT, _LONG, _LONG, _LONG):
        (size,) = length.unpack_from(record, place)
        place += length.size
        texts.append(record[place : place + size])
        place += size
    incarnation, unique, reason, head = texts
    return incarnation.decode(), unique.decode(), reason.decode(), head


# -- counts ------------------------------------------------------------------------------------


def decode_queue(
    state: bytes, conf: bytes | None, more: int, tenants: Sequence[Any], oldest: bytes | None
) -> QueueCounts:
    """The counts of a queue and of those of its tenants that have work."""
    return QueueCounts(
        paused=conf is not None and conf[0] == 1,
        tenants={
            name.decode(): tenant_counts(stored)
            for name, stored in zip(tenants[::2], tenants[1::2], strict=True)
            if stored is not None and any(_TENANT.unpack_from(stored))
        },
        more_tenants=more == 1,
        oldest_at=None if oldest is None else float(oldest),
        **_named(_QUEUE.unpack_from(state)[2:]),
    )


def tenant_counts(stored: bytes) -> TenantCounts:
    """The counts of a tenant's part of a queue, and what keeps it from being served."""
    *counts, status, pause = _TENANT.unpack_from(stored)
    rare = stored[_RARE:]
    spot = rare[1 : 1 + rare[0]].decode() if rare and status == _AT_LIMITER else ""
    return TenantCounts(
        paused=pause == 1, parked=_PARKED.get(status, ""), parked_at=spot, **_named(counts)
    )


def _named(by_state: Sequence[int]) -> dict[str, int]:
    scheduled, deferred, queued, running, retrying, completed, dead, cancelled = by_state
    return {
        "depth": scheduled + deferred + queued + retrying,
        "ready": queued,
        "scheduled": scheduled,
        "retrying": retrying,
        "deferred": deferred,
        "running": running,
        "completed": completed,
        "dead": dead,
        "cancelled": cancelled,
    }


# -- limiters ----------------------------------------------------------------------------------


def decode_limiter(stored: bytes, waiting: int, *, now: float) -> LimiterState:
    """A named limiter at which so many tenants wait."""
    *_, used = _LIMITER.unpack_from(stored)
    breaker, circuit = decode_breaker(stored)
    return LimiterState(
        used=int(used),
        waiting=waiting,
        state=circuit.state(breaker, now),
        failed=circuit.failed,
        open_until=circuit.open_until(breaker, now),
    )


def decode_breaker(stored: bytes) -> tuple[Breaker, Circuit]:
    """The breaker of a stored limiter and how it stands."""
    if len(stored) == _LIMITER.size:
        return NO_BREAKER, Circuit()
    failures, cooldown, probes, failed, opened, last, probing = _BREAKER.unpack_from(
        stored, _LIMITER.size
    )
    breaker = Breaker(failures=int(failures) or None, cooldown=cooldown, probes=int(probes))
    circuit = Circuit(
        failed=int(failed),
        opened_at=opened if opened >= 0.0 else None,
        last_token=int(last),
        probing=int(probing),
    )
    return breaker, circuit


# -- workers -----------------------------------------------------------------------------------


def worker_bytes(worker: WorkerRecord | None, incarnation: str) -> bytes:
    """A worker's description as it is stored; empty for none."""
    if worker is None:
        return b""
    try:
        return _encode(msgspec.structs.replace(worker, incarnation=incarnation))
    except (TypeError, ValueError, OverflowError) as error:
        rule = "made of numbers, texts, lists and dicts"
        raise InvalidOption("worker", type(error).__name__, rule) from None


def worker_record(stored: bytes, seen_at: bytes, order: bytes | None = None) -> WorkerRecord:
    """The description that ``worker_bytes`` made, when the worker was heard of, its order."""
    record = _decode_worker(stored)
    return msgspec.structs.replace(
        record, seen_at=float(seen_at), order=ORDERS[b"" if order is None else order]
    )
