"""plan, tick, schedules: packing what they ask, and reading what is stored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from fairlead.broker import checks
from fairlead.broker.redis.layout import GS, RS
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import Call
from fairlead.broker.schedules import Scheduled, ScheduleOrder, ScheduleRecord, Ticked
from fairlead.model.errors import Refused

_ACTIONS = {"create": "c", "put": "p", "pause": "h", "resume": "r", "skip": "s", "delete": "d"}
_CODES: dict[bytes, Literal["done", "unchanged", "exists", "unknown", "stale", "full"]] = {
    b"d": "done",
    b"n": "unchanged",
    b"e": "exists",
    b"u": "unknown",
    b"s": "stale",
    b"f": "full",
}
_FIELDS = 6  # of a stored schedule, before its spec
_AT_ONCE = 200  # that one call reads: specs may be large

_log = logging.getLogger(__name__)


async def plan(
    session: Session, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
) -> list[Scheduled]:
    checks.check_plan(orders)
    args: list[Value] = []
    for order in orders:
        args += (order.name, _ACTIONS[order.action], order.queue, order.spec)
        args.append("" if order.next_at is None else repr(order.next_at))
        args.append("" if order.revision is None else order.revision)
        args.append("" if order.last_slot is None else repr(order.last_slot))
    reply: bytes = await session.numbered("change_schedules", call, now, args)
    answers, again, about = reply.partition(GS)
    names = [order.name for order in orders]
    if again:  # a repeated number gets the answers to the batch it was first used for
        names = about.decode().split("\x1f") if about else []
    return [
        Scheduled(name=name, code=_CODES[text[:1]], revision=int(text[1:]))
        for name, text in zip(names, answers.split(RS) if answers else [], strict=True)
    ]


async def tick(session: Session, *, now: float | None = None) -> Ticked:
    time, more, *stored = await session.own("claim_schedules", now)
    return Ticked(now=float(time), due=_records(stored), more=more == b"1")


async def schedules(
    session: Session, names: Sequence[str] | None = None, *, now: float | None = None
) -> list[ScheduleRecord]:
    clock = session.clock(now)
    found: dict[str, ScheduleRecord] = {}
    if names is not None:
        wanted = list(dict.fromkeys(names))
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            _, *stored = await session.run("schedules", [clock, "", 0, *part])
            found.update((record.name, record) for record in _records(stored))
            if stored and len(wanted) == 1 and not found:
                raise Refused(
                    "corrupt",
                    f"schedule {wanted[0]!r} was overwritten by somebody else and cannot be "
                    "read; create it again, or delete it",
                )
    else:
        cursor = b"0"
        while True:
            cursor, *stored = await session.run("schedules", [clock, cursor, _AT_ONCE])
            found.update((record.name, record) for record in _records(stored))
            if cursor == b"0":
                break
    return [found[name] for name in sorted(found)]


def _records(stored: Sequence[Any]) -> list[ScheduleRecord]:
    """Those that can be read: one that cannot must not hide the others."""
    found = []
    for raw, value in zip(stored[::2], stored[1::2], strict=True):
        try:
            found.append(decoded(raw.decode(), value))
        except ValueError:
            _complain(repr(raw.decode(errors="replace")), hash(value))
    return found


@lru_cache(maxsize=1_000)
def _complain(name: str, value: int) -> None:  # noqa: ARG001 - once for each value
    _log.warning(
        "schedule %s was overwritten by somebody else and cannot be read; "
        "create it again, or delete it",
        name,
        extra={"schedule": name},
    )


def decoded(name: str, value: bytes) -> ScheduleRecord:
    """A stored schedule, as ``lua/lib/schedules.lua`` writes it; ValueError if it is none."""
    queue, revision, paused, next_at, last, changed, spec = value.split(b"\x1f", _FIELDS)
    return ScheduleRecord(
        name=name,
        queue=queue.decode(),
        spec=spec,
        revision=int(revision),
        paused=paused == b"1",
        next_at=float(next_at) if next_at else None,
        last_slot=float(last) if last else None,
        changed_at=float(changed),
    )
