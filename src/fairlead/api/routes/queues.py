"""Queues: what is in them, their limits, pauses, purges."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.api.http.problems import Conflicting, NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import PageQuery, about, for_operators, named_page, said_of
from fairlead.api.views.task_counts import TaskCounts, counts_of
from fairlead.api.views.timestamps import moment
from fairlead.broker.records import QueueCounts, Snapshot
from fairlead.broker.requests import MAX_STEP, QueueChange
from fairlead.model.names import check_queue

_LARGEST = 2**53 - 1  # what every reader of JSON can tell exactly
_LONGEST = 3_650 * 86_400.0  # seconds
_MOST = 1_000_000
_BUDGET = 1.0  # seconds that a call goes on with more steps

_Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Seconds = Annotated[float, Meta(ge=0, le=_LONGEST)]
_Concurrency = Annotated[int, Meta(ge=0, le=_MOST)]
_Rate = Annotated[float, Meta(gt=0, le=_MOST)]
_Burst = Annotated[int, Meta(ge=1, le=_MOST)]


class QueueView(TaskCounts, frozen=True, kw_only=True):
    """One queue at one moment. A token of a tenant sees the counts of that tenant's part."""

    name: str
    paused: bool
    oldest_at: Annotated[
        datetime | None, about("Since when the task that waits longest could run.")
    ] = None
    oldest_seconds: Annotated[float | None, about("The same as an age.")] = None
    more_tenants: Annotated[bool, about("It has more than 1,000 tenants with work.")] = False
    tenants: Annotated[int | None, about("Tenants with work, up to 1,000; of one queue only.")] = (
        None
    )


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a queue; null: no limit. Durations are in seconds."""

    max_waiting: int | None
    max_tenant_waiting: int | None
    max_tenant_bytes: int | None
    max_tenant_pinned_bytes: int | None
    warn_depth: int | None
    concurrency: int | None
    rate: Annotated[float | None, about("Dispatched a second.")]
    burst: int
    charge_run_time: Annotated[bool, about("Shares are of run time, not of task count.")]
    strict_priorities: Annotated[bool, about("The highest priority goes first, always.")]
    keep_completed: float
    keep_completed_count: int
    keep_completed_bytes: int
    keep_dead: float
    keep_dead_bytes: int


class QueueDetail(QueueView, frozen=True, kw_only=True):
    """One queue, and what is set for it."""

    limits: Annotated[QueueLimits | None, about("For operators.")] = None


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """Queues by name."""

    now: datetime
    queues: list[QueueView]
    cursor: str | None = None


class QueuePatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and switches of a queue; what is left out stays, null lifts a limit."""

    paused: bool | UnsetType = UNSET
    max_waiting: _Count | UnsetType | None = UNSET
    max_tenant_waiting: _Count | UnsetType | None = UNSET
    max_tenant_bytes: _Count | UnsetType | None = UNSET
    max_tenant_pinned_bytes: _Count | UnsetType | None = UNSET
    warn_depth: _Count | UnsetType | None = UNSET
    concurrency: _Concurrency | UnsetType | None = UNSET
    rate: _Rate | UnsetType | None = UNSET
    burst: _Burst | UnsetType = UNSET
    charge_run_time: bool | UnsetType = UNSET
    strict_priorities: bool | UnsetType = UNSET
    keep_completed: _Seconds | UnsetType = UNSET
    keep_completed_count: _Count | UnsetType = UNSET
    keep_completed_bytes: _Count | UnsetType = UNSET
    keep_dead: _Seconds | UnsetType = UNSET
    keep_dead_bytes: _Count | UnsetType = UNSET


class PurgeQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose part of the queue is purged."""

    tenant: Annotated[str, Meta(description="Only tasks of this tenant.")] | None = None


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What one step cancelled."""

    cancelled: int
    more: Annotated[bool, about("Tasks that were there before still wait: call again.")]


class QueueDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """What one step forgot."""

    forgotten: Annotated[int, about("Finished tasks that went with it.")]
    more: Annotated[bool, about("The queue still keeps some: call again.")]


# -- reads -------------------------------------------------------------------------------------


async def _list(request: Request) -> QueuePage:
    query: PageQuery = request.query
    found = await _snapshot(request, None)
    page, cursor = named_page(_visible(request, found), query.limit, query.cursor)
    return QueuePage(
        now=moment(found.now),
        queues=[_view(request, found, name, queue) for name, queue in page],
        cursor=cursor,
    )


async def _get(request: Request) -> QueueDetail:
    name = check_queue(request.path["queue"])
    found = await _snapshot(request, name)
    queue = _visible(request, found).get(name)
    if queue is None:
        raise _unknown(name)
    limits = None
    if request.access.tenant is None:
        (change,) = (await request.client.store.settings(name)).queues
        said = said_of(change)
        limits = QueueLimits(**{field: said[field] for field in QueueLimits.__struct_fields__})
    view = _view(request, found, name, queue, single=True)
    return QueueDetail(**msgspec.structs.asdict(view), limits=limits)


async def _snapshot(request: Request, queue: str | None) -> Snapshot:
    tenant = request.access.tenant
    return await request.client.store.snapshot(queue, tenants=queue is not None, tenant=tenant)


def _visible(request: Request, found: Snapshot) -> dict[str, QueueCounts]:
    """The queues that the caller may know of: a tenant those in which anything of it is known."""
    tenant = request.access.tenant
    if tenant is None:
        return found.queues
    return {
        name: queue
        for name, queue in found.queues.items()
        if tenant in queue.tenants and any(counts_of(queue.tenants[tenant]).values())
    }


def _view(
    request: Request, found: Snapshot, name: str, queue: QueueCounts, *, single: bool = False
) -> QueueView:
    tenant = request.access.tenant
    if tenant is not None:
        own = queue.tenants[tenant]
        return QueueView(name=name, paused=queue.paused, **counts_of(own))
    oldest = queue.oldest_at
    return QueueView(
        name=name,
        paused=queue.paused,
        oldest_at=moment(oldest),
        oldest_seconds=None if oldest is None else max(0.0, found.now - oldest),
        tenants=len(queue.tenants) if single else None,
        more_tenants=queue.more_tenants if single else False,
        **counts_of(queue),
    )


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no queue {name!r}")


async def _existing(request: Request) -> str:
    """The queue of the path, if there is one; for operators."""
    for_operators(request, "queues are")
    name = check_queue(request.path["queue"])
    if name not in (await request.client.store.snapshot(name, tenants=False)).queues:
        raise _unknown(name)
    return name


# -- changes -----------------------------------------------------------------------------------


async def _patch(request: Request) -> QueueDetail:
    for_operators(request, "settings of queues are")
    name = check_queue(request.path["queue"])
    said = said_of(request.body)
    await request.client.configure([QueueChange(queue=name, **said)])
    await request.note("queue.configure", name, **said)
    return await _get(request)


async def _pause(request: Request) -> QueueDetail:
    return await _switch(request, paused=True)


async def _resume(request: Request) -> QueueDetail:
    return await _switch(request, paused=False)


async def _switch(request: Request, *, paused: bool) -> QueueDetail:
    name = await _existing(request)
    await request.client.configure([QueueChange(queue=name, paused=paused)])
    await request.note("queue.pause" if paused else "queue.resume", name)
    return await _get(request)


async def _purge(request: Request) -> Purged:
    """Cancel as many tasks as waited when the call came, or as fit into a second."""
    name = check_queue(request.path["queue"])
    asked: PurgeQuery = request.query
    tenant = request.tenant(asked.tenant)
    found = await request.client.store.snapshot(name, tenants=False, tenant=tenant)
    queue = found.queues.get(name)
    part = queue if queue is None or tenant is None else queue.tenants.get(tenant)
    if queue is None or (part is None and request.access.tenant is not None):
        raise _unknown(name)
    # Not until nothing is left: others may go on to enqueue faster than this cancels.
    left = 0 if part is None else part.depth
    clock = asyncio.get_running_loop().time
    cancelled, until, more = 0, clock() + _BUDGET, left > 0
    try:
        while more and left > 0 and clock() < until:
            moved = await request.client.purge_some(name, tenant)
            cancelled, more = cancelled + moved.count, moved.more
            left -= moved.count or MAX_STEP
    finally:
        if cancelled:
            await request.note("queue.purge", name, tenant=tenant, cancelled=cancelled)
    return Purged(cancelled=cancelled, more=more and left > 0)


async def _delete(request: Request) -> QueueDeleted:
    name = await _existing(request)
    clock = asyncio.get_running_loop().time
    forgotten, until, more = 0, clock() + _BUDGET, True
    try:
        while more and clock() < until:
            deleted = await request.client.delete_some_of_queue(name)
            forgotten, more = forgotten + deleted.count, deleted.more
    finally:
        if forgotten or not more:
            await request.note("queue.delete", name, forgotten=forgotten, more=more)
    return QueueDeleted(forgotten=forgotten, more=more)


ROUTES = (
    Route(
        method="GET",
        path="/queues",
        handler=_list,
        scope="read",
        summary="List queues by name, with how many tasks they hold.",
        query=PageQuery,
    ),
    Route(
        method="GET",
        path="/queues/{queue}",
        handler=_get,
        scope="read",
        summary="Show one queue.",
        problems=(NotFound,),
    ),
    Route(
        method="PATCH",
        path="/queues/{queue}",
        handler=_patch,
        scope="manage",
        summary="Set limits, pause and retention of a queue; a new name makes a queue.",
        body=QueuePatch,
    ),
    Route(
        method="DELETE",
        path="/queues/{queue}",
        handler=_delete,
        scope="manage",
        summary="Forget a queue in which nothing waits or runs, its settings and what it keeps.",
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="POST",
        path="/queues/{queue}/pause",
        handler=_pause,
        scope="manage",
        summary="Lend nothing more of a queue until it is resumed.",
        problems=(NotFound,),
    ),
    Route(
        method="POST",
        path="/queues/{queue}/resume",
        handler=_resume,
        scope="manage",
        summary="Go on with a queue that was paused.",
        problems=(NotFound,),
    ),
    Route(
        method="POST",
        path="/queues/{queue}/purge",
        handler=_purge,
        scope="manage",
        summary="Cancel what waits in a queue, or one tenant's part of it, in bounded steps.",
        query=PurgeQuery,
        problems=(NotFound,),
    ),
)
