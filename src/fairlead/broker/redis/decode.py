"""Tasks, counts, limiters and workers as they are stored; ``layout`` has the formats.

A stored task is a message (accepted at, life, head, body, trace, extra) and, unless it is simply
queued for the first time, a record of what became of it. The head is what the server must know of a
message; the same few come again and again, so those that were read are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.broker.records import (
    LimiterState,
    QueueCounts,
    TaskRecord,
    TenantCounts,
    WorkerRecord,
)
from fairlead.broker.redis import layout
from fairlead.broker.redis.layout import SIZES, STATES, STORED, text_at
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.limits import NO_BREAKER, Breaker, Circuit
from fairlead.model.log_lines import kept_parts
from fairlead.model.message import ErrorInfo, Message

_MOST_HEADS = 50_000  # remembered; then all are forgotten, which is cheaper than to choose

_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(ErrorInfo).decode
_decode_worker = msgspec.msgpack.Decoder(WorkerRecord).decode
_decode_extra = msgspec.msgpack.Decoder(list[Any]).decode

Head = tuple[str, str, int, float, tuple[str, ...], int, int, str]

#: head -> (queue, tenant, level, cost, limiters, version, flags, flow); ``encode`` makes heads.
parsed_heads: dict[bytes, Head] = {}


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
    return layout.ERROR_SIZE.pack(len(error.message) + len(error.traceback)) + packed


def decode_error(stored: bytes) -> ErrorInfo:
    """The error that ``encode_error`` or a script stored."""
    return _decode_error(stored[layout.ERROR_SIZE.size :])


def decode_record(id: str, row: Sequence[Any]) -> TaskRecord:
    """All that is known of a task, from the eight values that the script ``find`` gives for it."""
    stored, record, error, result, progress, kept, waiting_for, dependents = row
    checkpoint, log = kept_parts(kept)
    if record is None:
        at, message, flow = decode_message(id, stored)
        return TaskRecord(
            message=message,
            state=State.QUEUED,
            enqueued_at=at,
            dependents=int(dependents),
            flow=flow,
        )
    digit, flags, _, attempts, crashes, _, generation, token, *times = layout.FATE.unpack_from(
        record
    )
    started, due, deadline, finished, _ = times
    incarnation, _, reason, head = _texts(record)
    state = STATES[digit]
    if state is None:
        raise ValueError(f"task {id!r} is stored without a state")
    running = state is State.RUNNING
    waits = state is State.SCHEDULED or state is State.RETRYING
    at, message, flow = decode_message(id, stored, bodiless=bool(flags & layout.BODY_GONE))
    if record[layout.FATE.size] >= layout.MOVED:
        level = (parsed_heads.get(head) or parse_head(head))[2]
        message = msgspec.structs.replace(message, level=level)
    return TaskRecord(
        message=message,
        state=state,
        attempts=attempts,
        generation=generation,
        crashes=crashes,
        reason=reason.decode(),
        error=decode_error(error) if error is not None else None,
        result=result,
        progress=progress,
        checkpoint=checkpoint,
        log=log,
        enqueued_at=at,
        due_at=due if waits else None,
        deadline_at=deadline or None,
        started_at=(started or None) if running else None,
        finished_at=finished or None,
        token=int(token) if running else 0,
        incarnation=incarnation.decode() if running else "",
        cancelling=running and flags >= layout.CANCELLING,
        waiting_for=tuple(waiting_for.decode().split("\x1f")) if waiting_for else (),
        dependents=int(dependents),
        flow=flow,
    )


def _texts(record: bytes) -> list[bytes]:
    """A record's incarnation, unique key, reason and head."""
    place, texts = layout.FATE.size + layout.HOLD.size, []
    for length in (1, 2, 2, 2):
        text, place = text_at(record, place, length)
        texts.append(text)
    return texts


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
            if stored is not None and _has_work(stored)
        },
        more_tenants=more == 1,
        oldest_at=None if oldest is None else float(oldest),
        **_named(layout.QUEUE.unpack_from(state)[2:10]),
    )


def _has_work(tenant: bytes) -> bool:
    numbers = layout.TENANT.unpack_from(tenant)
    return any((*numbers[:8], numbers[-5], numbers[-3]))  # what it does, whether it is paused


def tenant_counts(stored: bytes) -> TenantCounts:
    """The counts of a tenant's part of a queue, and what keeps it from being served."""
    *numbers, status, _, pause, _, _ = layout.TENANT.unpack_from(stored)
    return TenantCounts(
        paused=pause == 1,
        parked=layout.PARKED.get(status, ""),
        parked_at=parked_at(stored) if status == layout.AT_LIMITER else "",
        **_named(numbers[:8]),
    )


def parked_at(tenant: bytes) -> str:
    """The limiter at which a stored tenant waits, if any."""
    if len(tenant) <= layout.TENANT_LENGTH:
        return ""
    return text_at(tenant, layout.TENANT_LENGTH, 1)[0].decode()


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
    *_, used = layout.LIMITER.unpack_from(stored)
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
    if len(stored) == layout.LIMITER.size:
        return NO_BREAKER, Circuit()
    failures, cooldown, probes, failed, opened, last, probing = layout.BREAKER.unpack_from(
        stored, layout.LIMITER.size
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
        record, seen_at=float(seen_at), order=layout.ORDERS[b"" if order is None else order]
    )


# -- who waits for whom ------------------------------------------------------------------------


def read_edges(stored: bytes) -> dict[tuple[str, str], int]:
    """What a deferred task waits for: parent, and its life or ``@`` and its shard; edge numbers.

    Nothing for one that waits for much: a sorted set has it.
    """
    found: dict[tuple[str, str], int] = {}
    for edge in stored.decode().split("\x1d")[1:]:
        parent, where, number = edge.split("\x1f")
        found[parent, where] = int(number)
    return found


def read_ties(stored: bytes) -> tuple[str, dict[tuple[str, str], int]]:
    """Who waits for a task: the letters, and its dependents if they are few, by its life.

    Of a dependent the value is the number of the edge; one of another shard is, by US, that shard,
    id, life and policy.
    """
    letters, *few = stored.decode().split("\x1d")
    found: dict[tuple[str, str], int] = {}
    for each in few:
        life, _, rest = each.partition("\x1f")
        member, _, number = rest.rpartition("\x1f")
        found[life, member] = int(number)
    return letters, found
