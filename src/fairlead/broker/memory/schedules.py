"""Schedules in memory: plan, tick and reading them; and what ``fire`` asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fairlead.broker import checks
from fairlead.broker.memory.session import Session
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import MAX_STEP, Call, Firing
from fairlead.broker.schedules import (
    CLAIM,
    MAX_SCHEDULES,
    Scheduled,
    ScheduleOrder,
    ScheduleRecord,
    Ticked,
)
from fairlead.model.clock import next_number


async def plan(
    session: Session, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
) -> list[Scheduled]:
    checks.check_plan(orders)
    return session.numbered(
        "plan", call, now, lambda shard: [_carry_out(shard, order) for order in orders]
    )


async def tick(session: Session, *, now: float | None = None) -> Ticked:
    return session.do(now, _tick)


async def schedules(
    session: Session, names: Sequence[str] | None = None, *, now: float | None = None
) -> list[ScheduleRecord]:
    def read(shard: Shard) -> list[ScheduleRecord]:
        known = shard.schedules
        wanted = known if names is None else known.keys() & set(names)
        return [known[name] for name in sorted(wanted)]

    return session.do(now, read)


def ticks_due(shard: Shard) -> bool:
    """Whether a schedule is due."""
    first = shard.ticks.first()
    return first is not None and first[0] <= shard.now


# -- fire --------------------------------------------------------------------------------------


def may_fire(shard: Shard, firing: Firing) -> bool:
    """Whether this slot is still to be fired, by what its scheduler knew."""
    record = shard.schedules.get(firing.schedule)
    return (
        record is not None
        and not record.paused
        and record.revision == firing.revision
        and record.next_at is not None
        and firing.slot >= record.next_at
        and (record.last_slot is None or firing.slot > record.last_slot)
    )


def fired(shard: Shard, firing: Firing) -> None:
    """Remember the slot, and when the schedule is due next."""
    record = shard.schedules[firing.schedule]
    _keep(
        shard,
        msgspec.structs.replace(record, last_slot=firing.slot, next_at=firing.next_at),
    )


def refused(shard: Shard, firing: Firing) -> None:
    """The slot found no room: it comes again, but not at once."""
    next_at = shard.schedules[firing.schedule].next_at
    shard.ticks.set(firing.schedule, max(shard.now + CLAIM, next_at or 0.0))


# -- plan, tick --------------------------------------------------------------------------------


def _carry_out(shard: Shard, order: ScheduleOrder) -> Scheduled:
    name = order.name
    stored = shard.schedules.get(name)
    if stored is None:
        return _new(shard, order)
    if order.action == "create":
        return Scheduled(name=name, code="exists", revision=stored.revision)
    if order.revision not in (None, stored.revision):
        return Scheduled(name=name, code="stale", revision=stored.revision)
    if order.action == "delete":
        del shard.schedules[name]
        shard.ticks.discard(name)
        return Scheduled(name=name, code="done")
    if _changes_nothing(order, stored):
        return Scheduled(name=name, code="unchanged", revision=stored.revision)
    if order.action == "skip":  # nothing that its owner said has changed: no new revision
        _keep(shard, msgspec.structs.replace(stored, next_at=order.next_at))
        return Scheduled(name=name, code="done", revision=stored.revision)
    shard.token = next_number(shard.token, shard.now)
    changed = msgspec.structs.replace(stored, revision=shard.token, changed_at=shard.now)
    if order.action == "put":
        changed = msgspec.structs.replace(
            changed, queue=order.queue, spec=order.spec, next_at=order.next_at
        )
    elif order.action == "pause":
        changed = msgspec.structs.replace(changed, paused=True)
    else:
        changed = msgspec.structs.replace(changed, paused=False, next_at=order.next_at)
    _keep(shard, changed)
    return Scheduled(name=name, code="done", revision=changed.revision)


def _new(shard: Shard, order: ScheduleOrder) -> Scheduled:
    code: Literal["unknown", "stale", "full"] | None = None
    if order.action not in ("create", "put"):
        code = "unknown"
    elif order.revision is not None:  # there was one when it was read
        code = "stale"
    elif len(shard.schedules) >= MAX_SCHEDULES:
        code = "full"
    if code is not None:
        return Scheduled(name=order.name, code=code)
    shard.token = next_number(shard.token, shard.now)
    record = ScheduleRecord(
        name=order.name,
        queue=order.queue,
        spec=order.spec,
        revision=shard.token,
        next_at=order.next_at,
        last_slot=order.last_slot,
        changed_at=shard.now,
    )
    _keep(shard, record)
    return Scheduled(name=order.name, code="done", revision=record.revision)


def _changes_nothing(order: ScheduleOrder, stored: ScheduleRecord) -> bool:
    match order.action:
        case "put":
            return (order.queue, order.spec) == (stored.queue, stored.spec)
        case "pause":
            return stored.paused
        case "resume":
            return not stored.paused
        case "skip":
            forward = order.next_at is None or (
                stored.next_at is not None and order.next_at > stored.next_at
            )
            return stored.next_at is None or not forward
    return False


def _keep(shard: Shard, record: ScheduleRecord) -> None:
    """Store it, and let it be due at its next slot."""
    shard.schedules[record.name] = record
    at = due(record)
    if at is None:
        shard.ticks.discard(record.name)
    else:
        shard.ticks.set(record.name, at)


def due(record: ScheduleRecord) -> float | None:
    """When a schedule has to be looked at, if nobody has claimed it."""
    return None if record.paused else record.next_at


def _tick(shard: Shard) -> Ticked:
    claimed: list[ScheduleRecord] = []
    while len(claimed) < MAX_STEP and (name := shard.ticks.pop_due(shard.now)) is not None:
        claimed.append(shard.schedules[name])
    for record in claimed:
        shard.ticks.set(record.name, shard.now + CLAIM)
    return Ticked(now=shard.now, due=claimed, more=ticks_due(shard))
