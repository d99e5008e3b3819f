"""How many workers there should be: a signal for autoscalers, such as KEDA's ``metrics-api``.

docs/reference/http-api-management.md has the formula, and what each part of it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.api.http.problems import NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import Cursor, Limit, about, for_operators, named_page
from fairlead.api.views.timestamps import moment
from fairlead.broker.records import QueueCounts, WorkerRecord
from fairlead.broker.stats import QueueStats
from fairlead.model.names import check_queue

_RUN_SECONDS = 1.0  # of a queue in which nothing has ended yet
_CONCURRENCY = 10  # of a worker, where none serves the queue and nobody says


class QueueSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue asks for."""

    queue: str
    backlog: Annotated[int, about("Tasks that could run now.")]
    running: int
    oldest_seconds: Annotated[float, about("How long the oldest of these has waited; 0: none.")]
    run_seconds: Annotated[float, about("Mean time of an attempt.")]
    concurrency: Annotated[float, about("Slots of one worker that were counted with.")]
    workers: Annotated[int, about("Workers that serve it now.")]
    desired: Annotated[int, about("Workers that it should have.")]


class Autoscale(msgspec.Struct, frozen=True, kw_only=True):
    """Flat at the top: of one queue if it was asked for, else sums over the page."""

    now: datetime
    backlog: int
    oldest_seconds: float
    running: int
    workers: Annotated[int, about("Live workers that serve any of these queues.")]
    desired: int
    queues: list[QueueSignal]
    cursor: str | None = None


class AutoscaleQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues, and what is wanted of their workers."""

    queue: Annotated[str, about("Only this queue.")] | None = None
    target: Annotated[
        float,
        Meta(ge=1, le=86_400, description="Seconds within which what waits should begin."),
    ] = 60.0
    concurrency: Annotated[int, Meta(ge=1, le=10_000, description="Slots of a worker.")] | None = (
        None
    )
    min: Annotated[int, Meta(ge=0, le=10_000, description="Workers at least.")] = 0
    max: Annotated[int, Meta(ge=1, le=10_000, description="Workers at most, for a queue.")] = 100
    limit: Limit = 100
    cursor: Cursor | None = None


def desired_workers(
    *,
    backlog: int,
    running: int,
    run_seconds: float,
    target: float,
    concurrency: float,
    least: int,
    most: int,
) -> int:
    """How many workers a queue should have; see the head of this module."""
    slots = running + backlog * run_seconds / target
    wanted = math.ceil(slots / concurrency) if slots else 0
    if backlog or running:
        wanted = max(wanted, 1)
    return min(max(wanted, least), max(most, least))


async def _autoscale(request: Request) -> Autoscale:
    for_operators(request, "workers are")
    query: AutoscaleQuery = request.query
    queue = None if query.queue is None else check_queue(query.queue)
    counts, stats, workers = await asyncio.gather(
        request.client.store.snapshot(queue, tenants=False),
        request.client.store.stats(queue),
        request.client.store.workers(),
    )
    if queue is not None and queue not in counts.queues:
        raise NotFound(f"there is no queue {queue!r}")
    page, cursor = named_page(counts.queues, query.limit, query.cursor)
    signals = [
        _signal(name, each, stats.queues.get(name, QueueStats()), workers, query, counts.now)
        for name, each in page
    ]
    named = {signal.queue for signal in signals}
    return Autoscale(
        now=moment(counts.now),
        backlog=sum(signal.backlog for signal in signals),
        oldest_seconds=max((signal.oldest_seconds for signal in signals), default=0.0),
        running=sum(signal.running for signal in signals),
        workers=sum(not named.isdisjoint(worker.queues) for worker in workers),
        desired=sum(signal.desired for signal in signals),
        queues=signals,
        cursor=cursor,
    )


def _signal(
    name: str,
    counts: QueueCounts,
    stats: QueueStats,
    workers: Sequence[WorkerRecord],
    query: AutoscaleQuery,
    now: float,
) -> QueueSignal:
    serving = [worker for worker in workers if name in worker.queues]
    slots = [worker.concurrency for worker in serving if worker.concurrency > 0]
    concurrency = float(_CONCURRENCY)
    if query.concurrency is not None:
        concurrency = float(query.concurrency)
    elif slots:
        concurrency = sum(slots) / len(slots)
    ended = stats.run.count
    run_seconds = stats.run.sum / ended if ended else _RUN_SECONDS
    backlog = 0 if counts.paused else counts.ready
    oldest = counts.oldest_at
    return QueueSignal(
        queue=name,
        backlog=backlog,
        running=counts.running,
        oldest_seconds=0.0 if oldest is None or not backlog else max(0.0, now - oldest),
        run_seconds=run_seconds,
        concurrency=concurrency,
        workers=len(serving),
        desired=desired_workers(
            backlog=backlog,
            running=counts.running,
            run_seconds=run_seconds,
            target=query.target,
            concurrency=concurrency,
            least=query.min,
            most=query.max,
        ),
    )


ROUTES = (
    Route(
        method="GET",
        path="/autoscale",
        handler=_autoscale,
        scope="read",
        summary="Show how many workers each queue should have.",
        query=AutoscaleQuery,
        problems=(NotFound,),
    ),
)
