"""Reads for people: counts, records, pages, workers. Nothing here changes anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from fairlead.broker.checks import check_limit
from fairlead.broker.records import (
    Counts,
    Finding,
    Library,
    LimiterState,
    Mended,
    Page,
    Parts,
    QueueCounts,
    ShardLayout,
    Snapshot,
    TaskRecord,
    WorkerRecord,
)
from fairlead.broker.redis import decode, functions, migrations
from fairlead.broker.redis.dead_pages import dead_page
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import MAX_PAGE
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State

_FIELDS = 8  # that the script ``find`` answers for each id
_AT_ONCE = 100  # tasks that one call reads, or fewer: their bodies may be large
_SCANNED = 250  # ids that one step of a listing asks for
_NAMED = 50  # queues, or limiters, that a call of a snapshot names: those that had no room before
_NONE = b""  # the place of a snapshot where nothing is left to read
_CURSOR = re.compile(r"(\d{1,20})(?:-(\d{1,4})-(\d{1,4})-([0-9a-f]{16}))?\Z", re.ASCII)


class _Place(msgspec.Struct, frozen=True):
    """Where a listing goes on: at a step of the server's own, or inside one.

    Inside one it is known how many ids were asked for, and how many of what came were listed. If
    those are others now, because ids came or went or the server keeps them in another order, the
    step is listed again, rather than to leave a task out.
    """

    step: str = "0"
    count: int = 0
    listed: int = 0
    digest: str = ""  # of those that were listed

    @classmethod
    def inside(cls, step: str, count: int, listed: Sequence[str]) -> _Place:
        """The place behind these ids of a step."""
        return cls(step, count, len(listed), _digest(listed))

    def known(self, ids: Sequence[str]) -> int:
        """How many of the step's ids were listed already."""
        return self.listed if self.digest == _digest(ids[: self.listed]) else 0

    def __str__(self) -> str:
        return f"{self.step}-{self.count}-{self.listed}-{self.digest}"

    @classmethod
    def parse(cls, cursor: str | None) -> _Place:
        """The place that an earlier page ended at; the beginning for None."""
        if cursor is None:
            return cls()
        match = _CURSOR.match(cursor)
        if match is None:
            raise InvalidOption("cursor", cursor, "one that an earlier page returned")
        step, count, listed, digest = match.groups()
        if count is None:
            return cls(step)
        return cls(step, min(max(int(count), 1), _SCANNED), int(listed), digest)


async def snapshot(
    session: Session,
    queue: str | None = None,
    *,
    tenants: bool = True,
    tenant: str | None = None,
    now: float | None = None,
) -> Snapshot:
    """Counts of one queue, or of all and the limiters: a part of them in each call."""
    queues: dict[str, QueueCounts] = {}
    limiters: dict[str, LimiterState] = {}
    clock = session.clock(now)
    whose: Value = MAX_PAGE if tenants else 0
    if tenant is not None:
        whose = f"={tenant}"
    places: list[bytes] = [b"0", b"0"] if queue is None else [_NONE, _NONE]
    left: list[Value] = [] if queue is None else [queue]
    left_limiters: list[Value] = []
    time = 0.0
    while True:
        names, others = left[:_NAMED], left_limiters[:_NAMED]
        on = [_NONE, _NONE] if names or others else places
        reply = await session.run("snapshot", [clock, whose, *on, len(names), *names, *others])
        time = float(reply[0])
        if on is places:
            places = [place if place != b"0" else _NONE for place in reply[1:3]]
        left = [*reply[3], *left[_NAMED:]]
        left_limiters = [*reply[4], *left_limiters[_NAMED:]]
        limiters.update(_limiters(reply[5], time))
        queues.update(_queues(reply[6]))
        if len(limiters) > MAX_PAGE:
            places[1], left_limiters = _NONE, []
        if not (left or left_limiters or any(places)):
            break
    totals: dict[str, Any] = reduce(
        _sum, queues.values(), dict.fromkeys(Counts.__struct_fields__, 0)
    )
    return Snapshot(
        now=time,
        shutdown=session.is_closed,
        redis_active=True,
        queues=queues,
        limiters=dict(islice(limiters.items(), MAX_PAGE)),
        more_limiters=len(limiters) > MAX_PAGE,
        **totals,
    )


async def find(
    session: Session, ids: Sequence[str], *, parts: Parts = "all", now: float | None = None
) -> list[TaskRecord | None]:
    """What is known of these tasks."""
    found: list[TaskRecord | None] = []
    clock = session.clock(now)
    while len(found) < len(ids) or not ids:  # a call without ids moves a test's clock
        part = ids[len(found) : len(found) + _AT_ONCE]
        reply = await session.run("find", [clock, parts, *part])
        for i, id in enumerate(part[: len(reply) // _FIELDS]):
            row = reply[_FIELDS * i : _FIELDS * (i + 1)]
            found.append(None if row[0] is None else decode.decode_record(id, row))
        if not ids:
            break
    return found


async def page(
    session: Session,
    *,
    state: State | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
    now: float | None = None,
) -> Page:
    """Tasks that match, of at most 1,000 that were looked at."""
    check_limit(limit)
    clock = session.clock(now)
    if state is State.DEAD:
        return await _dead(session, queue, tenant, cursor, limit, now)
    place = _Place.parse(cursor)
    tasks: list[TaskRecord] = []
    examined = 0
    while True:
        # No more than is wanted: a page that ends inside a step may have to repeat that step.
        count = place.count or min(limit - len(tasks), MAX_PAGE - examined, _SCANNED)
        after, raw = await session.run("scan", [clock, place.step, count])
        all_ids = [id.decode() for id in raw]
        end = after.decode()
        known = place.known(all_ids)
        ids = all_ids[known:]
        for i, record in enumerate(await find(session, ids, parts="info", now=now)):
            examined += 1
            if record is not None and _matches(record, state, queue, tenant):
                tasks.append(record)
            if len(tasks) >= limit or examined >= MAX_PAGE:
                if i + 1 < len(ids):
                    place = _Place.inside(place.step, count, all_ids[: known + i + 1])
                    return Page(tasks=tasks, cursor=str(place))
                return Page(tasks=tasks, cursor=None if end == "0" else end)
        if end == "0":
            return Page(tasks=tasks)
        place = _Place(end)


async def _dead(
    session: Session,
    queue: str | None,
    tenant: str | None,
    cursor: str | None,
    limit: int,
    now: Any,
) -> Page:
    counts = (await snapshot(session, queue, tenants=False, now=now)).queues
    return await dead_page(
        lambda args: session.run("dead", [session.clock(now), *args]),
        lambda ids: find(session, ids, parts="info", now=now),
        [name for name, each in counts.items() if each.dead],
        matches=lambda record: _matches(record, State.DEAD, queue, tenant),
        cursor=cursor,
        limit=limit,
    )


async def workers(
    session: Session, *, silent: bool = False, now: float | None = None
) -> list[WorkerRecord]:
    """Workers heard of in the last 15 seconds, and perhaps those who fell silent."""
    found: dict[bytes, WorkerRecord] = {}
    place = b"0"
    while True:
        place, *rest = await session.run(
            "workers", [session.clock(now), "1" if silent else "0", place]
        )
        for i in range(0, len(rest), 4):
            found[rest[i]] = decode.worker_record(*rest[i + 1 : i + 4])
        if place == b"0":
            return list(found.values())


async def audit(
    session: Session, *, now: float | None = None, progress: Callable[[int], None] | None = None
) -> list[str]:
    """What is wrong with the stored state, a sentence each."""
    # Large, and nobody else needs it.
    from fairlead.broker.redis.audit.audit import audit

    clock = session.clock(now)
    if clock:
        await session.run("get_xcom", [clock, ""])  # moves a test's clock
    command = (await session.here()).server.command
    return await audit(command, session.keys, test_clock=session.test_clock, progress=progress)


async def repair(
    session: Session,
    *,
    apply: bool = False,
    now: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Mended]:
    """Find what has to be built anew from the records of tasks, and do so if told to."""
    from fairlead.broker.redis.repair import Judged, repair

    if clock := session.clock(now):
        await session.run("get_xcom", [clock, ""])  # moves a test's clock
    command = (await session.here()).server.command

    async def step(*args: Value) -> Judged:
        reply: bytes = await session.own("repair", now, *args)
        return Judged(*map(int, reply.split()))

    return await repair(command, session.keys, step, apply=apply, progress=progress)


async def libraries(session: Session) -> list[Library]:
    """List the function libraries of this release, and of others that are on the server."""
    return await functions.installed((await session.here()).server.command)


async def load_libraries(session: Session) -> list[str]:
    """Load the libraries of this release; return the names of those that were missing."""
    return await functions.load_all((await session.here()).server.command)


async def delete_library(session: Session, name: str) -> None:
    """Delete a function library of Fairlead; whoever still needs it loads it again."""
    await functions.delete((await session.here()).server.command, name)


async def layouts(session: Session) -> list[ShardLayout]:
    """Return in which layout the shard is stored."""
    session.any_layout = True
    return [
        await migrations.layout_of(
            (await session.here()).server.command, session.keys, session.shard
        )
    ]


async def migrate(
    session: Session, *, discard: bool = False, progress: Callable[[int], None] | None = None
) -> None:
    """Bring the shard to the layout of this release."""
    session.any_layout = True
    command = (await session.here()).server.command
    told = progress or (lambda _: None)
    await migrations.migrate(command, session.keys, session.shard, discard=discard, progress=told)


async def diagnose(session: Session) -> list[Finding]:
    """What the server says of itself."""
    from fairlead.broker.redis.doctor import diagnose

    await session.hello()
    return await diagnose((await session.here()).server.command, session.keys)


def _digest(ids: Sequence[str]) -> str:
    return blake2b("\n".join(ids).encode(), digest_size=8).hexdigest()


def _queues(rows: Sequence[Any]) -> dict[str, QueueCounts]:
    return {
        rows[i].decode(): decode.decode_queue(*rows[i + 1 : i + 6]) for i in range(0, len(rows), 6)
    }


def _limiters(rows: Sequence[Any], now: float) -> dict[str, LimiterState]:
    return {
        rows[i].decode(): decode.decode_limiter(*rows[i + 1 : i + 3], now=now)
        for i in range(0, len(rows), 3)
    }


def _sum(totals: dict[str, int], counts: QueueCounts) -> dict[str, int]:
    fields = msgspec.structs.asdict(counts)
    return {name: total + fields[name] for name, total in totals.items()}


def _matches(
    record: TaskRecord, state: State | None, queue: str | None, tenant: str | None
) -> bool:
    message = record.message
    return (
        (state is None or record.state is state)
        and (queue is None or message.queue == queue)
        and (tenant is None or message.tenant == tenant)
    )
