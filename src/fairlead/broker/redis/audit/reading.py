"""Reads stored values in the formats that ``lua/lib`` writes.

Every reader raises ``ValueError`` for bytes that no script of this release writes.
"""

from __future__ import annotations

import struct
from struct import Struct

from fairlead.broker.redis.audit.values import (
    CANCELLED,
    COUNTED,
    QUEUED,
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
from fairlead.broker.redis.documents import FORM as DOCUMENT
from fairlead.broker.redis.documents import note
from fairlead.broker.redis.flow_codec import FORM, MEMBER, ROW, flow_texts
from fairlead.broker.redis.looking import TALLY, TENANT, TENANT_BYTES, TENANT_HOUR, counters
from fairlead.broker.redis.stored import (
    SIZES,
    STORED,
    US,
    decode_breaker,
    decode_error,
    parse_head,
    parsed_heads,
    worker_record,
)
from fairlead.model.errors import InvalidOption

__all__ = (
    "join",
    "read_answer",
    "read_conf",
    "read_document",
    "read_error",
    "read_flow",
    "read_gate",
    "read_leader",
    "read_limiter",
    "read_member",
    "read_message",
    "read_note",
    "read_pins",
    "read_queue",
    "read_record",
    "read_settings",
    "read_tally",
    "read_tenant",
    "read_tomb",
    "read_uses",
    "read_watchers",
    "read_worker",
    "read_xcom",
)

_FATE = Struct("<BBBIBHHdddddd")
_HOLD = Struct("<B")
_MOVED = 4  # above the unique hold: how often it was given another level
_SIZE = Struct("<III")  # life, bytes of body and trace, bytes of parts
_RARE = Struct("<ddB")  # how a tenant ends if it has any of this, or one of two texts before it
_QUEUE = Struct("<dd8IdddBdddIIdd")
_CONF = Struct("<BdddddddIBddddd")
_GATE = Struct("<ddIdd")
_USED = Struct("<d")
_TOMB = Struct("<dB")  # until when, how it ended; then a digest in hex, and the tenant
_SHA1 = 40
_LIMITERS = (44, 100)  # bytes, without a breaker and with one
_HEAD = 7  # fields of a head, before the flow of a member and its life
_SETTINGS = 5  # paused, weight, concurrency, rate, burst


def read_message(stored: bytes) -> Message:
    at, life, size = _unpack(STORED, stored)
    cut = STORED.size + size
    body, trace = _unpack(SIZES, stored, cut)
    if len(stored) < cut + SIZES.size + body + trace:
        raise ValueError("a message is cut off")
    return Message(life, stored[STORED.size : cut], body + trace, at)


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
    life, size, extra = _unpack(_SIZE, stored, place)
    return Record(
        state=state,
        flags=flags,
        policy=policy,
        generation=generation,
        token=int(token),
        due=due,
        deadline=deadline,
        expires=expires,
        hold=hold % _MOVED,
        moved=hold - hold % _MOVED,
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
    queue, tenant, level, _, limiters, _, _, _ = parsed_heads.get(head) or parse_head(head)
    return Task(
        id=id,
        queue=queue,
        tenant=tenant,
        level=level,
        limiters=limiters,
        record=record or _untouched(message or Message(0, head, 0)),
        message=message,
        recorded=record is not None,
        flow="\x1f".join(head.decode().split("\x1f")[_HEAD:]),
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
        moved=0,
        incarnation="",
        unique="",
        head=message.head,
        life=message.life,
        size=message.size,
        extra=0,
    )


def read_tenant(stored: bytes) -> Tenant:
    *numbers, tag, weight, status, _, pause, gated, busy = _unpack(TENANT, stored)
    place = TENANT.size + TENANT_HOUR.size
    done, live = _unpack(TENANT_BYTES, stored, place)
    place += TENANT_BYTES.size
    spot, woken, dead, pinned, large = b"", b"", 0.0, 0.0, 0
    if len(stored) > place:
        spot, place = _text(stored, place, 1)
        woken, place = _text(stored, place, 1)
        dead, pinned, large = _unpack(_RARE, stored, place)
        place += _RARE.size
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
        done_bytes=done,
        dead_bytes=dead,
        live_bytes=live,
        pin_bytes=pinned,
        large=large,
    )


def read_tally(stored: bytes) -> tuple[float, ...]:
    if len(stored) != TALLY.size:
        raise ValueError("a tally is stored as no script does it")
    return TALLY.unpack(stored)


def read_tomb(stored: bytes) -> tuple[float, str]:
    """Until when an id is known, and whose it is."""
    till, state = _unpack(_TOMB, stored)
    if not SCHEDULED <= state <= CANCELLED or len(stored) <= _TOMB.size + _SHA1:
        raise ValueError("a tomb is stored as no script does it")
    return till, stored[_TOMB.size + _SHA1 :].decode()


def read_leader(stored: bytes) -> tuple[int, float]:
    """The term of a holder, and until when it holds its name."""
    term, till, holder = stored.decode().split("\x1f")
    if not holder:
        raise ValueError("a name is held by nobody")
    return int(term), float(till)


def read_queue(stored: bytes) -> Queue:
    clock, weight, *rest = _unpack(_QUEUE, stored)
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
        counted=counters(stored),
    )


def read_conf(stored: bytes) -> Conf:
    paused, _, _, _, _, _, concurrency, rate, burst, *_ = _unpack(_CONF, stored)
    return Conf(paused=paused == 1, concurrency=concurrency, rate=rate, burst=burst)


def read_gate(stored: bytes) -> Gate:
    concurrency, rate, burst, since, gone = _unpack(_GATE, stored)
    return Gate(concurrency=concurrency, rate=rate, burst=burst, since=since, gone=gone)


def read_limiter(stored: bytes) -> Limiter:
    concurrency, rate, burst, since, gone = _unpack(_GATE, stored)
    (used,) = _unpack(_USED, stored, _GATE.size)
    if len(stored) not in _LIMITERS:
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


def read_document(stored: bytes) -> tuple[int, float]:
    """Its revision, and when it is over (0: never)."""
    revision, _, till = _unpack(DOCUMENT, stored)
    return revision, till


def read_note(stored: bytes) -> str:
    """Its number and the length of its value; by US."""
    found = note(stored)
    return f"{found.number}\x1f{len(found.value)}"


def read_watchers(stored: bytes) -> list[str]:
    if not stored:
        raise ValueError("nobody watches")
    return stored.decode().split("\x1f")


def read_flow(stored: bytes) -> Flow:
    phase, work, following, total, edges, _, place, *rest = _unpack(FORM, stored)
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
        _unpack(MEMBER, stored)
        id, place = _text(stored, MEMBER.size - 2, 2)
        head, place = _text(stored, place, 2)
        _, place = _text(stored, place, 4)
        blob, place = _text(stored, place, 4)
        queue, tenant, *_ = head.decode().split("\x1f")
        size = COUNTED + sum(_unpack(SIZES, blob))
        found = f"{queue}\x1f{tenant}\x1f{size}\x1f{id.decode()}"
    else:
        _unpack(ROW, stored)
        id, place = _text(stored, ROW.size - 2, 2)
        _, place = _text(stored, place, 4)
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
    (till,) = _unpack(_USED, stored)
    writer, _ = _text(stored, _USED.size, 2)
    return till, writer.decode(), COUNTED + len(stored)


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
