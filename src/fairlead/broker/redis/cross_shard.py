"""What a shard says to other shards: its outbox, and what it takes in from theirs.

Not part of the contract of a broker: ``fairlead.broker.sharded`` carries entries from one shard's
outbox to another shard. Every step may be repeated, by anybody, without changing anything more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from fairlead.broker import checks
from fairlead.broker.redis import answers, encode
from fairlead.broker.redis.decode import read_edges, read_ties
from fairlead.broker.redis.layout import STATES
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import Call, Firing, Receipt, Submission
from fairlead.broker.submission_checks import check_submissions
from fairlead.model.lifecycle import State

_AT_ONCE = 1_000  # ids that one call asks for: a batch may name half a million
_SCANNED = 500  # keys that one step of a listing asks for

Edge = tuple[str, str, str]


async def where(
    session: Session, ids: Sequence[str], *, now: float | None = None
) -> list[tuple[State | None, int, str]]:
    """State (None: unknown here), and while it runs token and incarnation, of each task."""
    clock = session.clock(now)
    found: list[tuple[State | None, int, str]] = []
    for start in range(0, len(ids), _AT_ONCE):
        row = await session.run("locate", [clock, *ids[start : start + _AT_ONCE]])
        found += (
            (STATES[row[i]], int(row[i + 1]), row[i + 2].decode()) for i in range(0, len(row), 3)
        )
    return found


async def enter(
    session: Session,
    call: Call,
    items: Sequence[Submission | Firing],
    elsewhere: Mapping[str, str],
    *,
    now: float | None = None,
) -> list[Receipt]:
    """``enqueue`` or ``fire``, with dependencies that live in the shards of ``elsewhere``.

    A dependency that is known here as well is the one that counts.
    """
    firings = [item for item in items if isinstance(item, Firing)]
    submissions = [item.submission if isinstance(item, Firing) else item for item in items]
    check_submissions(submissions)
    checks.check_slots(firings)
    ids = [submission.message.id for submission in submissions]
    if session.is_closed:
        session.clock(now)
        return [Receipt(id=id, code="closed") for id in ids]
    if firings:
        args = encode.firing_args(firings, elsewhere)
    else:
        args = encode.submission_args(submissions, elsewhere)
    verb = "fire" if firings else "enqueue"
    return answers.receipts(await session.numbered(verb, call, now, args), ids)


async def outbox(session: Session, shards: Sequence[str], limit: int) -> list[list[bytes]]:
    """The oldest entries for each of these shards."""
    reply: list[list[bytes]] = await session.run("outbox", [limit, *shards])
    return reply


async def receive(
    session: Session, source: str, entries: Sequence[bytes], *, now: float | None = None
) -> int:
    """Take in entries of another shard's outbox; how many tasks were told of an end."""
    args: list[Value] = [session.clock(now), source, *entries]
    return int(await session.run("receive", args))


async def confirm(session: Session, shard: str, entries: Sequence[bytes]) -> int:
    """Forget entries that the shard took in; how many there still were."""
    last = entries[-1].partition(b"\x1f")[0]
    return int(await session.run("confirm", [shard, last, len(entries)]))


async def far_edges(session: Session) -> tuple[set[Edge], set[Edge]]:
    """Edges to and from other shards, each as (the other shard, child, parent).

    First those of children here, then those of children elsewhere that parents here know of.
    Walks all keys, for the audit.
    """
    waits: set[Edge] = set()
    known: set[Edge] = set()
    async for id, stored in _fields(session, session.keys.before):
        for parent, where in read_edges(stored):
            if where.startswith("@"):
                waits.add((where[1:], id, parent))
    async for id, member in _members(session, "before:"):
        parent, mark, shard = member.rpartition("\x1f@")
        if mark:
            waits.add((shard, id, parent))
    async for id, member in _members(session, "after:"):
        shard, *rest = member.split("\x1f")
        if rest:
            known.add((shard, rest[0], id.partition(":")[2]))
    async for id, stored in _fields(session, session.keys.ties):
        for _, member in read_ties(stored)[1]:
            shard, *rest = member.split("\x1f")
            if rest:
                known.add((shard, rest[0], id))
    return waits, known


async def _fields(session: Session, key: str) -> AsyncIterator[tuple[str, bytes]]:
    server = (await session.here()).server
    cursor = b"0"
    while True:
        cursor, page = await server.command("HSCAN", key, cursor, "COUNT", _SCANNED)
        for id, stored in zip(page[::2], page[1::2], strict=True):
            yield id.decode(), stored
        if cursor == b"0":
            return


async def _members(session: Session, family: str) -> AsyncIterator[tuple[str, str]]:
    server = (await session.here()).server
    # In a pattern the braces of the prefix stand for themselves.
    prefix = f"{session.keys.prefix}{family}"
    cursor = b"0"
    while True:
        cursor, keys = await server.command(
            "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _SCANNED
        )
        for key in keys:
            for member in await server.command("ZRANGE", key, 0, -1):
                yield key.decode()[len(prefix) :], member.decode()
        if cursor == b"0":
            return
