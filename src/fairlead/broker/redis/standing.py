"""Reads of counters, and of where one task stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from fairlead.broker import checks
from fairlead.broker.redis import decode, layout
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import MAX_PAGE
from fairlead.broker.standing import MAX_AHEAD, MAX_SHOWN, Room, Standing, Waits, room_of
from fairlead.broker.stats import (
    COUNTERS,
    HISTOGRAMS,
    HOUR,
    TALLIED,
    Histogram,
    QueueStats,
    Stats,
    TenantStats,
    last_minute,
    micros,
)
from fairlead.model.lifecycle import State
from fairlead.model.limits import Limit
from fairlead.model.message import LEVEL_NAMES, Message
from fairlead.model.priority_turns import goes_before

_STORED = (*TALLIED, "failed", "retried", "fenced", "dropped")  # of COUNTERS
_DEFERRED, _QUEUED, _RUNNING = 2, 3, 4
_MAX_PARTS = 22  # calls about tenants of one queue: some 20,000 records are looked at


async def stats(
    session: Session,
    queue: str | None = None,
    *,
    tenants: bool = False,
    tenant: str | None = None,
    now: float | None = None,
) -> Stats:
    """What was counted, of one queue or of all. Tenants take some calls for each queue."""
    queues: dict[str, QueueStats] = {}
    place = b"0"
    while True:
        args: list[Value] = [session.clock(now), queue or "", 0, place]
        time, orphans, place, *rest = await session.run("stats", args)
        for i in range(0, len(rest), 4):
            queues[rest[i].decode()] = _queue_stats(rest[i + 1])
        if place == b"0":
            break
    by_tenant: dict[str, tuple[dict[str, TenantStats], bool]] = {}
    for name in queues if tenants or tenant is not None else ():
        if tenant is None:
            by_tenant[name] = await _tenants(session, name, now)
        else:
            by_tenant[name] = await _tenant(session, name, tenant, now), False
    return Stats(
        now=float(time),
        queues=queues,
        tenants={name: told for name, (told, _) in by_tenant.items()},
        more_tenants=any(more for _, more in by_tenant.values()),
        orphans=int(orphans),
    )


async def forget_reader(session: Session, reader: str) -> bool:
    """Forget the place of a named reader of events; false if it had none."""
    checks.check_reader(reader)
    return bool(await session.run("forget_reader", [session.clock(None), reader]))


async def _tenants(
    session: Session, queue: str, now: float | None
) -> tuple[dict[str, TenantStats], bool]:
    """Those with work now or lately, and whether there are others: a part in each call."""
    found: dict[str, TenantStats] = {}
    cursors = [b"", b"0"]  # those that are listed, then what their records say
    for cursor in islice(cursors, _MAX_PARTS):
        time, _, following, *row = await session.run(
            "stats", [session.clock(now), queue, MAX_PAGE, cursor]
        )
        if not row:  # the queue is gone
            return found, False
        found.update(_lately(row[3], float(time)))
        if row[2] or len(found) > MAX_PAGE:
            return dict(islice(found.items(), MAX_PAGE)), True
        if cursor and following != b"0":
            cursors.append(following)
    return found, len(cursors) > _MAX_PARTS


async def _tenant(
    session: Session, queue: str, tenant: str, now: float | None
) -> dict[str, TenantStats]:
    """What one tenant got lately, if it has work or got anything."""
    args: list[Value] = [session.clock(now), queue, f"={tenant}", ""]
    time, _, _, *row = await session.run("stats", args)
    return _lately(row[3], float(time)) if row else {}


async def standing(session: Session, id: str, *, now: float | None = None) -> Standing | None:
    """A task, and all that may keep it from running."""
    reply = await session.run("explain_facts", [session.clock(now), id, MAX_SHOWN, MAX_AHEAD])
    if reply[1] is None:
        return None
    time, row, rest = float(reply[0]), reply[1:9], reply[9:]
    record = decode.decode_record(id, row)
    queue, conf, tenant, parents, gate, ready, rank, place, limiters = rest
    *numbers, status, _, pause, _, _ = layout.TENANT.unpack_from(tenant)
    queued = record.state is State.QUEUED
    message = record.message
    rooms = _rooms(message, queue, conf, numbers[_RUNNING - 1], gate, time)
    rooms += [_limiter(*limiters[i : i + 4], now=time) for i in range(0, len(limiters), 4)]
    return Standing(
        now=time,
        record=record,
        queue_paused=conf is not None and conf[0] == 1,
        tenant_paused=pause == 1,
        waits_for=tuple(
            Waits(parents[i].decode(), layout.STATES[parents[i + 1]])
            for i in range(0, len(parents), 2)
        ),
        rooms=tuple(rooms) if queued else (),
        parked=layout.PARKED.get(status, "") if queued else "",
        parked_at=decode.parked_at(tenant) if queued and status == layout.AT_LIMITER else "",
        tenants_ahead=max(rank, 0),
        tenants_ready=ready,
        tasks_ahead=_ahead(message.level, place, tenant, conf) if queued else 0,
        started_last_minute=last_minute(time, *counters(queue).recent),
        held=record.state is State.RUNNING and record.started_at is None,
    )


# -- counters ----------------------------------------------------------------------------------


class Counters(msgspec.Struct, frozen=True):
    """What stands behind a queue's own record."""

    counts: dict[str, int]
    recent: tuple[int, int, int]  # a minute, attempts that began in it, and in the one before
    times: dict[str, Histogram]


def counters(state: bytes) -> Counters:
    """The counters of a stored queue; ValueError if they cannot be read."""
    place = layout.QUEUE.size
    if len(state) == place:  # nothing has happened in it
        return Counters(
            dict.fromkeys(COUNTERS, 0), (0, 0, 0), dict.fromkeys(HISTOGRAMS, Histogram())
        )
    if len(state) < place + layout.COUNTERS.size:
        raise ValueError("counters are cut off")
    numbers = _whole(layout.COUNTERS.unpack_from(state, place))
    place += layout.COUNTERS.size
    times: dict[str, Histogram] = {}
    for name in HISTOGRAMS:
        size = int.from_bytes(state[place : place + 2], "little")
        times[name] = _histogram(state[place + 2 : place + 2 + size])
        place += 2 + size
    if place != len(state):
        raise ValueError("counters have another length than they say")
    minute, current, previous = numbers[9:]
    return Counters(
        dict(zip(_STORED, numbers[:9], strict=True)), (minute, current, previous), times
    )


def _histogram(blob: bytes) -> Histogram:
    if not blob:
        return Histogram()
    if len(blob) != layout.TIMES.size:
        raise ValueError("a histogram is cut off")
    *counts, total, largest = _whole(layout.TIMES.unpack(blob))
    return Histogram(counts=tuple(counts), sum=total / 1e6, largest=largest / 1e6)


def _whole(numbers: Sequence[float]) -> list[int]:
    if not all(0 <= each < math.inf for each in numbers):
        raise ValueError("counters are not numbers")
    return [int(each) for each in numbers]


def _queue_stats(state: bytes) -> QueueStats:
    found = counters(state)
    shown: dict[str, Any] = {**found.counts, **found.times}
    return QueueStats(deferred=layout.QUEUE.unpack_from(state)[1 + _DEFERRED], **shown)


def _lately(told: Sequence[Any], now: float) -> dict[str, TenantStats]:
    found: dict[str, TenantStats] = {}
    for i in range(0, len(told), 6):
        name, *hours, record, everywhere, here = told[i : i + 6]
        parts = [layout.TALLY.unpack(hour) for hour in hours if hour is not None]
        if record is not None:
            hour, *own = layout.TENANT_HOUR.unpack_from(record, layout.TENANT.size)
            if hour >= now // HOUR - 1:
                parts.append(tuple(own))
        counts: dict[str, Any] = {
            field: sum(part[k] for part in parts) for k, field in enumerate(TALLIED)
        }
        found[name.decode()] = TenantStats(
            **counts,
            longest_wait=micros(max((part[-1] for part in parts), default=0.0)) / 1e6,
            weight=_weight(here) or _weight(everywhere) or 1.0,
            queued=0 if record is None else layout.TENANT.unpack_from(record)[_QUEUED - 1],
            lines=(0,) * len(LEVEL_NAMES) if record is None else line_lengths(record),
        )
    return found


def _weight(settings: bytes | None) -> float | None:
    text = settings.split(layout.US)[1] if settings else b""
    return float(text) if text else None


# -- where a task stands -----------------------------------------------------------------------


def line_lengths(tenant: bytes) -> tuple[int, ...]:
    """The lengths of a stored tenant's lines, by level."""
    first = layout.TENANT.unpack_from(tenant)[8:12]
    place = layout.TENANT_LENGTH
    if len(tenant) > place:
        for _ in range(2):
            _, place = layout.text_at(tenant, place, 1)
        place += layout.TENANT_RARE.size
    return first + (
        layout.TENANT_LOWER.unpack_from(tenant, place) if len(tenant) > place else (0,) * 4
    )


def _ahead(level: int, place: int, tenant: bytes, conf: bytes | None) -> int:
    if place < 0:  # too far back to be found
        return MAX_AHEAD
    turn = layout.TENANT.unpack_from(tenant)[-4]
    strict = conf is not None and layout.CONF.unpack_from(conf)[9] >= 2
    return goes_before(level, place, line_lengths(tenant), turn, MAX_AHEAD, strict=strict)


def _rooms(
    message: Message,
    queue: bytes,
    conf: bytes | None,
    running: int,
    gate: bytes | None,
    now: float,
) -> list[Room]:
    rooms = []
    if conf is not None:
        _, _, *counts, since, gone = layout.QUEUE.unpack_from(queue)[:12]
        limit = _limit(*layout.CONF.unpack_from(conf)[6:9])
        if limit != Limit():
            used = counts[_RUNNING - 1]
            name = message.queue
            rooms.append(
                room_of("queue", name, limit, used=used, since=since, gone=int(gone), now=now)
            )
    if gate is not None:
        *settings, since, gone = layout.GATE.unpack(gate)
        limit, name = _limit(*settings), message.tenant
        rooms.append(
            room_of("tenant", name, limit, used=running, since=since, gone=int(gone), now=now)
        )
    return rooms


def _limiter(name: bytes, raw: bytes | None, waiting: int, needed: int, *, now: float) -> Room:
    if raw is None:  # nobody has limited it, and nothing runs under it
        return Room(kind="limiter", name=name.decode(), waiting=waiting, needed=needed == 1)
    *settings, since, gone, used = layout.LIMITER.unpack_from(raw)
    breaker, circuit = decode.decode_breaker(raw)
    return room_of(
        "limiter",
        name.decode(),
        _limit(*settings),
        used=int(used),
        since=since,
        gone=int(gone),
        now=now,
        breaker=breaker,
        circuit=circuit,
        waiting=waiting,
        needed=needed == 1,
    )


def _limit(concurrency: float, rate: float, burst: int) -> Limit:
    return Limit(
        concurrency=int(concurrency) if concurrency >= 0 else None,
        rate=rate if rate > 0 else None,
        burst=burst,
    )
