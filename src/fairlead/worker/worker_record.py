"""A worker as the registry shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import StandingOrder
from fairlead.runtime.identity import host, identity
from fairlead.worker.config import place, versions
from fairlead.worker.process.ipc import Introduction
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.referrer import TAKES_OVER

if TYPE_CHECKING:
    from fairlead.worker.worker import Worker

_MOST_SHOWN = 100  # running tasks

#: ``quiet``: a signal said so. ``paused``: an operator ordered it. ``stopped``: it is still there,
#: but runs no more tasks.
WorkerState = Literal["working", "quiet", "paused", "stopping", "stopped"]


def state_of(*, quiet: bool, paused: bool, stopping: bool, stopped: bool = False) -> WorkerState:
    """The state in one word: that which decides."""
    if stopped:
        return "stopped"
    if stopping:
        return "stopping"
    return "paused" if paused else "quiet" if quiet else "working"


def worker_record(worker: Worker) -> WorkerRecord:
    """A worker, as it describes itself."""
    shown = islice(worker.inflight, _MOST_SHOWN)
    state = worker.state
    return WorkerRecord(
        incarnation=worker.incarnation,
        host=host(),
        pid=os.getpid(),
        queues=worker.processor.order.order(),
        tasks=tuple(spec.name for spec in worker.registry),
        concurrency=worker.concurrency,
        running=len(worker.inflight),
        started_at=worker.started_at,
        order=worker.orders.standing,
        details={
            **identity(os.getpid()),
            "settled": worker.syncer.settled,
            "fenced": worker.syncer.refused,
            "unsent": worker.syncer.unsettled,
            "abandoned": worker.abandoned,
            "overdue": worker.runner.overdue[0],
            "held": len(worker.inflight.held),
            "state": state,
            "quiet": state != "working",
            "versions": versions(worker.registry),
            TAKES_OVER: True,
            "catalog": worker.publisher.digest,
            "now": [(each.lease.message.id, each.task) for each in shown],
        },
    )


def introduction_of(worker: Worker) -> Introduction:
    """What a child tells its supervisor, so that it can describe it; all but the URL."""
    return Introduction(
        incarnation=worker.incarnation,
        url="",
        lease=worker.processor.lease,
        queues=worker.processor.order.order(),
        tasks=tuple(spec.name for spec in worker.registry),
        versions=versions(worker.registry),
        places=tuple(place(spec.handler) for spec in worker.registry),
        catalog=worker.publisher.data,
        concurrency=worker.concurrency,
        started_at=worker.started_at,
        spool="" if worker.outcomes is None else str(worker.outcomes.spool.root),
    )


def child_record(
    who: Introduction,
    pid: int,
    shared_state: SharedState,
    *,
    born: Mapping[str, Any],
    catalog: str,
    state: WorkerState,
    order: StandingOrder,
) -> WorkerRecord:
    """A child, as its supervisor describes it: from its introduction and shared state."""
    rows = shared_state.lent()
    running = [row for row in rows if row.started]
    return WorkerRecord(
        incarnation=who.incarnation,
        host=host(),
        pid=pid,
        queues=who.queues,
        tasks=who.tasks,
        concurrency=who.concurrency,
        running=len(running),
        started_at=who.started_at,
        order=order,
        details={
            **born,
            **shared_state.counters,
            "held": len(rows) - len(running),
            "state": state,
            "quiet": state != "working",
            "versions": who.versions,
            TAKES_OVER: True,
            "catalog": catalog,
            "supervisor": os.getpid(),
            "now": [(row.id, who.task_of(row.task)) for row in running[:_MOST_SHOWN]],
        },
    )
