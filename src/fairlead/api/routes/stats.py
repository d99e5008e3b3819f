"""What was counted: totals of queues, how long things took, and the histograms behind that."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from fairlead.api.http.problems import NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import Cursor, Limit, about, for_operators, named_page
from fairlead.api.views.timestamps import moment
from fairlead.broker.stats import BUCKETS, COUNTERS, HISTOGRAMS, TALLIED, Histogram, QueueStats
from fairlead.model.names import check_queue


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, in seconds; a percentile is the end of its bucket, at most twice."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    largest: float | None = None


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One queue since it exists; for a token of a tenant its part of this hour and the last."""

    queue: str
    enqueued: int = 0
    started: Annotated[int, about("Attempts that began.")] = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    failed: Annotated[int | None, about("Attempts that did not end well; for operators.")] = None
    retried: Annotated[int | None, about("Of these, those that are tried again.")] = None
    fenced: Annotated[int | None, about("Outcomes that came too late to count.")] = None
    dropped: Annotated[int | None, about("Dead letters forgotten for want of room.")] = None
    deferred: Annotated[int | None, about("Tasks that wait for others now.")] = None
    longest_wait: Annotated[float | None, about("For a tenant: seconds.")] = None
    wait: Annotated[Times | None, about("From runnable to started.")] = None
    run: Annotated[Times | None, about("From started to settled.")] = None
    release: Annotated[Times | None, about("From the end of the last parent to queued.")] = None


class StatsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of queues by name."""

    now: datetime
    window: Annotated[
        Literal["all", "hours"], about("All: since a queue exists. Hours: this one and the last.")
    ]
    queues: list[QueueFigures]
    orphans: Annotated[
        int | None, about("Dependents that were to be told of an end, but are not known.")
    ] = None
    cursor: str | None = None


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """How many took no longer than this."""

    le: Annotated[float | None, about("Seconds; null: any time.")]
    count: Annotated[int, about("With those of all buckets below.")]


class HistogramView(msgspec.Struct, frozen=True, kw_only=True):
    """All of one histogram."""

    queue: str
    name: Literal["wait", "run", "release"]
    count: int
    sum: float
    largest: float
    buckets: list[Bucket]


class HistogramPage(msgspec.Struct, frozen=True, kw_only=True):
    """Histograms of queues by name."""

    now: datetime
    histograms: list[HistogramView]
    cursor: str | None = None


class StatsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues."""

    queue: Annotated[str, about("Only this queue.")] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


async def _stats(request: Request) -> StatsPage:
    query: StatsQuery = request.query
    if request.access.tenant is not None:
        return await _own(request, request.access.tenant, query)
    queue = None if query.queue is None else check_queue(query.queue)
    found = await request.client.store.stats(queue)
    if queue is not None and queue not in found.queues:
        raise NotFound(f"there is no queue {queue!r}")
    page, cursor = named_page(found.queues, query.limit, query.cursor)
    return StatsPage(
        now=moment(found.now),
        window="all",
        queues=[_figures(name, stats) for name, stats in page],
        orphans=found.orphans,
        cursor=cursor,
    )


async def _own(request: Request, tenant: str, query: StatsQuery) -> StatsPage:
    """A tenant's part: only of queues in which anything of it is known, and nothing of others."""
    queue = None if query.queue is None else check_queue(query.queue)
    known = await request.client.store.snapshot(queue, tenants=False, tenant=tenant)
    held = {name: each for name, each in known.queues.items() if tenant in each.tenants}
    if queue is not None and queue not in held:
        raise NotFound(f"there is no queue {queue!r}")
    page, cursor = named_page(held, query.limit, query.cursor)
    figures = []
    for name, _ in page:
        found = (await request.client.store.stats(name, tenant=tenant)).tenants.get(name, {})
        if tenant in found:
            own = found[tenant]
            counts: dict[str, Any] = {field: getattr(own, field) for field in TALLIED}
            figures.append(QueueFigures(queue=name, longest_wait=own.longest_wait, **counts))
    return StatsPage(now=moment(known.now), window="hours", queues=figures, cursor=cursor)


def _figures(name: str, stats: QueueStats) -> QueueFigures:
    shown: dict[str, Any] = {field: getattr(stats, field) for field in (*COUNTERS, "deferred")}
    shown.update({field: _times(getattr(stats, field)) for field in HISTOGRAMS})
    return QueueFigures(queue=name, **shown)


def _times(histogram: Histogram) -> Times:
    count = histogram.count
    return Times(
        count=count,
        mean=histogram.sum / count if count else None,
        p50=histogram.upper(0.5),
        p95=histogram.upper(0.95),
        p99=histogram.upper(0.99),
        largest=histogram.largest if count else None,
    )


async def _histograms(request: Request) -> HistogramPage:
    for_operators(request, "histograms are of all tenants together, and")
    query: StatsQuery = request.query
    queue = None if query.queue is None else check_queue(query.queue)
    found = await request.client.store.stats(queue)
    page, cursor = named_page(found.queues, query.limit, query.cursor)
    return HistogramPage(
        now=moment(found.now),
        histograms=[
            _histogram(name, which, getattr(stats, which))
            for name, stats in page
            for which in HISTOGRAMS
        ],
        cursor=cursor,
    )


def _histogram(queue: str, name: Any, histogram: Histogram) -> HistogramView:
    buckets, seen = [], 0
    for end, count in zip((*BUCKETS, None), histogram.counts, strict=True):
        seen += count
        buckets.append(Bucket(le=end, count=seen))
    return HistogramView(
        queue=queue,
        name=name,
        count=seen,
        sum=histogram.sum,
        largest=histogram.largest,
        buckets=buckets,
    )


ROUTES = (
    Route(
        method="GET",
        path="/stats",
        handler=_stats,
        scope="read",
        summary="Show what was counted in queues, and how long it took.",
        query=StatsQuery,
        problems=(NotFound,),
    ),
    Route(
        method="GET",
        path="/stats/histograms",
        handler=_histograms,
        scope="read",
        summary="Show the histograms of waits, runs and releases.",
        query=StatsQuery,
    ),
)
