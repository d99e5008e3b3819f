"""Flows on a server: written in parts, committed by one write, seen to in steps.

The verbs, and how the scripts read and store flows; ``lua/stage`` says more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from struct import Struct

import msgspec

from fairlead.broker.flow_checks import check_flow_order, check_members, check_part
from fairlead.broker.flows import (
    MAX_SHOWN_EDGES,
    FlowMember,
    FlowOrder,
    FlowPart,
    FlowRecord,
    Share,
    Staged,
)
from fairlead.broker.redis import answers, layout
from fairlead.broker.redis.decode import blob
from fairlead.broker.redis.encode import edges, head_of, options
from fairlead.broker.redis.layout import US, text_at
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import Call, Moved, Submission
from fairlead.model.lifecycle import State
from fairlead.model.message import Message

_US = US.decode()
_AT_ONCE = 50  # dependencies that one call attaches a task to

_LONG, _SHORT = Struct("<I"), Struct("<H")  # lengths
_LIVE, _LAYING = 3, 2

_CODES: dict[bytes, str] = {
    b"s": "staged",
    b"c": "committed",
    b"d": "duplicate",
    b"q": "queue_full",
    b"t": "tenant_full",
    b"b": "tenant_bytes",
    b"k": "known",
    b"u": "unknown_dependency",
    b"n": "unknown",
    b"i": "incomplete",
}
_ACTIONS = {"cancel": "c", "retry": "r"}


async def stage(
    session: Session, call: Call, part: FlowPart, *, now: float | None = None
) -> Staged:
    return await stage_from(session, call, part, {}, now=now)


async def stage_from(
    session: Session,
    call: Call,
    part: FlowPart,
    elsewhere: Mapping[str, str],
    *,
    now: float | None = None,
) -> Staged:
    """``stage``, with dependencies that live in the shards of ``elsewhere``."""
    check_part(part)
    if session.is_closed:
        session.clock(now)
        return Staged(code="closed")
    args = _part_args(part, elsewhere)
    return _staged(await session.numbered("stage", call, now, args))


async def commit(session: Session, call: Call, flow: str, *, now: float | None = None) -> Staged:
    if session.is_closed:
        session.clock(now)
        return Staged(code="closed")
    return _staged(await session.numbered("commit", call, now, [flow]))


async def alter_flow(
    session: Session, call: Call, order: FlowOrder, *, now: float | None = None
) -> Moved | None:
    check_flow_order(order)
    args = [order.flow, _ACTIONS[order.action], order.tenant or ""]
    reply = await session.numbered("change_flow", call, now, args)
    return answers.moved(reply) if reply else None


async def flows(
    session: Session, ids: Sequence[str], *, now: float | None = None
) -> list[FlowRecord | None]:
    rows = await session.run("flows", [session.clock(now), *ids])
    return [None if row is None else _record(id, row) for id, row in zip(ids, rows, strict=True)]


async def members(
    session: Session, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
) -> list[str]:
    check_members(start, limit)
    found = await session.run("members", [session.clock(now), flow, start, limit])
    return [id.decode() for id in found]


async def graph(
    session: Session, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
) -> list[FlowMember]:
    check_members(start, limit)
    found = await session.run("members", [session.clock(now), flow, start, limit, "1"])
    return [_shown(found[i], found[i + 1]) for i in range(0, len(found), 2)]


# -- stage -------------------------------------------------------------------------------------


def _part_args(part: FlowPart, elsewhere: Mapping[str, str]) -> list[Value]:
    """What follows incarnation and number; ``elsewhere`` has the shards of dependencies."""
    members: list[Value] = []
    rows: list[Value] = []
    written: set[str] = set()
    bare: dict[str, None] = {}
    many: Counter[tuple[str, str]] = Counter()
    for member in part.members:
        message = member.message
        many[message.queue, message.tenant] += 1
        given = edges(member, elsewhere)
        first, rest = given[:_AT_ONCE], given[_AT_ONCE:]
        members.append(_member(member, part.flow, first, more=bool(rest)))
        starts = range(0, len(rest), _AT_ONCE)
        rows += (_row(message.id, rest[start : start + _AT_ONCE]) for start in starts)
        for edge in given:
            if edge[0] == "?" and edge[1:] not in written:
                bare[edge[1:]] = None
        written.add(message.id)
    shares = _triples(part.shares)
    own = _triples([Share(queue, tenant, count) for (queue, tenant), count in many.items()])
    ids: list[Value] = [member.message.id for member in part.members]
    args: list[Value] = [part.flow, part.number, part.tenant, part.name]
    lists: list[list[Value]] = [shares, own, ids, members, list(bare), rows]
    args += (len(each) for each in lists)
    for each in lists:
        args += each
    return args


def _triples(shares: Sequence[Share]) -> list[Value]:
    return [value for share in shares for value in (share.queue, share.tenant, share.count)]


def _member(member: Submission, flow: str, given: list[str], *, more: bool) -> bytes:
    message = member.message
    bare = options(msgspec.structs.replace(member, depends_on=()))
    id, asked = message.id.encode(), (bare + "\x1d".join(given)).encode()
    head, packed = _head(message, flow), blob(message)
    return b"".join(
        (
            layout.MEMBER.pack(1, more, len(id)),
            id,
            _SHORT.pack(len(head)),
            head,
            _LONG.pack(len(asked)),
            asked,
            _LONG.pack(len(packed)),
            packed,
        )
    )


def _row(id: str, given: list[str]) -> bytes:
    name, text = id.encode(), "\x1d".join(given).encode()
    return layout.ROW.pack(0, len(name)) + name + _LONG.pack(len(text)) + text


def _head(message: Message, flow: str) -> bytes:
    return head_of(message) + US + flow.encode()


def _staged(reply: bytes) -> Staged:
    """What became of a part or a commit."""
    code, *about = reply.split(US)
    limit = int(about.pop(0)) if code in (b"q", b"t", b"b") else 0
    detail = about[0].decode() if about else ""
    return msgspec.convert(
        {"code": _CODES[code], "limit": limit, "detail": detail}, Staged, strict=True
    )


def _shown(id: bytes, given: bytes) -> FlowMember:
    """A member with its first dependencies, each without the sign for how it was given."""
    texts = given.decode().split("\x1d") if given else []
    ids = [text.rpartition(_US)[2] if text[0] == "@" else text[1:] for text in texts]
    return FlowMember(id=id.decode(), depends_on=tuple(ids), more=len(ids) >= MAX_SHOWN_EDGES)


# -- records -----------------------------------------------------------------------------------


def _record(id: str, stored: bytes) -> FlowRecord:
    """A flow as people see it."""
    phase, _, _, total, _, _, place, completed, dead, cancelled, _, *times = (
        layout.FLOW.unpack_from(stored)
    )
    committed, finished = times
    tenant, name, _, _ = flow_texts(stored)
    state = State.RUNNING
    if phase == _LIVE and completed + dead + cancelled >= total:
        state = State.CANCELLED if cancelled else State.COMPLETED
        state = State.DEAD if dead else state
    return FlowRecord(
        id=id,
        tenant=tenant,
        name=name,
        state=state,
        total=total,
        laid_out=min(place, total) if phase == _LAYING else total,
        completed=completed,
        dead=dead,
        cancelled=cancelled,
        committed_at=committed,
        finished_at=finished or None,
    )


def flow_texts(stored: bytes) -> tuple[str, str, str, str]:
    """Tenant, name, who writes it, shares."""
    place, texts = layout.FLOW.size, []
    for length in (1, 2, 1, 4):
        text, place = text_at(stored, place, length)
        texts.append(text.decode())
    tenant, name, writer, shares = texts
    return tenant, name, writer, shares
