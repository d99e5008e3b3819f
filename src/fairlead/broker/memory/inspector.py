"""Reads for people: counts, records, pages. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from fairlead.broker.memory.fair import Queue
from fairlead.broker.memory.limits import Limiter
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.shard import Shard
from fairlead.broker.verbs import MAX_PAGE
from fairlead.broker.views import (
    Counts,
    Finding,
    LimiterState,
    Page,
    QueueCounts,
    Snapshot,
    TaskRecord,
    WorkerRecord,
)
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import WAITING, State

__all__ = ("diagnose", "page", "snapshot", "workers")


def snapshot(shard: Shard, name: str | None = None, *, tenants: bool = True) -> Snapshot:
    """Counts of one queue or of everything, in time that does not depend on how many tasks are."""
    queues = [queue for queue in shard.queues.values() if name is None or queue.name == name]
    totals = dict.fromkeys(State, 0)
    for queue in queues:
        for state, count in queue.counts.items():
            totals[state] += count
    limiters = [each for each in shard.limiters.values() if name is None and not each.idle]
    most = MAX_PAGE if tenants else 0
    return Snapshot(
        now=shard.now,
        shutdown=shard.closed,
        queues={queue.name: _queue_counts(queue, most) for queue in queues},
        limiters={each.name: _limiter_state(each, shard.now) for each in limiters[:MAX_PAGE]},
        more_limiters=len(limiters) > MAX_PAGE,
        **_named(totals),
    )


def _queue_counts(queue: Queue, most: int) -> QueueCounts:
    return QueueCounts(
        paused=queue.paused,
        tenants={
            tenant.name: Counts(**_named(tenant.counts))
            for tenant in islice(queue.active.values(), most)
        },
        more_tenants=len(queue.active) > most,
        **_named(queue.counts),
    )


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


def page(
    shard: Shard,
    *,
    state: State | None,
    queue: str | None,
    tenant: str | None,
    cursor: str | None,
    limit: int,
) -> Page:
    """Tasks that match, in the order of acceptance, of at most 1,000 that were looked at."""
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


def workers(shard: Shard, *, silent: bool) -> list[WorkerRecord]:
    """Workers that were heard of lately; and those that were not, but still hold leases."""
    return [
        record
        for name, record in shard.workers.items()
        if ((ends := shard.worker_ends.get(name)) is not None and ends > shard.now)
        or (silent and name in shard.incarnations)
    ]


def diagnose(shard: Shard) -> list[Finding]:
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
