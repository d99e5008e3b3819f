"""Flows as the scripts read and store them; ``lua/stage`` and ``lua/lib/layout`` say how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from struct import Struct

import msgspec

from fairlead.broker.flows import (
    MAX_SHOWN_EDGES,
    FlowMember,
    FlowPart,
    FlowRecord,
    Share,
    Staged,
)
from fairlead.broker.redis.codec import options
from fairlead.broker.redis.stored import US, blob, head_of
from fairlead.broker.redis.wire import Value
from fairlead.broker.verbs import Submission
from fairlead.model.lifecycle import State
from fairlead.model.message import Message

__all__ = ("FORM", "MEMBER", "ROW", "flow_texts", "member", "part_args", "read_flow", "staged")

_US = US.decode()
_AT_ONCE = 50  # dependencies that one call attaches a task to

MEMBER = Struct("<BBH")  # 1, whether more edges follow elsewhere, bytes of the id
ROW = Struct("<BH")  # 0, bytes of the id
_LONG, _SHORT = Struct("<I"), Struct("<H")

# Phase, what is being done and comes next, members, rows of further edges, parts, place, members by
# final state, life, committed, finished; then texts with their lengths before them.
FORM = Struct("<BBB8Idd")
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


# -- stage -------------------------------------------------------------------------------------


def part_args(part: FlowPart, elsewhere: Mapping[str, str] | None = None) -> list[Value]:
    """What follows incarnation and number; ``elsewhere`` has the shards of dependencies."""
    members: list[Value] = []
    rows: list[Value] = []
    written: set[str] = set()
    bare: dict[str, None] = {}
    many: Counter[tuple[str, str]] = Counter()
    for member in part.members:
        message = member.message
        many[message.queue, message.tenant] += 1
        edges = _edges(member, elsewhere or {})
        first, rest = edges[:_AT_ONCE], edges[_AT_ONCE:]
        members.append(_member(member, part.flow, first, more=bool(rest)))
        starts = range(0, len(rest), _AT_ONCE)
        rows += (_row(message.id, rest[start : start + _AT_ONCE]) for start in starts)
        for edge in edges:
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


def _edges(member: Submission, elsewhere: Mapping[str, str]) -> list[str]:
    """Its dependencies, each with a sign for how it was given, or where it is."""
    text = options(member).rpartition("\x1e")[2]
    return [
        f"@{elsewhere[edge[1:]]}\x1f{edge[1:]}" if edge[1:] in elsewhere else edge
        for edge in dict.fromkeys(text.split("\x1d") if text else ())
    ]


def _member(member: Submission, flow: str, edges: list[str], *, more: bool) -> bytes:
    message = member.message
    bare = options(msgspec.structs.replace(member, depends_on=()))
    id, asked = message.id.encode(), (bare + "\x1d".join(edges)).encode()
    head, packed = _head(message, flow), blob(message)
    return b"".join(
        (
            MEMBER.pack(1, more, len(id)),
            id,
            _SHORT.pack(len(head)),
            head,
            _LONG.pack(len(asked)),
            asked,
            _LONG.pack(len(packed)),
            packed,
        )
    )


def _row(id: str, edges: list[str]) -> bytes:
    name, text = id.encode(), "\x1d".join(edges).encode()
    return ROW.pack(0, len(name)) + name + _LONG.pack(len(text)) + text


def _head(message: Message, flow: str) -> bytes:
    return head_of(message) + US + flow.encode()


def staged(reply: bytes) -> Staged:
    """What became of a part or a commit."""
    code, *about = reply.split(US)
    limit = int(about.pop(0)) if code in (b"q", b"t", b"b") else 0
    detail = about[0].decode() if about else ""
    return msgspec.convert(
        {"code": _CODES[code], "limit": limit, "detail": detail}, Staged, strict=True
    )


def member(id: bytes, edges: bytes) -> FlowMember:
    """A member with its first dependencies, each without the sign for how it was given."""
    texts = edges.decode().split("\x1d") if edges else []
    ids = [text.rpartition(_US)[2] if text[0] == "@" else text[1:] for text in texts]
    return FlowMember(id=id.decode(), depends_on=tuple(ids), more=len(ids) >= MAX_SHOWN_EDGES)


# -- records -----------------------------------------------------------------------------------


def read_flow(id: str, stored: bytes) -> FlowRecord:
    """A flow as people see it."""
    phase, _, _, total, _, _, place, completed, dead, cancelled, _, *times = FORM.unpack_from(
        stored
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
    place, texts = FORM.size, []
    for length in (1, 2, 1, 4):
        start = place + length
        place = start + int.from_bytes(stored[place:start], "little")
        if place > len(stored):
            raise ValueError("a flow is cut off")
        texts.append(stored[start:place].decode())
    tenant, name, writer, shares = texts
    return tenant, name, writer, shares
