"""Workers: who they are, what each runs, and orders to pause, go on or stop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from fairlead.api.http.problems import NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import PageQuery, about, for_operators, named_page
from fairlead.api.views.timestamps import moment
from fairlead.broker.records import WorkerRecord

_MOST_NOW = 100  # tasks that a worker says it runs

Order = Literal["pause", "resume", "stop"]


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker runs right now."""

    id: str
    name: str


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it described itself in its last heartbeat."""

    id: Annotated[str, about("Its incarnation: another one after every start.")]
    host: str
    pid: int
    state: Annotated[
        Literal["working", "pausing", "paused", "stopping", "quiet"],
        about(
            "What it does; pausing: ordered to pause, which it may not know yet; "
            "quiet: a signal told it to take nothing new."
        ),
    ]
    queues: list[str]
    concurrency: int
    running: int
    held: Annotated[int, about("Lent to it, and not begun.")] = 0
    settled: Annotated[int, about("Outcomes since it started.")] = 0
    fenced: Annotated[int, about("Of these, the ones that came too late to count.")] = 0
    started_at: datetime
    seen_at: datetime
    now: Annotated[list[RunningTask], about("What it runs, at most 100 of them.")] = []


class WorkerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that were heard of in the last 15 seconds."""

    workers: list[WorkerView]
    running: Annotated[int, about("Tasks that all workers run, not only those of this page.")]
    concurrency: Annotated[int, about("Slots of all workers.")]
    cursor: str | None = None


class WorkerDetail(WorkerView, frozen=True, kw_only=True):
    """One worker, with the tasks that it knows."""

    tasks: Annotated[list[str], about("Names of tasks that it can run.")] = []


class WorkerOrdered(msgspec.Struct, frozen=True, kw_only=True):
    """An order that the worker gets with its next heartbeat."""

    id: str
    order: Order


async def _list(request: Request) -> WorkerPage:
    for_operators(request, "workers are")
    query: PageQuery = request.query
    found = {worker.incarnation: worker for worker in await request.client.store.workers()}
    page, cursor = named_page(found, query.limit, query.cursor)
    return WorkerPage(
        workers=[WorkerView(**_fields(worker)) for _, worker in page],
        running=sum(worker.running for worker in found.values()),
        concurrency=sum(worker.concurrency for worker in found.values()),
        cursor=cursor,
    )


async def _get(request: Request) -> WorkerDetail:
    worker = await _worker(request)
    return WorkerDetail(tasks=sorted(worker.tasks), **_fields(worker))


async def _worker(request: Request) -> WorkerRecord:
    for_operators(request, "workers are")
    id = request.path["id"]
    for worker in await request.client.store.workers():
        if worker.incarnation == id:
            return worker
    raise NotFound("there is no such worker, or it was not heard of in the last 15 seconds")


def _fields(worker: WorkerRecord) -> dict[str, Any]:
    details = worker.details
    return {
        "id": worker.incarnation,
        "host": worker.host,
        "pid": worker.pid,
        "state": _state(worker),
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "running": worker.running,
        "held": _number(details.get("held")),
        "settled": _number(details.get("settled")),
        "fenced": _number(details.get("fenced")),
        "started_at": moment(worker.started_at),
        "seen_at": moment(worker.seen_at),
        "now": _running(details.get("now")),
    }


def _state(worker: WorkerRecord) -> str:
    """What it says that it does, and what it was ordered to do, of which it hears a little later.

    It is never called paused before it is: one of an older release does not know the order.
    """
    said = worker.details.get("state")
    if worker.order == "stop" or said in ("stopping", "stopped"):
        return "stopping"
    if worker.order == "pause":
        return "paused" if said == "paused" else "pausing"
    return "quiet" if worker.details.get("quiet") and said != "paused" else "working"


def _number(value: object) -> int:
    """What a worker wrote; its details are not checked by anybody."""
    return value if type(value) is int else 0


def _running(value: object) -> list[RunningTask]:
    rows = value if isinstance(value, list | tuple) else ()
    return [
        RunningTask(id=str(row[0]), name=str(row[1]))
        for row in rows[:_MOST_NOW]
        if isinstance(row, list | tuple) and len(row) >= 2
    ]


async def _pause(request: Request) -> WorkerOrdered:
    return await _order(request, "pause")


async def _resume(request: Request) -> WorkerOrdered:
    return await _order(request, "resume")


async def _stop(request: Request) -> WorkerOrdered:
    return await _order(request, "stop")


async def _order(request: Request, order: Order) -> WorkerOrdered:
    worker = await _worker(request)
    if not await request.client.order_worker(worker.incarnation, order):
        raise NotFound("the worker is gone")
    await request.note(f"worker.{order}", worker.incarnation, host=worker.host, pid=worker.pid)
    return WorkerOrdered(id=worker.incarnation, order=order)


def _ordering(name: str, handler: Any, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"/workers/{{id}}/{name}",
        handler=handler,
        scope="manage",
        summary=summary,
        answer=WorkerOrdered,
        status=202,
        problems=(NotFound,),
    )


ROUTES = (
    Route(
        method="GET",
        path="/workers",
        handler=_list,
        scope="read",
        summary="List workers, with what each runs.",
        query=PageQuery,
    ),
    Route(
        method="GET",
        path="/workers/{id}",
        handler=_get,
        scope="read",
        summary="Show one worker.",
        problems=(NotFound,),
    ),
    _ordering("pause", _pause, "Let a worker finish what it runs and take nothing new."),
    _ordering("resume", _resume, "Let a worker that was paused take tasks again."),
    _ordering("stop", _stop, "Let a worker finish what it runs, then end."),
)
