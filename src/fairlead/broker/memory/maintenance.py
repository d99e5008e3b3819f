"""promote, deliver, tidy, purge: what has to be done in time, in steps that are never large."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fairlead.broker.memory import dependencies, flow_state, pins
from fairlead.broker.memory.fair import PARKED, Queue, Tenant
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.state import IDLE_FOR
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import MAX_STEP, Deleted
from fairlead.broker.stats import HOUR
from fairlead.model.lifecycle import WAITING, State
from fairlead.model.message import ErrorInfo

_BULK = 5  # tasks that are queued for the price of one that ends

_LOOK_PAUSE = 1.0  # seconds until a queue is looked at again that could not be trimmed
_LOOK_AGAIN = 60.0  # seconds until a value is looked at again that is kept for a pinned task


def promote(shard: Shard) -> tuple[int, bool]:
    """Queue what is due, end what is past its deadline, unpark tenants whose rate allows it."""
    now = shard.now
    late = Late()
    moved = rang = 0
    while late.ends < MAX_STEP and (id := shard.deadlines.pop_due(now)) is not None:
        task = shard.tasks[id]
        late.ends += dependencies.WIDE if task.wide else 1
        moved += 1
        expire(shard, task)
    moved += _promote_due(shard, late)
    while rang < MAX_STEP and (alarm := shard.alarms.pop_due(now)) is not None:
        rang += 1
        _ring(shard, *alarm)
    dependencies.follow_up(shard)
    first = shard.due.first()
    left = first is not None and first[0] <= now
    return moved + rang, late.ends >= MAX_STEP or rang >= MAX_STEP or left


class Late:
    """How much one call has ended for deadlines, of MAX_STEP."""

    ends = 0


def _promote_due(shard: Shard, late: Late) -> int:
    """Look at tenants whose time has come, those first that were looked at the longest ago."""
    keys = shard.due.firsts(MAX_STEP, shard.now)
    if not keys:
        return 0
    each = max(1, max(MAX_STEP, (MAX_STEP - late.ends) * _BULK) // len(keys))
    return sum(
        promote_tenant(shard, shard.queues[queue].tenants[name], each, late) for queue, name in keys
    )


def promote_tenant(shard: Shard, tenant: Tenant, most: int, late: Late) -> int:
    """Queue up to so many tasks of a tenant that are due, in the order of time; how many."""
    moved = 0
    while moved < most and late.ends < MAX_STEP:
        found = tenant.due.pop_due(shard.now)
        if found is None:
            break
        moved += 1
        task = shard.tasks[found[1]]
        if task.deadline_at is not None and task.deadline_at < shard.now:
            late.ends += 1
            expire(shard, task)
        else:
            shard.queue_up(task)
            shard.emit("queued", task)
    shard.looked_at(tenant, shard.now)
    return moved


def _ring(shard: Shard, queue_name: str, name: str) -> None:
    """A rate has a token again: of a named limiter, a whole queue, or one tenant of it."""
    if not queue_name:
        limiter = shard.limiters.get(name)
        if limiter is not None:
            shard.wake_limiter(limiter)
        return
    queue = shard.queues.get(queue_name)
    if queue is None:  # deleted since
        return
    if not name:
        shard.rung.add(queue_name)
        return
    tenant = queue.tenants.get(name)
    if tenant is not None and tenant.status is PARKED and tenant.parked_on is tenant.gate:
        shard.make_ready(tenant)


def expire(shard: Shard, task: Task) -> None:
    """End a task that did not start in time."""
    if task.state not in WAITING:
        return
    error = ErrorInfo("Expired", "its deadline passed before it could start")
    shard.finish(task, State.DEAD, reason="expired", error=error)
    shard.emit("dead", task, "expired")


def tidy(shard: Shard) -> tuple[int, bool]:
    """Forget what is past its retention or TTL, whatever kind of thing it is."""
    now = shard.now
    done, left = _trim_due(shard)
    held = 0
    while done + held < MAX_STEP and (key := shard.xcom_ends.pop_due(now)) is not None:
        if pins.pinned(shard, shard.xcom[key][2]):
            shard.xcom_ends.set(key, now + _LOOK_AGAIN)
            held += 1
        else:
            shard.drop_xcom(key)
            done += 1
    while done < MAX_STEP and (key := shard.windows.pop_due(now)) is not None:
        shard.unique.pop(key, None)
        done += 1
    done += shard.tombs.expire(MAX_STEP - done, now)
    done += shard.documents.expire(MAX_STEP - done, now)
    done += flow_state.trim(shard, MAX_STEP - done)
    while done < MAX_STEP and (first := shard.stages.first()) is not None and first[0] <= now:
        flow_state.drop(shard, shard.flows[first[1]])
        done += 1
    done += _forget_workers(shard, MAX_STEP - done)
    done += _forget_hours(shard, MAX_STEP - done)
    while done < MAX_STEP and (name := shard.idle_ends.pop_due(now)) is not None:
        box = shard.mailboxes.get(name)
        if (box is not None and box.listened_to) or name in shard.incarnations:
            shard.touch(name)  # somebody still listens, or has leases and may repeat its last call
            continue
        shard.answers.pop(name, None)
        shard.mailboxes.pop(name, None)
        done += 1
    dependencies.follow_up(shard)
    return done, left or done + held >= MAX_STEP


def _forget_hours(shard: Shard, most: int) -> int:
    """Drop counts of hours that nobody is shown any longer; look for them once an hour."""
    hour = int(shard.now // HOUR)
    if hour == shard.hours_forgotten:
        return 0
    done = 0
    for queue in shard.queues.values():
        if done >= most:
            return done
        done += queue.tally.forget(most - done, shard.now)
    shard.hours_forgotten = hour
    return done


def _trim_due(shard: Shard) -> tuple[int, bool]:
    """Look at the queues whose time has come; how many things went, whether others are left."""
    count = looked = 0
    while looked < MAX_STEP and (first := shard.trims.first()) is not None:
        if first[0] > shard.now:
            return count, False
        looked += 1
        queue = shard.queues[first[1]]
        count += shard.trim(queue.name, MAX_STEP - count)
        if count >= MAX_STEP:
            return count, True
        count += _look_again(shard, queue)
    return count, looked == MAX_STEP


def _look_again(shard: Shard, queue: Queue) -> int:
    """Say when to look at a queue again, or forget it; how many went."""
    ends = queue.emptied_at + IDLE_FOR if queue.empty else None
    unused = not queue.configured and not shard.reserved[queue.name, ""]
    if ends is not None and ends <= shard.now and unused:
        shard.remove_queue(queue)
        return 1
    over = queue.first_over()
    at = ends if over is None else over
    if at is None:
        shard.trims.discard(queue.name)
    else:
        shard.trims.set(queue.name, max(at, shard.now + _LOOK_PAUSE))
    return 0


def _forget_workers(shard: Shard, most: int) -> int:
    """Forget workers that fell silent, unless they hold leases: somebody may look for those."""
    done = 0
    kept: list[str] = []
    while done < most and (name := shard.worker_ends.pop_due(shard.now)) is not None:
        if name in shard.incarnations:
            kept.append(name)
        else:
            shard.forget_worker(name)
            done += 1
    for name in kept:
        shard.worker_ends.set(name, shard.now)
    return done


def delete_queue(shard: Shard, name: str) -> Deleted:
    """Forget a queue that has nothing to run, and what it keeps; what was dead leaves an event."""
    queue = shard.queues.get(name)
    if queue is None:
        return Deleted(now=shard.now)
    refusal = Deleted(
        now=shard.now,
        waiting=queue.depth + shard.reserved[name, ""],
        running=queue.counts[State.RUNNING],
        pinned=queue.aside,
    )
    if refusal.refused:
        return refusal
    count = 0
    for shelf in (queue.finished, queue.dead):
        while count < MAX_STEP and (id := shelf.pop()) is not None:
            task = shard.tasks[id]
            if task.state is State.DEAD:
                shard.emit("deleted", task)
            shard.forget(task)
            count += 1
    dependencies.follow_up(shard)
    if queue.empty:
        shard.remove_queue(queue)
    return Deleted(now=shard.now, count=count, more=not queue.empty)


def purge(shard: Shard, queue: Queue, tenant: str | None) -> tuple[int, bool]:
    """Cancel what waits; dependents are told in the same steps as after any other end."""
    lines: Iterable[Tenant] = queue.active.values()
    if tenant is not None:
        lines = [queue.tenants[tenant]] if tenant in queue.tenants else []
    doomed: list[Task] = []
    for line in lines:
        doomed.extend(islice(line.waiting.values(), MAX_STEP - len(doomed)))
        if len(doomed) >= MAX_STEP:
            break
    for task in doomed:
        if task.state in WAITING:
            shard.finish(task, State.CANCELLED, reason="purged")
            shard.emit("cancelled", task, "purged")
    dependencies.follow_up(shard)
    left = queue.depth if tenant is None else sum(len(line.waiting) for line in lines)
    return len(doomed), left > 0
