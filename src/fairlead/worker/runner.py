"""From a lease to its settlement: starts attempts, and decides what follows from their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from fairlead.model.backoff import RetryPolicy
from fairlead.model.lifecycle import Outcome, Released, Settlement, State, Unroutable, settle
from fairlead.model.message import Leased, Trace
from fairlead.worker.context import Context
from fairlead.worker.deadlines import Deadlines
from fairlead.worker.execution import Attempt, Floor, begin
from fairlead.worker.failure import without_traceback
from fairlead.worker.inflight import Inflight
from fairlead.worker.router import Router
from fairlead.worker.syncer import Syncer
from fairlead.worker.threads import Threads
from fairlead.worker.writer import Writer

__all__ = ("Raised", "Runner")

log = logging.getLogger("fairlead.worker")

_NO_POLICY = RetryPolicy()  # not asked for what no handler ran; settle() wants one


class Raised(NamedTuple):
    """An exception that a handler raised, or ran into; its traceback is in the task's record."""

    task_id: str
    task: str
    attempt: int
    exception: BaseException


class Runner:
    """Runs the attempts of a worker, and puts the outcome of each into the outbox."""

    def __init__(
        self,
        syncer: Syncer,
        inflight: Inflight,
        router: Router,
        writer: Writer,
        threads: Threads,
        over: Callable[[], None],
        *,
        patience: float,
        dice: Callable[[], float],
        exceptions: deque[Raised],
    ) -> None:
        self._syncer = syncer
        self._inflight = inflight
        self._router = router
        self._writer = writer
        self._over = over  # called when an attempt is over
        self._floor = Floor(threads, Deadlines(), self._finished, patience=patience)
        self.dice = dice
        self.started: Counter[str] = Counter()  # attempts so far, by task
        self.exceptions = exceptions

    def start(self, lease: Leased) -> None:
        """Start an attempt; or settle what no handler here can run."""
        route = self._router.route(lease)
        if isinstance(route, Unroutable):
            settlement = settle(lease, route, _NO_POLICY, dice=self.dice())
            error = route.info.type
            fields = _fields(lease, settlement, error)
            log.warning("task unroutable: %s, %s", lease.message.id, error, extra=fields)
            self._syncer.add(settlement)
            return
        message, name = lease.message, route.spec.name
        context = Context(
            lease,
            name,
            self._writer,
            asyncio.get_running_loop(),
            correlation_id=_correlation(message.trace) or message.id,
        )
        self.started[name] += 1
        self._inflight.add(begin(route, context, self._floor))

    def release(self, lease: Leased) -> None:
        """Hand a task back that was not started."""
        self._syncer.add(settle(lease, Released(), _NO_POLICY, dice=0.0))

    def close(self) -> None:
        """Forget all deadlines."""
        self._floor.deadlines.close()

    def _finished(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._inflight.remove(attempt)
        lease, assignment = attempt.lease, attempt.assignment
        name = assignment.spec.name
        if attempt.error is not None:
            error = without_traceback(attempt.error)
            self.exceptions.append(Raised(lease.message.id, name, lease.attempt, error))
        if outcome is None:
            log.warning("lease lost", extra={**attempt.fields(), "token": lease.token})
        else:
            settlement = settle(
                lease,
                outcome,
                assignment.policy,
                dice=self.dice(),
                run_time=attempt.run_time,
                keep=assignment.keep,
            )
            if settlement.error is not None:
                _tell(lease, name, settlement, settlement.error.type)
            self._syncer.add(settlement)
        self._over()


def _tell(lease: Leased, name: str, settlement: Settlement, error: str) -> None:
    # In the text as well: the usual format of a log shows no fields.
    fields = {**_fields(lease, settlement, error), "task": name}
    if settlement.to is State.DEAD:
        log.error("task dead: %s %s, %s", name, lease.message.id, error, extra=fields)
    else:
        log.warning("attempt failed: %s %s, %s", name, lease.message.id, error, extra=fields)


def _fields(lease: Leased, settlement: Settlement, error: str) -> dict[str, object]:
    """What a log line tells of an attempt: never arguments, never the text of an error."""
    message = lease.message
    return {
        "task_id": message.id,
        "queue": message.queue,
        "tenant": message.tenant,
        "attempt": lease.attempt,
        "state": str(settlement.to),
        "reason": settlement.reason,
        "delay": settlement.delay,
        "error": error,
    }


def _correlation(trace: bytes) -> str:
    try:
        return Trace.decode(trace).correlation_id
    except ValueError:  # written by a later release: not worth a failed task
        return ""
