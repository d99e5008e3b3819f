"""exchange: settle attempts, mark held tasks as started, lend more. In this order, in one step."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker.memory import dependencies, maintenance
from fairlead.broker.memory.fair import IDLE, PARKED, Queue, Tenant
from fairlead.broker.memory.records import Incarnation, Task
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import MAX_BYTES, Call, Fetch, LeaseRef, Settled
from fairlead.model.clock import next_number
from fairlead.model.lifecycle import FINAL, Settlement, State, apply_cancel, breaker_vote
from fairlead.model.message import Leased
from fairlead.model.states import CANCELLED, COMPLETED, QUEUED, RUNNING

_DROPPED = 256  # entries of cancelled and expired tasks that one fetch clears away
_REFILL = 4  # due tasks of a tenant that ran out while it is served; twice as many the next time
_SMOOTHING = 64  # settlements over which the average run time of a queue forgets
_NO_FAILURE = (COMPLETED, CANCELLED)
_EVENTS = {State.SCHEDULED: "snoozed", State.QUEUED: "released"}


# -- settle ------------------------------------------------------------------------------------


def settle(shard: Shard, incarnation: str, settlements: Sequence[Settlement]) -> list[Settled]:
    """Carry out decided moves under leases that are in force; refuse the others."""
    answers: list[Settled] = []
    tasks = shard.tasks
    for settlement in settlements:
        task = tasks.get(settlement.id)
        if task is not None and task.leased_as(incarnation, settlement.token):
            _apply(shard, task, settlement)
            answers.append("applied")
        elif task is None or shard.find(task.id) is None:
            answers.append("unknown")
        else:
            answers.append("fenced")
            task.tenant.queue.tally.add("fenced")
            shard.emit("fenced", task, "", 0, settlement.token)
    dependencies.follow_up(shard)
    return answers


def _apply(shard: Shard, task: Task, settlement: Settlement) -> None:
    tenant = task.tenant
    queue = tenant.queue
    attempt = task.attempts + 1
    to = settlement.to
    ran = settlement.ran
    if task.started_at is None and (settlement.burn or settlement.reason == "snoozed"):
        _begin(shard, task)  # nobody had said so
    begun = task.started_at is not None
    if task.cancelling:
        to = apply_cancel(to, cancel_requested=True)
    if begun:
        queue.tally.run.add(settlement.run_time)
    if settlement.burn and settlement.to not in _NO_FAILURE:
        queue.tally.add("failed")
        if to not in FINAL:
            queue.tally.add("retried")
    if not ran:
        _return_rates(task)
    shard.end_lease(task, breaker_vote(settlement, to) if task.held else None)
    if ran and queue.charge_run_time:  # first: one whose last task ends may be forgotten
        _charge(tenant, task.message.cost, settlement.run_time)
    task.attempts += settlement.burn
    if settlement.reason or task.crashes or task.unroutable:
        _count_in_a_row(task, settlement, ran)
    if to in FINAL:
        shard.finish(
            task,
            to,
            reason=settlement.reason if to is settlement.to else "",
            error=settlement.error,
            result=settlement.result,
            keep=settlement.keep if to is settlement.to else None,
        )
        shard.emit(to, task, task.reason, attempt, settlement.token)
    else:
        _put_back(shard, task, to, settlement, begun=begun)
        shard.emit(_EVENTS.get(to, to), task, task.reason, attempt, settlement.token)
    if queue.gate is not None or tenant.status is PARKED:
        shard.has_room_again(tenant)


def _put_back(shard: Shard, task: Task, to: State, settlement: Settlement, *, begun: bool) -> None:
    """Let a task wait again, for its turn or for some time."""
    if settlement.error is not None:
        task.error = settlement.error
        shard.weigh(task)
    task.reason = settlement.reason
    if to is QUEUED:
        shard.queue_up(task, front=True, waits_on=not begun)
    else:
        shard.schedule(task, to, shard.now + settlement.delay)


def _count_in_a_row(task: Task, settlement: Settlement, ran: bool) -> None:
    """Crashes and hand-backs: one that did not run ends no row."""
    if settlement.reason == "crashed":
        task.crashes += 1
    elif ran:
        task.crashes = 0
    if settlement.reason == "unroutable":
        task.unroutable += 1
    elif ran:
        task.unroutable = 0


def _return_rates(task: Task) -> None:
    """It was dispatched and did not run: others may go in its place."""
    for gate in (task.tenant.gate, task.tenant.queue.gate, *task.held):
        if gate is not None:
            gate.return_one()


def _charge(tenant: Tenant, cost: float, run_time: float) -> None:
    """Correct what the dispatch charged by what the attempt took, in average tasks of the queue.

    Measured against the average and not in seconds, so that tags and the virtual clock keep the
    pace of one stride per task, whether tasks run for milliseconds or for hours.
    """
    queue = tenant.queue
    each = run_time / cost
    queue.average += (each - queue.average) / _SMOOTHING if queue.average else each
    if queue.average > 0.0:
        queue.charge(tenant, run_time / queue.average - cost)


# -- started marks -----------------------------------------------------------------------------


def start(shard: Shard, incarnation: str, started: Sequence[LeaseRef]) -> list[Settled]:
    """Note that held tasks have begun to run: from now on a crash is charged to them."""
    answers: list[Settled] = []
    for ref in started:
        task = shard.find(ref.id)
        if task is None:
            answers.append("unknown")
        elif ref.incarnation != incarnation or not task.leased_as(incarnation, ref.token):
            answers.append("fenced")
        else:
            answers.append("applied")
            if task.started_at is None:
                _begin(shard, task)
    return answers


def _begin(shard: Shard, task: Task) -> None:
    now = task.started_at = shard.now
    tenant = task.tenant
    tenant.queue.tally.started(tenant.name, now - task.runnable_since, now)
    if task.unique is not None and task.unique.until == "started":
        shard.release_unique(task)
    shard.emit("started", task, task.incarnation, task.attempts + 1, task.token)


# -- fetch -------------------------------------------------------------------------------------


def fetch(shard: Shard, call: Call, request: Fetch) -> tuple[list[Task], bool]:
    """Lend up to ``request.max`` tasks, and say whether the call stopped before seeing all."""
    budget = _Budget(request.max)
    taken: list[Task] = []
    for name in request.queues:
        queue = shard.queues.get(name)
        if queue is not None and not queue.paused and len(taken) < request.max:
            _serve(shard, queue, request.max, taken, budget)
            queue.drop_saved(2 * request.max)
    if taken:
        _lend(shard, call, request, taken)
    dependencies.follow_up(shard)
    return taken, budget.spent


class _Budget:
    """What one call may look at and lend: visits of tenants, dropped entries, bytes."""

    __slots__ = ("bytes", "drops", "refills", "visits")

    def __init__(self, wanted: int) -> None:
        self.visits = 4 * wanted + 64
        self.drops = _DROPPED
        self.bytes = MAX_BYTES
        self.refills: dict[tuple[str, str], int] = {}  # how many a tenant got that ran out

    @property
    def spent(self) -> bool:
        return self.visits <= 0 or self.drops <= 0 or self.bytes <= 0


def _serve(shard: Shard, queue: Queue, wanted: int, taken: list[Task], budget: _Budget) -> None:
    now = shard.now
    while len(taken) < wanted and budget.visits > 0 and budget.drops > 0 and budget.bytes > 0:
        tenant = queue.first()
        if tenant is None:
            return
        budget.visits -= 1
        if queue.gate is not None and queue.closed_until(now) is not None:
            return
        gate = tenant.gate
        if gate is not None:
            until = gate.closed_until(tenant.counts[RUNNING], now)
            if until is not None:
                shard.park(tenant, gate, until)
                continue
        task = _head(shard, tenant, budget)
        if task is None:
            continue
        if task.message.limiters and not _take_room(shard, tenant, task):
            continue
        _take(shard, queue, tenant, task, budget)
        taken.append(task)
        budget.bytes -= len(task.message.body) + len(task.message.trace)


def _head(shard: Shard, tenant: Tenant, budget: _Budget) -> Task | None:
    """The tenant's next task; what is cancelled or past its deadline on the way is dropped.

    None if there is nothing left for this visit; the tenant is idle then, or the budget is spent.
    """
    while budget.drops > 0:
        level = tenant.head()
        if level is None:
            if _ran_out(shard, tenant, budget):
                continue
            return None
        task = level[0][0]
        if task is not None:
            if task.deadline_at is None or task.deadline_at >= shard.now:
                return task
            level.popleft()
            task.entry = None
            maintenance.expire(shard, task)
            if tenant.counts[QUEUED] == 0 and not _ran_out(shard, tenant, budget):
                return None
        else:
            level.popleft()
            tenant.holes -= 1
        budget.drops -= 1
    return None


def _take_room(shard: Shard, tenant: Tenant, task: Task) -> bool:
    """Take room in all of the task's named limiters, or in none and park the tenant."""
    for name in task.message.limiters:
        limiter = shard.limiters.get(name)
        until = limiter.room(shard.now) if limiter is not None else None
        if limiter is not None and until is not None:
            shard.park(tenant, limiter, until)
            return False
    task.held = tuple(shard.limiter(name) for name in task.message.limiters)
    for limiter in task.held:
        limiter.take(shard.now)
    return True


def _take(shard: Shard, queue: Queue, tenant: Tenant, task: Task, budget: _Budget) -> None:
    level = task.level
    tenant.levels[level].popleft()
    task.entry = None
    if level:
        tenant.turn += 1
    shard.move(task, RUNNING)
    if queue.gate is not None:
        queue.gate.pass_one(shard.now)
    if tenant.gate is not None:
        tenant.gate.pass_one(shard.now)
    queue.dispatched(tenant, task.message.cost)
    if tenant.counts[QUEUED] == 0 and not _ran_out(shard, tenant, budget):
        return
    if tenant.woken_by is not None:
        shard.pass_on(tenant)


def _ran_out(shard: Shard, tenant: Tenant, budget: _Budget) -> bool:
    """A tenant has no queued task left: if something of it is due, that is next; else it is idle.

    Whether it goes on.
    """
    if tenant.due:
        few = budget.refills[tenant.key] = 2 * budget.refills.get(tenant.key, _REFILL // 2)
        maintenance.promote_tenant(shard, tenant, few, maintenance.Late())
        if tenant.counts[QUEUED] > 0:
            return True
    tenant.clear()
    shard.unready(tenant, IDLE)
    return False


def _lend(shard: Shard, call: Call, request: Fetch, taken: list[Task]) -> None:
    now, name = shard.now, call.incarnation
    token = shard.token = next_number(shard.token, now)
    incarnation = shard.incarnations.get(name)
    if incarnation is None:
        incarnation = shard.incarnations[name] = Incarnation()
    if now + request.lease > incarnation.lease_end:
        incarnation.lease_end = now + request.lease
        shard.lease_ends.set(name, incarnation.lease_end)
    leases = incarnation.leases
    started = len(taken) if request.start is None else request.start
    for index, task in enumerate(taken):
        leases[task.id] = task
        task.token = token
        task.lent_by = call.number
        task.incarnation = name
        if task.deadline_at is not None:
            shard.deadlines.discard(task.id)
        if index < started:
            _begin(shard, task)


def leased(task: Task) -> Leased:
    """The loan as its worker sees it."""
    return Leased(
        message=task.message,
        token=task.token,
        attempt=task.attempts + 1,
        generation=task.generation,
        crashes=task.crashes,
        unroutable=task.unroutable,
        started=task.started_at is not None,
        enqueued_at=task.enqueued_at,
        deadline_at=task.deadline_at,
    )
