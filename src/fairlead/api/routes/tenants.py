"""Tenants: what each has, what it got of its queues against its weight, its limits and pauses."""

from __future__ import annotations

from datetime import datetime
from heapq import nlargest
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.api.http.problems import NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.fairness import Shares, jain_of
from fairlead.api.views.paging import (
    Cursor,
    Limit,
    about,
    for_operators,
    named_page,
    said_of,
)
from fairlead.api.views.tenants import (
    MAX_QUEUES,
    Part,
    QueueRead,
    TenantQueue,
    TenantView,
    busiest,
    known_in,
    parts_of,
    queue_of,
    read_queues,
    shares_in,
    view_of,
)
from fairlead.api.views.timestamps import moment
from fairlead.broker.requests import TenantChange
from fairlead.broker.stats import Histogram, TenantStats
from fairlead.model.names import check_queue, check_tenant

Sort = Literal["name", "depth", "in_flight", "started", "longest_wait"]


class TenantPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants that have work, or had some in this hour or the last."""

    now: datetime
    queues: Annotated[list[str], about("The queues that were read: at most 20.")]
    more_queues: Annotated[bool, about("Others have work as well: ask with ?queue=.")]
    more_tenants: Annotated[bool, about("A queue has more tenants than the 1,000 it tells of.")]
    jain: Annotated[
        float | None,
        about("Jain's index of one queue, over tenants with tasks queued now; 1.0 is fair."),
    ] = None
    tenants: list[TenantView]
    cursor: Annotated[str | None, about("Only in the order of names.")] = None


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is set for a tenant in all queues; what is set for one queue goes before it."""

    paused: bool = False
    weight: float = 1.0
    concurrency: Annotated[int | None, about("In each queue; null: no limit.")] = None
    rate: Annotated[float | None, about("A second, in each queue.")] = None
    burst: int = 1


class TenantDetail(TenantView, frozen=True, kw_only=True):
    """One tenant, and its part of each queue."""

    now: datetime
    limits: TenantLimits
    queues: list[TenantQueue]
    cursor: str | None = None


class TenantsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tenants, and in which order."""

    queue: Annotated[str, about("Only this queue.")] | None = None
    sort: Annotated[Sort, about("Other orders than `name` show the first page only.")] = "name"
    limit: Limit = 100
    cursor: Cursor | None = None


class TenantQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of its queues."""

    limit: Annotated[int, Meta(ge=1, le=MAX_QUEUES, description="Queues of the page.")] = MAX_QUEUES
    cursor: Cursor | None = None


class TenantPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weight, limits and pause; what is left out stays, null lifts a limit."""

    queue: Annotated[
        str | None, about("Only in this queue, which goes before what is set for all of them.")
    ] = None
    paused: bool | UnsetType = UNSET
    weight: Annotated[float, Meta(ge=0.001, le=1_000)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType | None = UNSET
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | UnsetType | None = UNSET
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET


# -- reads -------------------------------------------------------------------------------------


async def _list(request: Request) -> TenantPage:
    query: TenantsQuery = request.query
    own = request.access.tenant
    asked = None if query.queue is None else check_queue(query.queue)
    found = await request.client.store.snapshot(asked, tenants=False, tenant=own)
    names, others = busiest(found.queues, own)
    reads = await read_queues(request.client, names, own)
    parts: dict[str, list[Part]] = {} if own is None else {own: []}
    for read in reads:
        for part_of, part in parts_of(read, own):
            parts.setdefault(part_of, []).append(part)
    views = {name: view_of(name, each) for name, each in parts.items()}
    cursor = None
    if query.sort == "name":
        page, cursor = named_page(views, query.limit, query.cursor)
        shown = [view for _, view in page]
    else:
        shown = nlargest(
            query.limit, views.values(), key=lambda each: (getattr(each, query.sort), each.tenant)
        )
    return TenantPage(
        now=moment(found.now),
        queues=[read.queue for read in reads if own is None or own in known_in(read)],
        more_queues=others or len(reads) < len(names),
        more_tenants=own is None and any(read.more for read in reads),
        jain=jain_of(reads[0].tenants) if own is None and len(reads) == 1 else None,
        tenants=shown,
        cursor=cursor,
    )


async def _get(request: Request) -> TenantDetail:
    tenant = _named(request)
    query: TenantQuery = request.query
    operator = request.access.tenant is None
    found = await request.client.store.snapshot(tenants=False, tenant=tenant)
    held = {name: each for name, each in found.queues.items() if tenant in each.tenants}
    change = await _set(request, tenant)
    if operator and not held and change is None:
        raise NotFound(f"there is no tenant {tenant!r}")
    page, cursor = named_page(held, query.limit, query.cursor)
    reads = await read_queues(request.client, [name for name, _ in page], tenant)
    shares: dict[str, Shares] = {}
    if operator:
        most = sorted(reads, key=lambda read: -_started_by(read, tenant))
        shares = await shares_in(request.client, [read.queue for read in most], tenant)
    parts: list[Part] = []
    waits: dict[str, Histogram] = {}
    for read in reads:
        waits[read.queue] = read.stats.wait
        known = held[read.queue].tenants[tenant]
        stats = read.tenants.get(tenant, TenantStats())
        parts.append(Part(read.queue, known, stats, shares.get(read.queue, Shares())))
    view = view_of(tenant, parts)
    return TenantDetail(
        **msgspec.structs.asdict(view),
        now=moment(found.now),
        limits=_limits(change),
        queues=[queue_of(part, waits[part.queue] if operator else None) for part in parts],
        cursor=cursor,
    )


def _started_by(read: QueueRead, tenant: str) -> int:
    return read.tenants[tenant].started if tenant in read.tenants else 0


async def _set(request: Request, tenant: str) -> TenantChange | None:
    """What is set for a tenant in all queues, if anything is."""
    found = (await request.client.store.settings(tenant=tenant)).tenants
    return found[0] if found else None


def _limits(change: TenantChange | None) -> TenantLimits:
    said = {} if change is None else said_of(change)
    fields = TenantLimits.__struct_fields__
    return TenantLimits(**{field: said[field] for field in fields if field in said})


def _named(request: Request) -> str:
    """The tenant of the path; ``NotFound`` if the token is for another."""
    tenant = check_tenant(request.path["tenant"])
    request.tenant(tenant)
    return tenant


# -- changes -----------------------------------------------------------------------------------


async def _patch(request: Request) -> TenantDetail:
    tenant = _named(request)
    for_operators(request, "weights and limits of tenants are")
    patch: TenantPatch = request.body
    said = said_of(patch)
    queue = said.pop("queue", None)
    change = TenantChange(
        tenant=tenant, queue=None if queue is None else check_queue(queue), **said
    )
    await request.client.configure([change])
    await request.note("tenant.configure", tenant, queue=queue, **said)
    return await _shown(request, tenant)


async def _pause(request: Request) -> TenantDetail:
    return await _switch(request, paused=True)


async def _resume(request: Request) -> TenantDetail:
    return await _switch(request, paused=False)


async def _switch(request: Request, *, paused: bool) -> TenantDetail:
    tenant = _named(request)
    for_operators(request, "pauses of tenants are")
    query: PauseQuery = request.query
    queue = None if query.queue is None else check_queue(query.queue)
    await request.client.configure([TenantChange(tenant=tenant, queue=queue, paused=paused)])
    await request.note("tenant.pause" if paused else "tenant.resume", tenant, queue=queue)
    return await _shown(request, tenant)


async def _shown(request: Request, tenant: str) -> TenantDetail:
    """The tenant after a change; of one that has nothing yet, only its name."""
    request.query = TenantQuery()
    try:
        return await _get(request)
    except NotFound:
        now = await request.client.now()
        return TenantDetail(tenant=tenant, now=moment(now), limits=TenantLimits(), queues=[])


class PauseQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tenant is paused or resumed."""

    queue: Annotated[str, about("Only in this queue.")] | None = None


ROUTES = (
    Route(
        method="GET",
        path="/tenants",
        handler=_list,
        scope="read",
        summary="List tenants: share against weight, waits, what keeps them, what they run.",
        query=TenantsQuery,
    ),
    Route(
        method="GET",
        path="/tenants/{tenant}",
        handler=_get,
        scope="read",
        summary="Show one tenant and its part of each queue.",
        query=TenantQuery,
        problems=(NotFound,),
    ),
    Route(
        method="PATCH",
        path="/tenants/{tenant}",
        handler=_patch,
        scope="manage",
        summary="Set weight, limits and pause of a tenant, in one queue or in all.",
        body=TenantPatch,
        problems=(NotFound,),
    ),
    Route(
        method="POST",
        path="/tenants/{tenant}/pause",
        handler=_pause,
        scope="manage",
        summary="Lend nothing more of a tenant until it is resumed.",
        query=PauseQuery,
        problems=(NotFound,),
    ),
    Route(
        method="POST",
        path="/tenants/{tenant}/resume",
        handler=_resume,
        scope="manage",
        summary="Go on with a tenant that was paused.",
        query=PauseQuery,
        problems=(NotFound,),
    ),
)
