"""Reads stored values in the formats that ``lua/lib`` writes.

Every reader raises ``ValueError`` for bytes that no script of this release writes.
"""

from __future__ import annotations

import struct
from struct import Struct

from fairlead.broker.redis import layout, standing
from fairlead.broker.redis.audit.values import (
    CANCELLED,
    COUNTED,
    SCHEDULED,
    STATUSES,
    Conf,
    Flow,
    Gate,
    Limiter,
    Message,
    Queue,
    Record,
    Task,
    Tenant,
)
from fairlead.broker.redis.decode import (
    decode_breaker,
    decode_error,
    parse_head,
    parsed_heads,
    worker_record,
)
from fairlead.broker.redis.documents import read_note as decode_note
from fairlead.broker.redis.flows import flow_texts
from fairlead.broker.redis.layout import US, text_at
from fairlead.model.errors import InvalidOption

_SHA1 = 40
_HEAD = 7  # fields of a head, before the flow of a member and its life
_SETTINGS = 5  # paused, weight, concurrency, rate, burst


def read_message(stored: bytes) -> Message:
    at, life, size = _unpack(layout.STORED, stored)
    cut = layout.STORED.size + size
    body, trace = _unpack(layout.SIZES, stored, cut)
    if len(stored) < cut + layout.SIZES.size + body + trace:
        raise ValueError("a message is cut off")
    return Message(life, stored[layout.STORED.size : cut], body + trace, at)


def read_record(stored: bytes) -> Record:
    state, flags, policy, _, _, _, generation, token, _, *moments = _unpack(layout.FATE, stored)
    due, deadline, _, expires = moments
    if not SCHEDULED <= state <= CANCELLED:
        raise ValueError(f"there is no state {state}")
    (hold,) = _unpack(layout.HOLD, stored, layout.FATE.size)
    incarnation, place = text_at(stored, layout.FATE.size + layout.HOLD.size, 1)
    unique, place = text_at(stored, place, 2)
    _, place = text_at(stored, place, 2)
    head, place = text_at(stored, place, 2)
    if len(stored) != place + layout.SIZE.size:
        raise ValueError("a record has another length than it says")
    life, size, extra = _unpack(layout.SIZE, stored, place)
    return Record(
        state=state,
        flags=flags,
        policy=policy,
        generation=generation,
        token=int(token),
        due=due,
        deadline=deadline,
        expires=expires,
        hold=hold % layout.MOVED,
        moved=hold - hold % layout.MOVED,
        incarnation=incarnation.decode(),
        unique=unique.decode(),
        head=head,
        life=life,
        size=size,
        extra=extra,
    )


def join(id: str, message: Message | None, record: Record | None) -> Task:
    """The task that a message, a record or both make."""
    recorded = record is not None
    if record is None:
        if message is None:
            raise ValueError("there is neither")
        record = Record(head=message.head, life=message.life, size=message.size)
    queue, tenant, level, _, limiters, _, _, _ = parsed_heads.get(record.head) or parse_head(
        record.head
    )
    return Task(
        id=id,
        queue=queue,
        tenant=tenant,
        level=level,
        limiters=limiters,
        record=record,
        message=message,
        recorded=recorded,
        flow="\x1f".join(record.head.decode().split("\x1f")[_HEAD:]),
    )


def read_tenant(stored: bytes) -> Tenant:
    *numbers, tag, weight, status, _, pause, gated, busy = _unpack(layout.TENANT, stored)
    place = layout.TENANT_LENGTH
    done, live = _unpack(layout.TENANT_BYTES, stored, place - layout.TENANT_BYTES.size)
    spot, woken, dead, pinned, large = b"", b"", 0.0, 0.0, 0
    if len(stored) > place:
        spot, place = text_at(stored, place, 1)
        woken, place = text_at(stored, place, 1)
        dead, pinned, large = _unpack(layout.TENANT_RARE, stored, place)
        place += layout.TENANT_RARE.size
        place += layout.TENANT_LOWER.size if len(stored) > place else 0
    if len(stored) != place or status >= len(STATUSES):
        raise ValueError("a tenant is stored as no script does it")
    return Tenant(
        counts=tuple(numbers[:8]),
        lengths=standing.line_lengths(stored),
        special=numbers[12],
        tag=tag,
        weight=weight,
        status=status,
        pause=pause == 1,
        gated=gated == 1,
        busy=busy == 1,
        spot=spot.decode(),
        woken=woken.decode(),
        done_bytes=done,
        dead_bytes=dead,
        live_bytes=live,
        pin_bytes=pinned,
        large=large,
    )


def read_tally(stored: bytes) -> tuple[float, ...]:
    if len(stored) != layout.TALLY.size:
        raise ValueError("a tally is stored as no script does it")
    return layout.TALLY.unpack(stored)


def read_tomb(stored: bytes) -> tuple[float, str]:
    """Until when an id is known, and whose it is."""
    till, state = _unpack(layout.TOMB, stored)
    if not SCHEDULED <= state <= CANCELLED or len(stored) <= layout.TOMB.size + _SHA1:
        raise ValueError("a tomb is stored as no script does it")
    return till, stored[layout.TOMB.size + _SHA1 :].decode()


def read_leader(stored: bytes) -> tuple[int, float]:
    """The term of a holder, and until when it holds its name."""
    term, till, holder = stored.decode().split("\x1f")
    if not holder:
        raise ValueError("a name is held by nobody")
    return int(term), float(till)


def read_queue(stored: bytes) -> Queue:
    clock, weight, *rest = _unpack(layout.QUEUE, stored)
    since, gone, _, _, done_bytes, dead_bytes, _, *large, look, _ = rest[8:]
    return Queue(
        clock=clock,
        weight=weight,
        counts=tuple(rest[:8]),
        since=since,
        gone=gone,
        done_bytes=done_bytes,
        dead_bytes=dead_bytes,
        large=(large[0], large[1]),
        look=look,
        counted=standing.counters(stored),
    )


def read_conf(stored: bytes) -> Conf:
    paused, _, _, _, _, _, concurrency, rate, burst, *_ = _unpack(layout.CONF, stored)
    return Conf(paused=paused == 1, concurrency=concurrency, rate=rate, burst=burst)


def read_gate(stored: bytes) -> Gate:
    concurrency, rate, burst, since, gone = _unpack(layout.GATE, stored)
    return Gate(concurrency=concurrency, rate=rate, burst=burst, since=since, gone=gone)


def read_limiter(stored: bytes) -> Limiter:
    concurrency, rate, burst, since, gone, used = _unpack(layout.LIMITER, stored)
    if len(stored) - layout.LIMITER.size not in (0, layout.BREAKER.size):
        raise ValueError("a limiter has another length than with or without a breaker")
    try:
        breaker, circuit = decode_breaker(stored)
    except (InvalidOption, OverflowError) as error:
        raise ValueError(str(error)) from error
    return Limiter(
        concurrency=concurrency,
        rate=rate,
        burst=burst,
        since=since,
        gone=gone,
        used=used,
        breaker=breaker,
        circuit=circuit,
    )


def read_error(stored: bytes) -> int:
    """What an error counts for."""
    decode_error(stored)
    return _unpack(layout.ERROR_SIZE, stored)[0]


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


def read_document(stored: bytes) -> tuple[int, float]:
    """Its revision, and when it is over (0: never)."""
    revision, _, till = _unpack(layout.DOCUMENT, stored)
    return revision, till


def read_note(stored: bytes) -> str:
    """Its number and the length of its value; by US."""
    found = decode_note(stored)
    return f"{found.number}\x1f{len(found.value)}"


def read_watchers(stored: bytes) -> list[str]:
    if not stored:
        raise ValueError("nobody watches")
    return stored.decode().split("\x1f")


def read_flow(stored: bytes) -> Flow:
    phase, work, following, total, edges, _, place, *rest = _unpack(layout.FLOW, stored)
    completed, dead, cancelled, life, _, finished = rest
    *_, shares = flow_texts(stored)
    if not 1 <= phase <= 3 or work > 3 or following > 3:
        raise ValueError("a flow is stored as no script does it")
    return Flow(
        phase=phase,
        work=work,
        total=total,
        edges=edges,
        place=place,
        counts=(completed, dead, cancelled),
        life=life,
        finished=finished,
        shares=[_share(text) for text in shares.split("\x1e")] if shares else [],
    )


def _share(text: str) -> tuple[str, str, int, int, int]:
    queue, tenant, count, left, size = text.split("\x1f")
    return queue, tenant, int(count), int(left), int(size)


def read_member(stored: bytes) -> str:
    """Queue, tenant and bytes of a member that is no task yet (else nothing), and its id; by US."""
    if stored[:1] == b"\1":
        _unpack(layout.MEMBER, stored)
        id, place = text_at(stored, layout.MEMBER.size - 2, 2)
        head, place = text_at(stored, place, 2)
        _, place = text_at(stored, place, 4)
        blob, place = text_at(stored, place, 4)
        queue, tenant, *_ = head.decode().split("\x1f")
        size = COUNTED + sum(_unpack(layout.SIZES, blob))
        found = f"{queue}\x1f{tenant}\x1f{size}\x1f{id.decode()}"
    else:
        _unpack(layout.ROW, stored)
        id, place = text_at(stored, layout.ROW.size - 2, 2)
        _, place = text_at(stored, place, 4)
        found = f"\x1f\x1f\x1f{id.decode()}"
    if place != len(stored):
        raise ValueError("a member has another length than it says")
    return found


def read_pins(stored: bytes) -> int:
    """How many there are."""
    number, keep = stored.split(US)
    float(keep or 0)
    if int(number) < 1:
        raise ValueError("nobody pins")
    return int(number)


def read_uses(stored: bytes) -> list[tuple[str, int]]:
    """Ids and lives of the tasks whose results are read."""
    found = []
    for use in stored.split(b"\x1d"):
        id, life = use.split(US)
        found.append((id.decode(), int(life)))
    return found


def read_xcom(stored: bytes) -> tuple[float, str, int]:
    """When the TTL of a value is over, who wrote it, and what it counts for."""
    (till,) = _unpack(layout.XCOM, stored)
    writer, _ = text_at(stored, layout.XCOM.size, 2)
    return till, writer.decode(), COUNTED + len(stored)


def _unpack(form: Struct, stored: bytes, place: int = 0) -> tuple[int, ...]:
    try:
        return form.unpack_from(stored, place)
    except struct.error as error:
        raise ValueError(str(error)) from error
