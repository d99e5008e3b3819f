"""Orders of operators, clients and running handlers: from alter and configure to note."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

from fairlead.broker.checks import CAPS, changed_breaker, changed_limit
from fairlead.broker.documents import DocumentChange, DocumentChanged
from fairlead.broker.leadership import Leadership
from fairlead.broker.memory import dependencies, pins, settings
from fairlead.broker.memory import flow_state as flows
from fairlead.broker.memory.fair import IDLE, PARKED, PAUSED, Queue, Tenant
from fairlead.broker.memory.limits import Gate
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import (
    MAX_MOVES,
    Alter,
    Altered,
    Change,
    Declaration,
    LimiterChange,
    QueueChange,
    Seen,
    Setting,
    Settled,
    TenantChange,
    Watched,
    Write,
)
from fairlead.model.clock import next_number
from fairlead.model.lifecycle import FINAL, WAITING, State
from fairlead.model.limits import UNLIMITED
from fairlead.model.log_lines import with_checkpoint, with_lines
from fairlead.model.message import LEVEL_NAMES

T = TypeVar("T")


# -- alter -------------------------------------------------------------------------------------


def alter(shard: Shard, orders: Sequence[Alter]) -> list[Altered]:
    """Carry out orders about tasks; one answer per order."""
    answers = [_alter(shard, order) for order in orders]
    dependencies.follow_up(shard)
    return answers


def _alter(shard: Shard, order: Alter) -> Altered:
    task = shard.find(order.id)
    tomb = shard.tombs.tenant(order.id, shard.now) if task is None else None
    if tomb is not None and order.action == "delete" and order.tenant in (None, tomb):
        shard.tombs.remove(order.id)
        return Altered(id=order.id, code="done")
    if task is None or (order.tenant is not None and order.tenant != task.message.tenant):
        return Altered(id=order.id, code="unknown")
    state = task.state
    seen = order.seen
    if seen is not None and seen != Seen(
        state=state, generation=task.generation, attempts=task.attempts
    ):
        return Altered(id=order.id, code="unchanged", state=state)
    if order.action == "cancel":
        return cancel(shard, task)
    if order.action == "run":
        return _run(shard, task)
    if order.action == "prioritize" and order.level is not None:
        return _prioritize(shard, task, order.level)
    if order.action == "requeue":
        if state is not State.DEAD:
            return Altered(id=order.id, code="unchanged", state=state)
        task.tenant.queue.dead.remove(task)
        if task.flow is not None:
            flows.count(shard, task.flow, state, -1)
        task.generation += 1
        task.attempts = task.crashes = task.unroutable = 0
        task.finished_at = task.deadline_at = task.kept_since = None
        task.reason, task.cancelling = "", False
        shard.queue_up(task)
        pins.retake(shard, task)
        shard.emit("requeued", task)
        return Altered(id=order.id, code="done", state=State.QUEUED)
    if state not in FINAL:
        return Altered(id=order.id, code="unchanged", state=state)
    shard.emit("deleted", task)
    shard.forget(task)
    return Altered(id=order.id, code="done")


def _run(shard: Shard, task: Task) -> Altered:
    """Queue a task that is due later."""
    if task.state not in (State.SCHEDULED, State.RETRYING):
        return Altered(id=task.id, code="unchanged", state=task.state)
    shard.wake(task)
    task.due_at = min(task.due_at or 0.0, shard.now)
    shard.queue_up(task)
    shard.emit("queued", task, "run")
    return Altered(id=task.id, code="done", state=State.QUEUED)


def _prioritize(shard: Shard, task: Task, level: int) -> Altered:
    """Let a task stand in another level, now or when it gets there."""
    if task.state not in WAITING or task.level == level or task.moves >= MAX_MOVES:
        return Altered(id=task.id, code="unchanged", state=task.state)
    task.level = level
    task.moves += 1
    if task.entry is not None:
        task.entry[0] = None
        task.tenant.add_hole()
        shard.enter_level(task)
    shard.emit("prioritized", task, LEVEL_NAMES[level])
    return Altered(id=task.id, code="done", state=task.state)


def cancel(shard: Shard, task: Task) -> Altered:
    """End a task that waits, ask for the end of one that runs."""
    state = task.state
    if state is State.RUNNING:
        if not task.cancelling:
            task.cancelling = True
            shard.emit("cancelling", task, "", task.attempts + 1, task.token)
            shard.write_to(task.incarnation, "cancel", task.id, token=task.token)
        return Altered(id=task.id, code="requested", state=state)
    if state in FINAL:
        return Altered(id=task.id, code="unchanged", state=state)
    shard.finish(task, State.CANCELLED)
    shard.emit("cancelled", task)
    return Altered(id=task.id, code="done", state=State.CANCELLED)


# -- configure ---------------------------------------------------------------------------------


def configure(shard: Shard, changes: Sequence[Change]) -> None:
    """Carry out changes that were checked."""
    for each in changes:
        change = each
        if isinstance(change, Declaration):
            change = change.change
            if not _is_new(shard, change):
                continue
        if isinstance(change, QueueChange):
            _configure_queue(shard, change)
        elif isinstance(change, TenantChange):
            _configure_tenant(shard, change)
        else:
            _configure_limiter(shard, change)


def _is_new(shard: Shard, change: Setting) -> bool:
    """Whether something else was declared last, or nothing; keep what is declared now."""
    if isinstance(change, QueueChange):
        target: tuple[str, ...] = ("q", change.queue)
    elif isinstance(change, TenantChange):
        target = ("t", change.tenant, change.queue or "")
    else:
        target = ("l", change.name)
    known = shard.declared.get(target)
    shard.declared[target] = change
    return known != change


def _configure_queue(shard: Shard, change: QueueChange) -> None:
    queue = shard.queue(change.queue)
    for name in ("paused", *CAPS, "charge_run_time", "strict_priorities"):
        value = getattr(change, name)
        if value is not UNSET:
            setattr(queue, name, value)
    if queue.warn_depth is None or queue.depth < queue.warn_depth:
        queue.warned = False
    limit = changed_limit(queue.gate.limit if queue.gate else UNLIMITED, change)
    if limit == UNLIMITED:
        queue.gate = None
    elif queue.gate is None:
        queue.gate = Gate(limit)
    else:
        queue.gate.limit = limit
    shard.alarms.discard((queue.name, ""))
    finished, dead = queue.finished, queue.dead
    finished.keep = _said(change.keep_completed, finished.keep)
    finished.max_count = _said(change.keep_completed_count, finished.max_count)
    finished.max_bytes = _said(change.keep_completed_bytes, finished.max_bytes)
    dead.keep = _said(change.keep_dead, dead.keep)
    dead.max_bytes = _said(change.keep_dead_bytes, dead.max_bytes)
    queue.configured = True
    shard.look_at(queue, shard.now)  # it may keep more than it is to keep from now on
    shard.rung.add(queue.name)
    _emit(shard, queue.name, "", "paused" if queue.paused else "")


def _said(value: T | UnsetType, otherwise: T) -> T:
    return otherwise if isinstance(value, UnsetType) else value


def _configure_tenant(shard: Shard, change: TenantChange) -> None:
    key = (change.queue or "", change.tenant)
    shard.tenant_settings[key] = settings.laid_over(
        shard.tenant_settings.get(key), change, change.tenant
    )
    queues = [shard.queue(change.queue)] if change.queue else list(shard.queues.values())
    for queue in queues:
        tenant = queue.tenants.get(change.tenant)
        if tenant is not None:
            settings.apply(tenant, shard.tenant_settings)
            _reconsider(shard, queue, tenant)
    _emit(shard, change.queue or "", change.tenant, "paused" if change.paused is True else "")


def _reconsider(shard: Shard, queue: Queue, tenant: Tenant) -> None:
    """Pause a tenant, or let it be looked at again under its new limits."""
    shard.alarms.discard((queue.name, tenant.name))
    if tenant.paused:
        if tenant.status is not IDLE:
            shard.unready(tenant, PAUSED)
    elif tenant.status in (PAUSED, PARKED):
        shard.make_ready(tenant)


def _configure_limiter(shard: Shard, change: LimiterChange) -> None:
    limiter = shard.limiter(change.name)
    limiter.limit = changed_limit(limiter.limit, change)
    if limiter.limit == UNLIMITED:
        limiter.limit = UNLIMITED  # the very object: that is how an unused limiter is known
    breaker = changed_breaker(limiter.breaker, change)
    limiter.set_breaker(breaker, now=shard.now, last_token=shard.token)
    shard.alarms.discard(("", limiter.name))
    shard.wake_limiter(limiter)
    _emit(shard, "", "", f"limiter {limiter.name}")


def _emit(shard: Shard, queue: str, tenant: str, reason: str) -> None:
    shard.stream.rows.append(("configured", "", queue, tenant, "", 0, 0, reason))


# -- write, pull, watch ------------------------------------------------------------------------


def write(shard: Shard, writes: Sequence[Write]) -> list[Settled]:
    """Carry out a worker's writes, each under the lease of its task."""
    answers: list[Settled] = []
    for item in writes:
        task = shard.find(item.lease.id)
        if task is None:
            answers.append("unknown")
            continue
        if not task.leased_as(item.lease.incarnation, item.lease.token):
            answers.append("fenced")
            continue
        answers.append("applied")
        if item.kind == "progress":
            task.progress = item.value
            shard.weigh(task)
            shard.emit("progress", task, "", task.attempts + 1, task.token)
        elif item.kind == "checkpoint":
            task.kept = with_checkpoint(task.kept, item.value)
            shard.weigh(task)
        elif item.kind == "log":
            task.kept = with_lines(task.kept, item.value)
            shard.weigh(task)
        else:
            key = (task.message.tenant, item.key)
            if not shard.put_xcom(key, item.value, shard.now + item.ttl, task.id):
                answers[-1] = "full"
    return answers


def pull(shard: Shard, tenant: str, keys: Sequence[str]) -> list[bytes | None]:
    """XCom values whose time is not over, or whose writer is pinned."""
    values: list[bytes | None] = []
    for key in keys:
        value, ends, writer = shard.xcom.get((tenant, key), (None, 0.0, ""))
        alive = ends > shard.now or pins.pinned(shard, writer)
        values.append(value if alive else None)
    return values


def watch(shard: Shard, incarnation: str, ids: Sequence[str]) -> list[Watched]:
    """Answer for what is final or unknown; remember who wants to hear of the rest."""
    shard.touch(incarnation)
    answers: list[Watched] = []
    for id in ids:
        task = shard.find(id)
        if task is None and (flow := flows.visible(shard, id)) is not None:
            answers.append(Watched(id, flow.state))
            if flow.state is State.RUNNING:
                flow.watchers[incarnation] = None
            continue
        answers.append(Watched(id, task.state if task is not None else None))
        if task is not None and task.state not in FINAL:
            if task.watchers is None:
                task.watchers = {}
            task.watchers[incarnation] = None
    return answers


# -- documents, trails, leaders ----------------------------------------------------------------


def write_documents(shard: Shard, changes: Sequence[DocumentChange]) -> list[DocumentChanged]:
    """Write or delete; each write has a revision of its own."""
    answers = []
    for change in changes:
        number = next_number(shard.token, shard.now)
        answers.append(shard.documents.change(change, number, shard.now))
        shard.token = max(shard.token, answers[-1].revision)
    return answers


def note(shard: Shard, trail: str, values: Sequence[bytes]) -> None:
    """Append to a trail."""
    shard.token = shard.trails.append(trail, values, shard.token, shard.now)


def lead(shard: Shard, name: str, holder: str, seconds: float | None) -> Leadership:
    """Hold a name for so long, unless another holder does; None: give it up."""
    if seconds is None:
        return shard.leaders.release(name, holder, shard.now)
    number = next_number(shard.token, shard.now)
    held = shard.leaders.lead(name, holder, seconds, number, shard.now)
    shard.token = max(shard.token, held.term)
    return held
