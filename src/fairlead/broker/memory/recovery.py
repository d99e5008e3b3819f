"""beat, give_back, sweep: who is alive, and what becomes of the work of those who are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from fairlead.broker.memory import dependencies
from fairlead.broker.memory.records import Incarnation, Task
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import HEARTBEAT, MAX_STEP, BeatReply, LeaseRef, WorkerOrder
from fairlead.broker.transfers import Transferred
from fairlead.model.clock import next_number
from fairlead.model.lifecycle import State
from fairlead.model.message import ErrorInfo
from fairlead.model.retries import after_crash, crashes_after, may_have_run

_REGISTERED = 15.0  # seconds that a worker's record outlives its last heartbeat


def beat(
    shard: Shard,
    name: str,
    held: Sequence[LeaseRef],
    answered: int | None,
    worker: WorkerRecord | None,
    lease: float,
) -> BeatReply:
    """Keep an incarnation's leases, say what it must stop, take back what it does not know of."""
    now = shard.now
    incarnation = shard.incarnations.get(name)
    cancelled: list[LeaseRef] = []
    unclaimed: list[Task] = []
    if incarnation is not None:
        if now + lease > incarnation.lease_end:
            incarnation.lease_end = now + lease
            shard.lease_ends.set(name, incarnation.lease_end)
        if answered is not None:
            unclaimed = _unclaimed(incarnation, held, answered)
        for each in unclaimed[:MAX_STEP]:
            _recover(shard, each, crashed=False, why="unclaimed")
        dependencies.follow_up(shard)
        cancelled = [
            LeaseRef(task.id, name, task.token)
            for task in incarnation.leases.values()
            if task.cancelling
        ]
    lost = [
        ref
        for ref in held
        if (task := shard.tasks.get(ref.id)) is None or not task.leased_as(name, ref.token)
    ]
    paused: list[str] = []
    if worker is not None:
        if not shard.knows_worker(name):
            _join(shard, name, worker)
        shard.workers[name] = msgspec.structs.replace(
            worker, incarnation=name, seen_at=now, details=dict(worker.details), order=""
        )
        shard.worker_ends.set(name, now + _REGISTERED)
        paused = [q for q in worker.queues if q in shard.queues and shard.queues[q].paused]
    return BeatReply(
        now=now,
        lost=lost,
        cancelled=cancelled,
        paused=paused,
        unclaimed=len(unclaimed[:MAX_STEP]),
        more=len(unclaimed) > MAX_STEP,
        order=shard.worker_orders.get(name, "") if shard.knows_worker(name) else "",
    )


def _join(shard: Shard, name: str, worker: WorkerRecord) -> None:
    """Register a worker; one that is not known any more tells what it was ordered to do."""
    if name in shard.workers:  # tidy was not there yet
        shard.forget_worker(name)
    shard.tell_of_worker("worker_joined", name)
    if worker.order in ("pause", "stop"):
        shard.worker_orders[name] = worker.order
    if worker.order == "pause":
        shard.tell_of_worker("worker_paused", name)


def order_worker(shard: Shard, name: str, order: WorkerOrder) -> bool:
    """Let an order stand for a worker, or none; whether there is such a worker."""
    if not shard.knows_worker(name):
        return False
    stood = shard.worker_orders.pop(name, "")
    if order != "resume":
        shard.worker_orders[name] = order
    if order == "pause" and stood != "pause":
        shard.tell_of_worker("worker_paused", name)
    if order == "resume" and stood:
        shard.tell_of_worker("worker_resumed", name)
    return True


def _unclaimed(incarnation: Incarnation, held: Sequence[LeaseRef], answered: int) -> list[Task]:
    """What answered exchanges lent and nobody names, the latest loan first."""
    named = {(ref.id, ref.token) for ref in held}
    return [
        task
        for task in reversed(incarnation.leases.values())
        if task.lent_by <= answered and (task.id, task.token) not in named
    ]


def give_back(
    shard: Shard,
    name: str,
    started: Collection[str] | None,
    most: int = MAX_STEP,
    *,
    blocked: Collection[str] = (),
) -> tuple[int, bool]:
    """Take everything from an incarnation; a crash is charged to what had started.

    Of that, ``blocked`` kept its neighbors from running.
    """
    incarnation = shard.incarnations.get(name)
    if incarnation is None:
        dependencies.follow_up(shard)
        return 0, False
    charged = None if started is None else frozenset(started)
    # From the last to the first: each goes to the front of its level, which restores their order.
    tasks = list(incarnation.leases.values())[-most:]
    for task in reversed(tasks):
        crashed = _may_have_run(task) if charged is None else task.id in charged
        _recover(shard, task, crashed=crashed, blocked=crashed and task.id in blocked)
    dependencies.follow_up(shard)
    return len(tasks), name in shard.incarnations


def transfer(
    shard: Shard, refs: Sequence[LeaseRef], to: str, room: int, lease: float
) -> list[Transferred]:
    """Make loans of one incarnation those of another, as far as it has room."""
    known = shard.answers.get(to)
    answers: list[Transferred] = []
    moved: list[Task] = []
    target = shard.incarnations.get(to)
    many = 0 if target is None else len(target.leases)
    for ref in refs:
        task = shard.tasks.get(ref.id)
        if task is None or not task.leased_as(ref.incarnation, ref.token):
            answers.append("fenced")
        elif known is None or task.cancelling or many + len(moved) >= room or task in moved:
            answers.append("full")
        else:
            answers.append("moved")
            moved.append(task)
    if known is not None and moved:
        _take_over(shard, moved, to, known.number + 1, lease)
    return answers


def _take_over(shard: Shard, tasks: Sequence[Task], to: str, number: int, lease: float) -> None:
    """Let an incarnation have loans of others, as if the exchange of this number had lent them."""
    shard.token = next_number(shard.token, shard.now)
    for task in tasks:
        source = shard.incarnations[task.incarnation]
        del source.leases[task.id]
        if not source.leases:
            del shard.incarnations[task.incarnation]
            shard.lease_ends.discard(task.incarnation)
    target = shard.incarnations.setdefault(to, Incarnation())
    if shard.now + lease > target.lease_end:
        target.lease_end = shard.now + lease
        shard.lease_ends.set(to, target.lease_end)
    for task in tasks:
        target.leases[task.id] = task
        task.token, task.incarnation, task.lent_by = shard.token, to, number
        if task.started_at is not None:
            task.started_at = shard.now
            shard.emit("started", task, to, task.attempts + 1, task.token)
        shard.write_to(to, "lent", task.id, token=task.token)


def _may_have_run(task: Task) -> bool:
    return may_have_run(
        started=task.started_at is not None, attempts=task.attempts, flags=task.message.flags
    )


def _recover(
    shard: Shard, task: Task, *, crashed: bool, blocked: bool = False, why: str = ""
) -> None:
    attempt = task.attempts + 1
    begun = task.started_at is not None
    shard.end_lease(task)
    if crashed:
        task.attempts = attempt
        task.crashes = crashes_after(task.crashes, blocked=blocked)
    to, fate = after_crash(
        task.crashes if crashed else 0,
        task.attempts if crashed else 0,
        task.message.flags,
        cancel_requested=task.cancelling,
    )
    reason = "crash" if crashed else why
    if crashed:
        _count(shard, task, begun=begun, again=to is State.QUEUED)
    if to is State.QUEUED:
        task.reason = reason
        shard.queue_up(task, front=not blocked, waits_on=not begun and not crashed)
        shard.emit("recovered", task, reason, attempt, task.token)
    else:
        error = None
        if fate == "poison":
            error = ErrorInfo("Poison", f"its process died {task.crashes} times in a row")
        elif fate:
            error = ErrorInfo("ProcessDied", f"its process died in attempt {attempt}, its last")
        shard.finish(task, to, reason=fate, error=error)
        shard.emit(to, task, fate, attempt, task.token)
    shard.has_room_again(task.tenant)


def _count(shard: Shard, task: Task, *, begun: bool, again: bool) -> None:
    tenant = task.tenant
    tally = tenant.queue.tally
    if not begun:  # nobody had said so
        tally.started(tenant.name, shard.now - task.runnable_since, shard.now)
    tally.add("failed")
    if again:
        tally.add("retried")


def sweep(shard: Shard) -> tuple[int, bool, bool]:
    """Give back what belongs to the dead: how many, whether there is more, whether guarded.

    When nobody swept for longer than a heartbeat, heartbeats may have been held up as well (a
    frozen server, a jump of its clock): everyone gets one more interval to be heard from.
    """
    now = shard.now
    last, shard.last_sweep = shard.last_sweep, now
    if last is None or now - last > HEARTBEAT:
        shard.guard_until = now + HEARTBEAT
    if now < shard.guard_until:
        return 0, False, True
    count = 0
    while count < MAX_STEP:
        first = shard.lease_ends.first()
        if first is None or first[0] > now:
            return count, False, False
        moved, _ = give_back(shard, first[1], None, MAX_STEP - count)
        count += moved
        if not moved:
            shard.lease_ends.discard(first[1])
    return count, True, False
