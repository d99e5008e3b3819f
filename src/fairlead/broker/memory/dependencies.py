"""Dependencies: what a task still waits for, and what its end means for those that wait for it."""

from __future__ import annotations

from fairlead.broker.memory import pins
from fairlead.broker.memory.flow_state import Guard
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import MAX_STEP
from fairlead.model.lifecycle import FINAL, State, on_dependency
from fairlead.model.message import ErrorInfo

_FEW = 16  # parents; the end of a task that waits for more has to be told to many
WIDE = 17  # as how much such an end counts, of MAX_STEP
_EASED = 5  # tasks that lose a dependency and go on waiting, for the price of one that is released


def attach(task: Task, parent: Task | Guard) -> None:
    """Let a task wait for a parent; both sides know of it."""
    if task.blocked_by is None:
        task.blocked_by = {}
    task.blocked_by[parent.id] = None
    if len(task.blocked_by) > _FEW:
        task.wide = True
    if parent.dependents is None:
        parent.dependents = {}
    parent.dependents[task.id] = task


def follow_up(shard: Shard) -> None:
    """See to what the ends of tasks in this call bring with them; every verb closes with it."""
    if shard.ended:
        shard.trim_ended()
    if shard.releases:
        deliver(shard)
        shard.trim_ended()
    if shard.unpins:
        pins.settle_pins(shard)
        shard.trim_ended()


def deliver(shard: Shard) -> int:
    """Tell up to MAX_STEP waiting tasks, in all of a call, of the end of a parent; how many.

    A task that ends because of its parent has dependents of its own: they join the end of the line,
    so that a long chain or a wide tree is never walked in one go.
    """
    before = shard.told
    releases = shard.releases
    while releases and shard.told < MAX_STEP:
        parent, state, children = releases[0]
        while children and shard.told < MAX_STEP:
            child = children.popleft()
            if child.blocked_by is not None and parent.id in child.blocked_by:
                shard.told += _told(shard, child, parent, state)
        if not children:
            # Telling a child may have added to the end of the line, never to its front.
            releases.popleft()
    return shard.told - before


def _told(shard: Shard, child: Task, parent: Task | Guard, state: State | None) -> int:
    """Tell a task of an end; as how much that counts."""
    wide, edges = child.wide, len(child.blocked_by or ())
    _tell(shard, child, parent, state)
    if child.state in FINAL:
        return WIDE if wide else 1
    if len(child.blocked_by or ()) == edges - 1 > 0:
        shard.eased += 1
        return int(shard.eased % _EASED == 1)
    return 1


def _place(shard: Shard, task: Task, parent: Task | Guard) -> None:
    """Put a deferred task, whose last dependency is met, where it belongs now."""
    if task.flow is not None and task.flow.work == "retry":
        attach(task, task.flow.guard)  # none runs before all were seen to
    elif task.due_at is not None and task.due_at > shard.now:
        shard.schedule(task, State.SCHEDULED, task.due_at)
        shard.emit("scheduled", task)
    else:
        ended = None
        if isinstance(parent, Task) and shard.tasks.get(parent.id) is parent:
            ended = parent.finished_at
        task.tenant.queue.tally.release.add(shard.now - (ended or shard.now))
        shard.queue_up(task)
        shard.emit("queued", task)


def _tell(shard: Shard, child: Task, parent: Task | Guard, state: State | None) -> None:
    """Tell a task how a parent ended; None: it was forgotten, waiting is no use any longer."""
    verdict = on_dependency(state or State.DEAD, child.policy)
    if verdict == "wait":
        if shard.tasks.get(parent.id) is not parent:  # its id may belong to another task by now
            verdict = State.DEAD
        else:
            verdict = on_dependency(parent.state, "wait")  # it may have been put to work again
    if verdict == "wait":
        attach(child, parent)
    elif verdict == "met":
        _met(shard, child, parent)
    else:
        end_for(shard, child, parent.id, State(verdict))


def _met(shard: Shard, child: Task, parent: Task | Guard) -> None:
    shard.unlink(child, parent.id)
    if child.blocked_by is not None:
        del child.blocked_by[parent.id]
        if not child.blocked_by:
            child.blocked_by, child.wide = None, False
            _place(shard, child, parent)


def end_for(shard: Shard, child: Task, parent_id: str, to: State) -> None:
    """End a task because of its parent; the reason names the parent."""
    reason = f"dependency_failed: {parent_id}"
    error = ErrorInfo(
        "DependencyFailed", f"task {parent_id}, which it depends on, did not complete"
    )
    shard.finish(child, to, reason=reason, error=error)
    shard.emit(to.value, child, reason)
