"""enqueue, fire: let tasks in, or say why not. A submission is checked in full before a write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fairlead.broker.memory import dependencies, pins, schedules
from fairlead.broker.memory.flow_state import Guard
from fairlead.broker.memory.records import Task, message_bytes
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import MAX_TENANT_BYTES, Firing, Receipt, Submission
from fairlead.model.lifecycle import WAITING, Settlement, State, on_dependency
from fairlead.model.message import Message


def enqueue(shard: Shard, submissions: Sequence[Submission]) -> list[Receipt]:
    """One receipt per submission; later ones may depend on earlier ones."""
    receipts = [_enqueue(shard, submission) for submission in submissions]
    dependencies.follow_up(shard)
    return receipts


def fire(shard: Shard, firings: Sequence[Firing]) -> list[Receipt]:
    """Enqueue for slots that are still to be fired, and move their schedules on, in one step."""
    receipts = []
    refusals: dict[str, Receipt] = {}  # by schedule: later slots must not go before a refused one
    for firing in firings:
        id, name = firing.submission.message.id, firing.schedule
        if not shard.closed and not schedules.may_fire(shard, firing):
            receipts.append(Receipt(id=id, code="stale"))
            continue
        if name in refusals:
            receipts.append(msgspec.structs.replace(refusals[name], id=id))
            continue
        receipt = _enqueue(shard, firing.submission)
        if receipt.code in ("accepted", "duplicate", "conflict"):  # another try would not help
            schedules.fired(shard, firing)
        elif receipt.code != "closed":
            schedules.refused(shard, firing)
            refusals[name] = receipt
        receipts.append(receipt)
    dependencies.follow_up(shard)
    return receipts


def _enqueue(shard: Shard, submission: Submission) -> Receipt:
    if submission.ended is not None:
        return _end(shard, submission, submission.ended)
    refusal = _refusal(shard, submission)
    if refusal is not None:
        return refusal
    parents: list[Task] = []
    failed: tuple[str, State] | None = None
    for dependency in submission.depends_on:
        parent = shard.find(dependency.id)
        if parent is None:
            if not dependency.known:
                id = submission.message.id
                return Receipt(id=id, code="unknown_dependency", detail=dependency.id)
            continue
        verdict = on_dependency(parent.state, submission.on_dependency_failure)
        if verdict == "wait":
            parents.append(parent)
        elif verdict != "met" and failed is None:
            failed = (parent.id, State(verdict))
    # Nothing was written so far, and nothing is refused from here on.
    task = new_task(shard, submission)
    if submission.uses_results:
        pins.take(shard, task, submission.depends_on)
    if failed is not None:
        shard.admit(task, failed[1])
        shard.emit("enqueued", task)
        dependencies.end_for(shard, task, *failed)
    else:
        place(shard, task, submission, parents)
        shard.emit("enqueued", task)
    return Receipt(id=task.id, code="accepted", state=task.state)


def _refusal(shard: Shard, submission: Submission) -> Receipt | None:
    """The answer to a submission that makes no new task, or None."""
    message = submission.message
    id = message.id
    if shard.closed:
        return Receipt(id=id, code="closed")
    fence = submission.fence
    if fence is not None:
        parent = shard.tasks.get(fence.id)
        if parent is None or not parent.leased_as(fence.incarnation, fence.token):
            return Receipt(id=id, code="fenced")
    known = shard.find(id) if id in shard.tasks else None
    if known is not None:
        same = known.same_content(message)
        return Receipt(id=id, code="duplicate" if same else "conflict", state=known.state)
    tomb = shard.tombs.find(message, shard.now) if id in shard.tombs.by_id else None
    if tomb is not None:
        return Receipt(id=id, code="duplicate" if tomb[1] else "conflict", state=tomb[0])
    if submission.unique is not None:
        holder = _holder(shard, (message.tenant, submission.unique.key))
        if holder is not None:
            task = shard.find(holder)
            return Receipt(id=holder, code="duplicate", state=task.state if task else None)
    return _full(shard, message)


def _end(shard: Shard, submission: Submission, ended: Settlement) -> Receipt:
    """Take in a task that ran elsewhere; one that is known and waits ends with it."""
    message, to = submission.message, ended.to
    id = message.id
    if shard.closed:
        return Receipt(id=id, code="closed")
    task = shard.find(id)
    if task is None:
        tomb = shard.tombs.find(message, shard.now)
        if tomb is not None:
            return Receipt(id=id, code="duplicate" if tomb[1] else "conflict", state=tomb[0])
        task = new_task(shard, submission)
        shard.admit(task, to)
        shard.emit("enqueued", task)
    elif not task.same_content(message):
        return Receipt(id=id, code="conflict", state=task.state)
    elif task.state not in WAITING:
        if task.state is to and task.reason == ended.reason:
            return Receipt(id=id, code="duplicate", state=to)
        task.tenant.queue.tally.add("fenced")
        shard.emit("fenced", task)
        return Receipt(id=id, code="fenced")
    if to is State.DEAD:
        task.tenant.queue.tally.add("failed")
    task.attempts += 1
    shard.finish(
        task, to, reason=ended.reason, error=ended.error, result=ended.result, keep=ended.keep
    )
    shard.emit(to, task, ended.reason, task.attempts)
    return Receipt(id=id, code="accepted", state=to)


def _full(shard: Shard, message: Message) -> Receipt | None:
    share = (message.queue, message.tenant)
    queue = shard.queues.get(message.queue)
    if queue is not None and (
        queue.max_waiting is not None or queue.max_tenant_waiting is not None
    ):
        refusal = no_room(shard, share, 1, 1)
        if refusal is not None:
            return Receipt(id=message.id, code=refusal[0], limit=refusal[1])
    limit = no_bytes(shard, share, message_bytes(message))
    return None if limit is None else Receipt(id=message.id, code="tenant_bytes", limit=limit)


def no_room(
    shard: Shard, share: tuple[str, str], many: int, in_queue: int
) -> tuple[Literal["queue_full", "tenant_full"], int] | None:
    """Why so many more tasks of a tenant, of so many more of its queue, cannot wait; and the limit.

    What is reserved for flows is not there for others.
    """
    name, tenant_name = share
    queue = shard.queues.get(name)
    if queue is None:
        return None
    limit = queue.max_waiting
    if limit is not None and queue.depth + shard.reserved[name, ""] + in_queue > limit:
        return "queue_full", limit
    limit = queue.max_tenant_waiting
    if limit is not None:
        tenant = queue.tenants.get(tenant_name)
        waits = len(tenant.waiting) if tenant is not None else 0
        if waits + shard.reserved[share] + many > limit:
            return "tenant_full", limit
    return None


def no_bytes(shard: Shard, share: tuple[str, str], many: int) -> int | None:
    """The limit, if so many bytes more of a tenant are too much.

    What is reserved for flows is not there for others.
    """
    name, tenant_name = share
    queue = shard.queues.get(name)
    limit = MAX_TENANT_BYTES if queue is None else queue.max_tenant_bytes
    tenant = None if queue is None else queue.tenants.get(tenant_name)
    has = shard.reserved_bytes.get(share, 0) + (0 if tenant is None else tenant.live_bytes)
    return limit if limit is not None and has + many > limit else None


def new_task(shard: Shard, submission: Submission) -> Task:
    """The task, with what it holds from the start: its unique key, its policy."""
    message, unique = submission.message, submission.unique
    stale = shard.tasks.get(message.id)
    if stale is not None:  # past its retention, not tidied away yet
        shard.forget(stale)
    tenant = shard.tenant(shard.queue(message.queue), message.tenant)
    task = Task(message, tenant, 0, shard.now)
    if unique is not None:
        task.unique = unique
        key = (message.tenant, unique.key)
        shard.unique[key] = message.id
        if unique.until == "window":
            shard.windows.set(key, shard.now + unique.window)
        else:
            shard.windows.discard(key)  # of a holder whose window is over
    if submission.depends_on:
        task.policy = submission.on_dependency_failure
    return task


def place(
    shard: Shard, task: Task, submission: Submission, parents: Sequence[Task | Guard]
) -> None:
    """Put a new task where it belongs: behind its parents, its delay, or in its level."""
    if submission.deadline is not None:
        task.deadline_at = shard.now + submission.deadline
        shard.must_start(task)
    due = shard.now + submission.delay if submission.at is None else submission.at
    if due > shard.now:
        task.due_at = due
    if parents:
        shard.admit(task, State.DEFERRED)
        for parent in parents:
            dependencies.attach(task, parent)
    elif task.due_at is not None:
        shard.admit(task, State.SCHEDULED)
        shard.sleep(task, task.due_at)
    else:
        shard.admit(task, State.QUEUED)
        shard.enter_level(task)


def _holder(shard: Shard, key: tuple[str, str]) -> str | None:
    holder = shard.unique.get(key)
    if holder is None:
        return None
    ends = shard.windows.get(key)
    return None if ends is not None and ends <= shard.now else holder
