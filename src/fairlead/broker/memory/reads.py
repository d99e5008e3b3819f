"""Reads for people: counts, records, pages, documents. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from fairlead.broker import checks
from fairlead.broker.documents import DocumentPage, Note, check_document_page, check_trail
from fairlead.broker.memory import settings as in_force
from fairlead.broker.memory.fair import PARKED, Queue, Tenant
from fairlead.broker.memory.limits import Limiter
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.session import Session
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.records import (
    MAX_HEADS,
    MAX_OLDEST,
    Finding,
    LimiterState,
    Page,
    Parts,
    QueueCounts,
    Settings,
    ShardLayout,
    Snapshot,
    TaskRecord,
    TenantCounts,
    WorkerRecord,
)
from fairlead.broker.requests import (
    LAYOUT,
    MAX_PAGE,
    SHARD,
    LimiterChange,
    QueueChange,
    Setting,
    TenantChange,
)
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import WAITING, State
from fairlead.model.limits import NO_BREAKER, UNLIMITED


async def snapshot(
    session: Session,
    queue: str | None = None,
    *,
    tenants: bool = True,
    tenant: str | None = None,
    now: float | None = None,
) -> Snapshot:
    """Counts of one queue or of everything, in time that does not depend on how many tasks are."""

    def read(shard: Shard) -> Snapshot:
        queues = [each for each in shard.queues.values() if queue is None or each.name == queue]
        totals = dict.fromkeys(State, 0)
        for each in queues:
            for state, count in each.counts.items():
                totals[state] += count
        limiters = [each for each in shard.limiters.values() if queue is None and not each.idle]
        most = MAX_PAGE if tenants else 0
        return Snapshot(
            now=shard.now,
            shutdown=shard.closed,
            redis_active=False,
            queues={each.name: _queue_counts(each, most, tenant) for each in queues},
            limiters={each.name: _limiter_state(each, shard.now) for each in limiters[:MAX_PAGE]},
            more_limiters=len(limiters) > MAX_PAGE,
            **_named(totals),
        )

    return session.do(now, read)


async def find(
    session: Session, ids: Sequence[str], *, parts: Parts = "all", now: float | None = None
) -> list[TaskRecord | None]:
    return session.do(
        now,
        lambda shard: [
            task.record(parts) if (task := shard.find(id)) is not None else None for id in ids
        ],
    )


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
    """Tasks that match, in the order of acceptance, of at most 1,000 that were looked at."""

    def read(shard: Shard) -> Page:
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidOption("limit", limit, f"from 1 to {MAX_PAGE}")
        try:
            place = int(cursor) if cursor is not None else 0
        except ValueError:
            raise InvalidOption("cursor", cursor, "one that an earlier page returned") from None
        found: list[TaskRecord] = []
        examined = 0
        for item in shard.walk(place, MAX_PAGE):
            examined += 1
            if not isinstance(item, Task):
                place = item
                continue
            place = item.sequence
            message = item.message
            if (
                shard.find(item.id) is not None
                and (state is None or item.state is state)
                and (queue is None or message.queue == queue)
                and (tenant is None or message.tenant == tenant)
            ):
                found.append(item.record("info"))
                if len(found) >= limit:
                    break
        complete = examined < MAX_PAGE and len(found) < limit
        return Page(tasks=found, cursor=None if complete else str(place))

    return session.do(now, read)


async def workers(
    session: Session, *, silent: bool = False, now: float | None = None
) -> list[WorkerRecord]:
    """Workers that were heard of lately; and those that were not, but still hold leases."""

    def read(shard: Shard) -> list[WorkerRecord]:
        return [
            msgspec.structs.replace(record, order=shard.worker_orders.get(name, ""))
            for name, record in shard.workers.items()
            if ((ends := shard.worker_ends.get(name)) is not None and ends > shard.now)
            or (silent and name in shard.incarnations)
        ]

    return session.do(now, read)


async def settings(
    session: Session,
    queue: str | None = None,
    *,
    tenant: str | None = None,
    limiter: str | None = None,
    cursor: str | None = None,
    now: float | None = None,
) -> Settings:
    checks.check_settings(queue, cursor)
    if queue is None and tenant is None and limiter is None:
        return session.do(now, lambda shard: _settings(shard, cursor))
    return session.do(now, lambda s: _settings_of(s, queue, tenant, limiter))


async def documents(
    session: Session,
    kind: str,
    names: Sequence[str] | None = None,
    *,
    cursor: str | None = None,
    limit: int = 100,
    now: float | None = None,
) -> DocumentPage:
    check_document_page(kind, names, cursor, limit)
    return session.do(
        now, lambda shard: shard.documents.page(kind, names, cursor, limit, shard.now)
    )


async def notes(
    session: Session,
    trail: str,
    *,
    before: int | None = None,
    limit: int = 100,
    now: float | None = None,
) -> list[Note]:
    check_trail(trail, before, limit)
    return session.do(now, lambda shard: shard.trails.read(trail, before, limit))


async def layouts(session: Session) -> list[ShardLayout]:
    tasks = session.do(None, lambda shard: len(shard.tasks))
    return [ShardLayout(shard=SHARD, layout=LAYOUT, tasks=tasks, way="nothing")]


async def diagnose(session: Session) -> list[Finding]:
    return session.do(None, _diagnose)


# -- how ------------------------------------------------------------------------------------


def _queue_counts(queue: Queue, most: int, only: str | None) -> QueueCounts:
    told = list(islice(queue.active.values(), most))
    if only is not None:
        told = [queue.tenants[only]] if only in queue.tenants else []
    return QueueCounts(
        paused=queue.paused,
        oldest_at=_oldest(queue),
        tenants={tenant.name: _tenant_counts(tenant) for tenant in told},
        more_tenants=only is None and len(queue.active) > most,
        **_named(queue.counts),
    )


def _tenant_counts(tenant: Tenant) -> TenantCounts:
    parked_on = tenant.parked_on if tenant.status is PARKED else None
    at_limiter = isinstance(parked_on, Limiter)
    return TenantCounts(
        paused=tenant.paused,
        parked="limiter" if at_limiter else "tenant" if parked_on is not None else "",
        parked_at=parked_on.name if isinstance(parked_on, Limiter) else "",
        **_named(tenant.counts),
    )


def _oldest(queue: Queue) -> float | None:
    """Since when the task can run that has waited the longest of those first in line."""
    firsts = (
        next((entry[0] for entry in islice(level, MAX_HEADS) if entry[0] is not None), None)
        for tenant in islice(queue.active.values(), MAX_OLDEST)
        for level in tenant.levels
    )
    return min((task.runnable_since for task in firsts if task is not None), default=None)


def _limiter_state(limiter: Limiter, now: float) -> LimiterState:
    circuit = limiter.circuit
    return LimiterState(
        used=limiter.used,
        waiting=limiter.waiting,
        state=circuit.state(limiter.breaker, now),
        failed=circuit.failed,
        open_until=circuit.open_until(limiter.breaker, now),
    )


def _named(counts: Mapping[State, int]) -> dict[str, int]:
    named = {state.value: count for state, count in counts.items() if state is not State.QUEUED}
    return {
        "depth": sum(counts[state] for state in WAITING),
        "ready": counts[State.QUEUED],
        **named,
    }


def _settings_of(
    shard: Shard, queue: str | None, tenant: str | None, limiter: str | None
) -> Settings:
    """What is set for those that are named."""
    queues = [] if queue is None else [in_force.queue_in_force(queue, shard.queues.get(queue))]
    tenants = [
        msgspec.structs.replace(said, queue=where or None)
        for where in dict.fromkeys(("", queue or ""))
        if tenant is not None and (said := shard.tenant_settings.get((where, tenant))) is not None
    ]
    known = None if limiter is None else shard.limiters.get(limiter)
    limiters = [in_force.limiter_in_force(known)] if known is not None and _limits(known) else []
    return Settings(now=shard.now, queues=queues, tenants=tenants, limiters=limiters)


def _limits(limiter: Limiter) -> bool:
    """Whether anything is set for a limiter, rather than counted under its name."""
    return limiter.limit != UNLIMITED or limiter.breaker != NO_BREAKER


def _settings(shard: Shard, cursor: str | None) -> Settings:
    """What is set: queues by name, then tenants, then limiters."""
    things: dict[str, Setting] = {
        f"q{name}": in_force.queue_in_force(name, each)
        for name, each in shard.queues.items()
        if each.configured
    }
    things |= {
        f"t{where}\x1f{name}": msgspec.structs.replace(said, queue=where or None)
        for (where, name), said in shard.tenant_settings.items()
    }
    things |= {
        f"r{each.name}": in_force.limiter_in_force(each)
        for each in shard.limiters.values()
        if _limits(each)
    }
    names = sorted(name for name in things if cursor is None or name > cursor)
    page = [things[name] for name in names[:MAX_PAGE]]
    return Settings(
        now=shard.now,
        queues=[each for each in page if isinstance(each, QueueChange)],
        tenants=[each for each in page if isinstance(each, TenantChange)],
        limiters=[each for each in page if isinstance(each, LimiterChange)],
        cursor=names[MAX_PAGE - 1] if len(names) > MAX_PAGE else None,
    )


def _diagnose(shard: Shard) -> list[Finding]:
    """What there is to say of a store without a server."""
    return [
        Finding(
            name="persistence",
            status="warn",
            text="tasks live in the memory of this process, and only as long as it does",
            hint="use a server if they must survive it, or if several processes share them",
        ),
        Finding(name="shard", status="ok", text=f"{len(shard.tasks):,} tasks are stored"),
    ]
