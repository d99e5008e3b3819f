"""Pins: a task whose result others will read is kept until the last of them is over.

A pinned task that has completed stands on no shelf, so that no limit of the retention counts it.
One that is dead or was cancelled has no result: it is kept as if nobody had pinned it. Otherwise a
task that waits for it to be put to work again would wait for ever.

A tenant has so much room for what is kept in this way. What is beyond it is kept on its shelf, like
any other task: whoever comes too late for its result is told that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.broker.memory.records import Task
from fairlead.broker.requests import MAX_STEP
from fairlead.model.lifecycle import State, may_return
from fairlead.model.options import Dependency

if TYPE_CHECKING:
    from fairlead.broker.memory.transitions import Shard


def take(shard: Shard, task: Task, depends_on: Iterable[Dependency]) -> None:
    """Pin all that the shard knows of what a new task depends on."""
    parents = {dependency.id: shard.find(dependency.id) for dependency in depends_on}
    task.uses = tuple((id, parent.sequence) for id, parent in parents.items() if parent is not None)
    for parent in parents.values():
        if parent is not None:
            _pin(parent)


def release(shard: Shard, task: Task) -> None:
    """A task that uses results is over: its pins go, in steps. It may be put back to work."""
    shard.unpins.extend((False, *use) for use in task.uses)
    if not may_return(task.state, task.reason):
        task.uses = ()


def retake(shard: Shard, task: Task) -> None:
    """A task was put to work again: pin what is left of what it uses, in steps."""
    shard.unpins.extend((True, *use) for use in task.uses)


def settle_pins(shard: Shard) -> int:
    """Set or take away up to MAX_STEP pins, in the order in which they were to."""
    done = 0
    while shard.unpins and done < MAX_STEP:
        done += 1
        again, id, sequence = shard.unpins.popleft()
        parent = shard.tasks.get(id)
        if parent is None or parent.sequence != sequence:
            continue  # deleted, or forgotten before it could be pinned again
        if not again:
            _unpin(shard, parent)
        elif shard.find(id) is None:
            shard.forget(parent)  # past its retention, not tidied away yet
        else:
            _pin(parent)
    return done


def pinned(shard: Shard, id: str) -> bool:
    """Whether somebody will still read what this task left."""
    task = shard.tasks.get(id)
    return task is not None and task.pins > 0


def set_aside(task: Task, keep: float | None) -> bool:
    """Keep a completed task because it is pinned, if there is room for it; whether there is."""
    if not _fits(task):
        task.over = True
        return False
    task.keep, task.size = keep, task.counted_bytes()
    task.tenant.pinned_bytes += task.size
    return True


def leave(task: Task) -> None:
    """A task that was kept because it was pinned no longer is."""
    task.tenant.pinned_bytes -= task.size
    task.size = 0


def _fits(task: Task) -> bool:
    limit = task.tenant.queue.max_tenant_pinned_bytes
    return limit is None or task.tenant.pinned_bytes + task.counted_bytes() <= limit


def _pin(parent: Task) -> None:
    if not parent.pins and parent.state is State.COMPLETED:
        if _fits(parent):
            since = parent.kept_since or parent.finished_at or 0.0
            keep = (parent.expires_at or 0.0) - since
            parent.tenant.queue.shelf(parent.state).remove(parent)
            set_aside(parent, keep)
        else:
            parent.over = True
    parent.pins += 1


def _unpin(shard: Shard, parent: Task) -> None:
    aside = parent.aside
    parent.pins -= 1
    if not parent.pins:
        parent.over = False
        if aside:
            leave(parent)
            parent.kept_since = shard.now
            shard.shelve(parent, parent.keep)
