"""Reads of counters, and of where one task stands."""

from __future__ import annotations

from itertools import islice

from msgspec import UNSET

from fairlead.broker import checks
from fairlead.broker.memory import settings
from fairlead.broker.memory.fair import PARKED, READY, Queue, Tenant
from fairlead.broker.memory.limits import Gate, Limiter
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.session import Session
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.standing import MAX_AHEAD, MAX_SHOWN, Room, Standing, Waits
from fairlead.broker.stats import Stats, TenantStats
from fairlead.model.lifecycle import State
from fairlead.model.priority_turns import goes_before

_MAX_LOOKED_AT = 2 * MAX_AHEAD  # entries of one line, those of tasks that are gone among them


async def stats(
    session: Session,
    queue: str | None = None,
    *,
    tenants: bool = False,
    tenant: str | None = None,
    now: float | None = None,
) -> Stats:
    """What was counted, of one queue or of all."""

    def read(shard: Shard) -> Stats:
        queues = [each for each in shard.queues.values() if queue is None or each.name == queue]
        by_tenant: dict[str, dict[str, TenantStats]] = {}
        more = False
        for each in queues if tenants or tenant is not None else ():
            by_tenant[each.name], others = _tenants(shard, each, tenant)
            more = more or others
        return Stats(
            now=shard.now,
            queues={each.name: each.tally.shown(each.counts[State.DEFERRED]) for each in queues},
            tenants=by_tenant,
            more_tenants=more,
        )

    return session.do(now, read)


async def standing(session: Session, id: str, *, now: float | None = None) -> Standing | None:
    return session.do(now, lambda shard: _standing(shard, id))


async def forget_reader(session: Session, reader: str) -> bool:
    checks.check_reader(reader)
    return session.do(None, lambda shard: shard.stream.forget(reader))


def _tenants(shard: Shard, queue: Queue, only: str | None) -> tuple[dict[str, TenantStats], bool]:
    def weight(name: str) -> float:
        said = shard.tenant_settings
        merged = settings.laid_over(said.get(("", name)), said.get((queue.name, name)), name)
        return 1.0 if merged.weight is UNSET else merged.weight

    queued = {
        name: (each.counts[State.QUEUED], each.lengths) for name, each in queue.active.items()
    }
    return queue.tally.tenants(queued, shard.now, weight, only)


def _standing(shard: Shard, id: str) -> Standing | None:
    """A task, and all that may keep it from running."""
    task = shard.find(id)
    if task is None:
        return None
    tenant, queue, record = task.tenant, task.tenant.queue, task.record("info")
    queued = task.state is State.QUEUED
    ready = [each for each in queue.tenants.values() if each.status is READY] if queued else []
    parked_on = tenant.parked_on if queued and tenant.status is PARKED else None
    at_limiter = isinstance(parked_on, Limiter)
    return Standing(
        now=shard.now,
        record=record,
        queue_paused=queue.paused,
        tenant_paused=tenant.paused,
        waits_for=tuple(
            Waits(parent, found.state if (found := shard.find(parent)) is not None else None)
            for parent in islice(record.waiting_for, MAX_SHOWN)
        ),
        rooms=tuple(_rooms(shard, task, parked_on)) if queued else (),
        parked="limiter" if at_limiter else "tenant" if parked_on is not None else "",
        parked_at=parked_on.name if isinstance(parked_on, Limiter) else "",
        tenants_ahead=sum(_place(each) < _place(tenant) for each in ready)
        if tenant.status is READY
        else 0,
        tenants_ready=len(ready),
        tasks_ahead=_tasks_ahead(tenant, task) if queued else 0,
        started_last_minute=queue.tally.last_minute(shard.now),
        held=task.state is State.RUNNING and task.started_at is None,
    )


def _place(tenant: Tenant) -> tuple[float, bytes]:
    return tenant.tag, tenant.name.encode()


def _tasks_ahead(tenant: Tenant, task: Task) -> int:
    # In a line that is longer than what is looked at, tasks that are gone are counted, too.
    lines = [
        [entry[0] for entry in islice(level, _MAX_LOOKED_AT) if entry[0] is not None]
        for level in tenant.levels
    ]
    lengths = [
        len(line) if len(level) <= _MAX_LOOKED_AT else len(level)
        for line, level in zip(lines, tenant.levels, strict=True)
    ]
    own = task.level
    place = next((place for place, each in enumerate(lines[own]) if each is task), None)
    if place is None:
        return MAX_AHEAD
    strict = tenant.queue.strict_priorities
    return goes_before(own, place, lengths, tenant.turn, MAX_AHEAD, strict=strict)


def _rooms(shard: Shard, task: Task, parked_on: Gate | None) -> list[Room]:
    tenant, queue = task.tenant, task.tenant.queue
    rooms = []
    if queue.gate is not None:
        used = queue.counts[State.RUNNING]
        rooms.append(queue.gate.shown("queue", queue.name, used, shard.now))
    if tenant.gate is not None:
        used = tenant.counts[State.RUNNING]
        rooms.append(tenant.gate.shown("tenant", tenant.name, used, shard.now))
    named = dict.fromkeys(task.message.limiters, True)
    if isinstance(parked_on, Limiter):
        named.setdefault(parked_on.name, False)
    for name, needed in named.items():
        limiter = shard.limiters.get(name) or Limiter(name)
        rooms.append(limiter.standing(shard.now, needed=needed))
    return rooms
