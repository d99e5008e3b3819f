"""From a lease to its settlement: starts attempts, and decides what follows from their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from operator import itemgetter
from typing import NamedTuple

from fairlead.model.backoff import RetryPolicy
from fairlead.model.errors import FairleadError
from fairlead.model.lifecycle import Settlement, State, breaker_vote
from fairlead.model.message import ErrorInfo, Leased
from fairlead.model.registry import TaskBreaker
from fairlead.model.retries import ALONE, Outcome, Released, Unroutable, settle
from fairlead.model.safe_repr import one_line
from fairlead.telemetry.counters import OTHER, Counters
from fairlead.worker.app_services import NO_SERVICES, AppServices
from fairlead.worker.handler_router import Router
from fairlead.worker.inflight import Inflight, Kind
from fairlead.worker.run.attempt import Attempt, ExecutionEnv, Settler
from fairlead.worker.run.deadlines import Deadlines
from fairlead.worker.run.dependency_loader import DependencyLoader, LoadingAttempt
from fairlead.worker.run.error_text import without_traceback
from fairlead.worker.run.executors import begin
from fairlead.worker.run.isolated_process import SlotProcesses
from fairlead.worker.run.light_attempt import LightAttempts
from fairlead.worker.run.log_buffer import LogBuffer
from fairlead.worker.run.progress_writer import Writes
from fairlead.worker.run.threads import Threads

log = logging.getLogger("fairlead.worker")

_LONGEST_ERROR = 500  # characters of its text in a line
_JITTER = 0.1  # of the time that a task is parked for: not all come back together
_OUTCOMES = {
    State.COMPLETED: "completed",
    State.RETRYING: "retried",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
    State.SCHEDULED: "snoozed",
    State.QUEUED: "released",
}
_NO_POLICY = RetryPolicy()  # not asked for what no handler ran; settle() wants one


class Raised(NamedTuple):
    """An exception that a handler raised, or ran into; its traceback is in the task's record."""

    task_id: str
    """The id of the task."""
    task: str
    """The name it is registered under."""
    attempt: int
    """The number of the attempt."""
    exception: BaseException
    """What the handler raised."""


class Runner:
    """Runs the attempts of a worker, and puts the outcome of each into the outbox."""

    def __init__(
        self,
        syncer: Settler,
        inflight: Inflight,
        router: Router,
        writer: Writes,
        loader: DependencyLoader,
        threads: Threads,
        slots: SlotProcesses | None = None,
        *,
        patience: float,
        dice: Callable[[], float],
        exceptions: deque[Raised],
        over: Callable[[Kind, int], None],
        news: Callable[[], None] | None = None,
        refer: Callable[[Leased, Unroutable], bool] | None = None,
        alone: bool = False,
        leaves: bool = False,
        services: AppServices = NO_SERVICES,
    ) -> None:
        """``over`` is called when attempts of a kind are over, with how many.

        ``news``: called on the loop when the broker should hear of something soon. ``refer``: asked
        what no handler here knows, whether somebody else sees to it. ``alone``: this is a slot
        process, whose worker tells of failures and asks breakers. ``leaves``: it is a child of a
        supervisor, which ends what is left running in it.
        """
        self._syncer = syncer
        self._inflight = inflight
        self._router = router
        self._writer = writer
        self._loader = loader
        self._over = over
        self._news = news
        self._refer = refer
        self._alone = alone
        self._slots = slots
        self._numbers: dict[str, int] = {}  # of tasks, in the order of their registration
        self._services = services
        self._env = ExecutionEnv(
            threads,
            Deadlines(),
            self._finished,
            begun=self._begun,
            patience=patience,
            around=services.around,
            own_process=alone or leaves,
            abandons=alone,
            leaves=leaves,
        )
        self._lights = LightAttempts(
            self._env,
            router,
            inflight,
            writer,
            services,
            syncer,
            over=over,
        )
        self.executor = self._env.executor
        self.dice = dice
        self._endings: set[asyncio.Task[None]] = set()  # attempts whose lines are being sent
        # Attempts so far, by task. No Counter: each write to one is the call of a slow method.
        self.started: defaultdict[str, int] = defaultdict(int)
        self.exceptions = exceptions

    def start(self, lease: Leased) -> None:
        """Start an attempt; or settle what no handler here can run."""
        light = None if self._alone else self._lights.attempt(lease)
        if light is not None:
            self.started[light.plan.name] += 1
            self._inflight.add(light)
            self._env.executor.submit_quick(light)
            return
        route = self._router.route(lease)
        if isinstance(route, Unroutable):
            if self._refer is None or not self._refer(lease, route):
                self.turn_down(lease, route)
            return
        spec = route.spec
        breaker = spec.breaker
        if breaker is not None and not self._alone and (wait := breaker.admit()) > 0.0:
            self._park(lease, wait)
            return
        context = self._lights.context(lease, spec.name)
        self.started[spec.name] += 1
        slots = self._slots
        # What only its crashes send there never asked for a process: without one it runs here.
        if slots is not None and (
            spec.isolation or (lease.crashes >= ALONE and slots.can_find_app())
        ):
            self._inflight.add(slots.begin(route, context, self._env))
        elif route.reads:
            loading = LoadingAttempt(route, context, self._env, self._loader, self._loaded)
            self._inflight.add(loading)
        else:
            self._inflight.add(begin(route, context, self._env))

    def turn_down(self, lease: Leased, outcome: Outcome) -> None:
        """Settle what no handler here can run: it is unroutable, or released."""
        settlement = settle(lease, outcome, _NO_POLICY, dice=self.dice())
        if isinstance(outcome, Unroutable):
            info = outcome.info
            fields = {**_fields(lease, settlement, info.type), "task": outcome.task}
            names = outcome.task, lease.message.id, info.type
            log.warning("task unroutable: %s %s, %s", *names, extra=fields)
        self._syncer.add(settlement)
        if self._news is not None:
            self._news()  # perhaps nothing else goes to the broker soon

    def _loaded(self, loading: LoadingAttempt) -> None:
        """What its dependencies returned is there: the handler takes its place."""
        self._inflight.add(begin(loading.assignment, loading.context, self._env))

    def _park(self, lease: Leased, wait: float) -> None:
        """Put a task off whose breaker is open; no attempt is used up."""
        settlement = Settlement(
            id=lease.message.id,
            token=lease.token,
            to=State.SCHEDULED,
            delay=wait * (1 + _JITTER * self.dice()),
            burn=False,
            reason="breaker open",
        )
        self._syncer.add(settlement)

    def release(self, lease: Leased) -> None:
        """Hand a task back that was not started."""
        self._syncer.add(settle(lease, Released(), _NO_POLICY, dice=0.0))

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run attempts on this loop, each with a copy of the variables of this moment."""
        self._env.loop = loop
        self._env.variables = copy_context()

    def cut_off(self) -> None:
        """Hand back whatever runs, also what returns: what it relied on is about to end."""
        self._env.cut = True
        self._inflight.stop_all("release")

    @property
    def overdue(self) -> tuple[int, float]:
        """How many handlers go on although they were told to stop, and for how many seconds."""
        since = self._env.overdue.values()
        return len(since), self.now() - min(since) if since else 0.0

    def now(self) -> float:
        """The clock of the loop."""
        return self._env.loop.time()

    def number(self, names: Sequence[str]) -> None:
        """Show tasks in the shared state by their place in this list."""
        self._numbers = {name: number for number, name in enumerate(names)}
        self._lights.numbers = self._numbers

    def endless(self, limit: int) -> FairleadError:
        """The error of a drain that does not come to an end."""
        task, times = max(self.started.items(), key=itemgetter(1))
        return FairleadError(
            f"drain gave up after {limit:,} attempts: there is always more to do. "
            f"Task {task!r} ran most, {times:,} times; perhaps it enqueues itself or asks to run "
            "again at once. If it is that much work, say so: drain(limit=...), None for no limit"
        )

    def close(self) -> None:
        """Forget all deadlines."""
        self._env.deadlines.close()

    def _begun(self, attempt: Attempt) -> None:
        is_first = not attempt.lease.started and self._syncer.mark(attempt)
        if is_first and self._news is not None:  # perhaps in a thread
            self._env.loop.call_soon_threadsafe(self._news)
        if self._numbers:
            number = self._numbers.get(attempt.assignment.spec.name, 0)
            self._inflight.begun(attempt.lease, number)

    def _finished(self, attempt: Attempt, outcome: Outcome | None) -> None:
        lines = attempt.context._lines
        if lines is None:
            self._settle(attempt, outcome, attempt.run_time)
        elif outcome is None or not lines.has_lines:
            lines.drop()
            self._settle(attempt, outcome, attempt.run_time)
        else:  # first its lines, for which the lease is needed
            ending = self._log_lines(attempt, lines, outcome, attempt.run_time)
            task = self._env.loop.create_task(ending, name="last log lines")
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _log_lines(
        self, attempt: Attempt, lines: LogBuffer, outcome: Outcome, run_time: float
    ) -> None:
        try:
            await lines.close()
        finally:
            self._settle(attempt, outcome, run_time)

    def _settle(self, attempt: Attempt, outcome: Outcome | None, run_time: float) -> None:
        settlement = attempt.decided
        if outcome is not None:
            assignment = attempt.assignment
            settlement = settle(
                attempt.lease,
                outcome,
                assignment.policy,
                dice=self.dice(),
                run_time=run_time,
                keep=assignment.keep,
            )
        self._settled(attempt, settlement)

    def _settled(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """It is decided what follows; None: the task belongs to somebody else by now."""
        self._inflight.remove(attempt)
        lease, name = attempt.lease, attempt.assignment.spec.name
        if attempt.left_behind:
            self._inflight.leave(lease, late=attempt.late)
            self._over(attempt.kind, 1)
            return
        if self._services.counters.on and not self._alone:
            _count(self._services.counters, attempt, settlement)
        if attempt.error is not None:
            error = without_traceback(attempt.error)
            self.exceptions.append(Raised(lease.message.id, name, lease.attempt, error))
        if settlement is None:
            log.warning("lease lost", extra={**attempt.fields(), "token": lease.token})
            self._syncer.fenced += 1  # its outcome changes nothing; the broker need not say so
            self._inflight.over(lease.message.id, lease.token)
        else:
            if settlement.error is not None and not self._alone:
                _log_failure(
                    lease, name, settlement, settlement.error, whole=self._services.log_errors
                )
            elif self._services.log_tasks and settlement.to is State.COMPLETED:
                fields = {**attempt.context.fields(), "run_time": round(settlement.run_time, 6)}
                log.info("task completed: %s %s", name, lease.message.id, extra=fields)
            self._syncer.add(settlement)
        breaker = attempt.assignment.spec.breaker
        if breaker is not None and not self._alone:
            _tell_breaker(breaker, settlement)
        self._over(attempt.kind, 1)


def _log_failure(
    lease: Leased, name: str, settlement: Settlement, error: ErrorInfo, *, whole: bool
) -> None:
    """Log that an attempt failed; with ``whole`` also the text of the error and its traceback."""
    # In the text as well: the usual format of a log shows no fields.
    fields = {**_fields(lease, settlement, error.type), "task": name}
    said = error.type
    if whole:
        said = f"{said}: {one_line(error.message, _LONGEST_ERROR)}" if error.message else said
        fields["traceback"] = error.traceback
    if settlement.to is State.DEAD:
        log.error("task dead: %s %s, %s", name, lease.message.id, said, extra=fields)
    else:
        log.warning("attempt failed: %s %s, %s", name, lease.message.id, said, extra=fields)


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


def _count(counters: Counters, attempt: Attempt, settlement: Settlement | None) -> None:
    outcome = "lost" if settlement is None else _OUTCOMES.get(settlement.to, OTHER)
    ended = settlement is not None and settlement.to not in (State.SCHEDULED, State.QUEUED)
    seconds = attempt.run_time if ended else None
    queue = attempt.lease.message.queue
    counters.attempted(queue, attempt.assignment.spec.name, outcome, seconds)


def _tell_breaker(breaker: TaskBreaker, settlement: Settlement | None) -> None:
    """Tell a breaker how an attempt ended; one that says nothing of the service frees its place."""
    well = None if settlement is None else breaker_vote(settlement, settlement.to)
    if well is None:
        breaker.released()
    elif well:
        breaker.succeeded()
    else:
        breaker.failed()
