"""Flows in the memory broker: written in parts, committed by one write, seen to in steps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from fairlead.broker.flow_checks import check_flow_order, check_members, check_part
from fairlead.broker.flows import (
    FLOW_PATIENCE,
    MAX_SHOWN_EDGES,
    FlowMember,
    FlowOrder,
    FlowPart,
    FlowRecord,
    Staged,
)
from fairlead.broker.memory import dependencies, enqueue, operator_verbs, pins
from fairlead.broker.memory.flow_state import Flow, Guard, Work, count, drop, visible
from fairlead.broker.memory.records import Task, message_bytes
from fairlead.broker.memory.session import Session
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.requests import MAX_STEP, Call, Moved, Submission
from fairlead.model.lifecycle import FINAL, State, may_return, on_dependency


async def stage(
    session: Session, call: Call, part: FlowPart, *, now: float | None = None
) -> Staged:
    check_part(part)
    return session.numbered("stage", call, now, lambda shard: _stage(shard, part, call.incarnation))


async def commit(session: Session, call: Call, flow: str, *, now: float | None = None) -> Staged:
    return session.numbered(
        "commit", call, now, lambda shard: _commit(shard, flow, call.incarnation)
    )


async def alter_flow(
    session: Session, call: Call, order: FlowOrder, *, now: float | None = None
) -> Moved | None:
    check_flow_order(order)
    return session.numbered("alter_flow", call, now, lambda shard: _alter(shard, order))


async def flows(
    session: Session, ids: Sequence[str], *, now: float | None = None
) -> list[FlowRecord | None]:
    return session.do(
        now,
        lambda shard: [
            flow.record() if (flow := visible(shard, id)) is not None else None for id in ids
        ],
    )


async def members(
    session: Session, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
) -> list[str]:
    return [member.id for member in await graph(session, flow, start=start, limit=limit, now=now)]


async def graph(
    session: Session, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
) -> list[FlowMember]:
    check_members(start, limit)

    def step(shard: Shard) -> list[FlowMember]:
        found = visible(shard, flow)
        entries = found.entries[start : start + limit] if found is not None else []
        return [_member(entry) for entry in entries]

    return session.do(now, step)


def _member(entry: Submission) -> FlowMember:
    ids = tuple(dict.fromkeys(dependency.id for dependency in entry.depends_on))
    more = len(ids) >= MAX_SHOWN_EDGES
    return FlowMember(id=entry.message.id, depends_on=ids[:MAX_SHOWN_EDGES], more=more)


# -- stage -------------------------------------------------------------------------------------


def _stage(shard: Shard, part: FlowPart, writer: str) -> Staged:
    if shard.closed:
        return Staged(code="closed")
    flow = shard.flows.get(part.flow)
    if flow is not None and _is_over(shard, flow):
        drop(shard, flow)
        flow = None
    if part.number == 0:
        if flow is not None and flow.committed_at is not None:
            return Staged(code="duplicate")
        if flow is not None:
            drop(shard, flow)
        flow = Flow(part, writer)
        refusal = _full(shard, flow)
        if refusal is not None:
            return refusal
        shard.flows[flow.id] = flow
        for share, many in flow.shares.items():
            shard.reserve(share, many)
    elif flow is None or flow.committed_at is not None or flow.writer != writer:
        return Staged(code="unknown")
    elif part.number < flow.parts:
        return Staged(code="staged")
    refusal = _refusal(shard, flow, part)
    if refusal is not None:
        drop(shard, flow)
        return refusal
    _write(shard, flow, part)
    return Staged(code="staged")


def _write(shard: Shard, flow: Flow, part: FlowPart) -> None:
    flow.parts += 1
    for member in part.members:
        flow.left[_share(member)] -= 1
    for share, size in _weights(part).items():
        flow.bytes[share] += size
        shard.reserve_bytes(share, size)
    flow.entries += part.members
    flow.ids.update(member.message.id for member in part.members)
    shard.stages.set(flow.id, shard.now + FLOW_PATIENCE)


def _is_over(shard: Shard, flow: Flow) -> bool:
    """Whether the time of a flow is over: for its commit, or to be remembered."""
    ends = (shard.stages if flow.committed_at is None else shard.flow_ends).get(flow.id)
    return ends is not None and ends <= shard.now


def _share(member: Submission) -> tuple[str, str]:
    return member.message.queue, member.message.tenant


def _weights(part: FlowPart) -> Counter[tuple[str, str]]:
    """What the members of a part will count for, by queue and tenant."""
    weights: Counter[tuple[str, str]] = Counter()
    for member in part.members:
        weights[_share(member)] += message_bytes(member.message)
    return weights


def _full(shard: Shard, flow: Flow) -> Staged | None:
    in_queues: Counter[str] = Counter()
    for (queue, _), many in flow.shares.items():
        in_queues[queue] += many
    for share, many in flow.shares.items():
        refusal = enqueue.no_room(shard, share, many, in_queues[share[0]])
        if refusal is not None:
            code, limit = refusal
            return Staged(code=code, limit=limit, detail=share[0])
    return None


def _refusal(shard: Shard, flow: Flow, part: FlowPart) -> Staged | None:
    """Why a part cannot be written; nothing was so far."""
    if part.number > flow.parts:
        return Staged(code="incomplete", detail=f"part {flow.parts}")
    new: set[str] = set()
    many: Counter[tuple[str, str]] = Counter()
    for member in part.members:
        id = member.message.id
        buried = shard.tombs.tenant(id, shard.now) is not None
        if shard.find(id) is not None or buried or id in flow.ids:
            return Staged(code="known", detail=id)
        for dependency in member.depends_on:
            known = dependency.known or dependency.id in new or dependency.id in flow.ids
            if not known and shard.find(dependency.id) is None:
                return Staged(code="unknown_dependency", detail=dependency.id)
        new.add(id)
        share = _share(member)
        many[share] += 1
        if many[share] > flow.left.get(share, 0):
            return Staged(code="incomplete", detail=share[0])
    for share, size in _weights(part).items():
        limit = enqueue.no_bytes(shard, share, size)
        if limit is not None:
            return Staged(code="tenant_bytes", limit=limit, detail=share[0])
    return None


# -- commit, orders ----------------------------------------------------------------------------


def _commit(shard: Shard, id: str, writer: str) -> Staged:
    if shard.closed:
        return Staged(code="closed")
    flow = shard.flows.get(id)
    if flow is None or _is_over(shard, flow):
        return Staged(code="unknown")
    if flow.committed_at is not None:
        return Staged(code="committed" if flow.writer == writer else "duplicate")
    if flow.writer != writer:
        return Staged(code="unknown")
    missing = next((share for share, left in flow.left.items() if left), None)
    if missing is not None:
        drop(shard, flow)
        return Staged(code="incomplete", detail=missing[0])
    flow.committed_at = shard.now
    flow.shares, flow.left, flow.ids, flow.bytes = {}, {}, set(), Counter()
    shard.stages.discard(id)
    shard.stream.rows.append(("flow_committed", id, "", flow.tenant, "", 0, 0, ""))
    _begin(shard, flow, "lay")
    see_to(shard)
    dependencies.follow_up(shard)
    return Staged(code="committed")


def _alter(shard: Shard, order: FlowOrder) -> Moved | None:
    flow = shard.flows.get(order.flow)
    if flow is None or _is_over(shard, flow) or order.tenant not in (None, flow.tenant):
        return None
    if flow.committed_at is None:
        many = len(flow.entries) if order.action == "cancel" else 0
        if order.action == "cancel":
            drop(shard, flow)
        return Moved(now=shard.now, count=many)
    counts = flow.counts
    if order.action == "cancel":
        wanted = counts.total() < flow.total
    else:
        wanted = counts[State.DEAD] + counts[State.CANCELLED] > 0
    if flow.work:
        flow.next = order.action if flow.work != order.action else ""
    elif wanted:
        _begin(shard, flow, order.action)
        moved = see_to(shard, flow)
        dependencies.follow_up(shard)
        return Moved(now=shard.now, count=moved, more=bool(flow.work))
    return Moved(now=shard.now, more=bool(flow.work))


def _begin(shard: Shard, flow: Flow, work: Work) -> None:
    flow.work = work
    flow.place = flow.total if work == "cancel" else 0
    shard.layouts[flow.id] = flow


def see_to(shard: Shard, flow: Flow | None = None) -> int:
    """See to up to MAX_STEP members of this flow, or of the first that has work; how many moved.

    Not before all were told of ends so far: members may be among them.
    """
    if shard.releases:
        return 0
    if flow is None:
        flow = next(iter(shard.layouts.values()), None)
    if flow is None:
        return 0
    moved = work = 0
    for _ in range(MAX_STEP):
        if flow.work == "lay":
            work += _lay_out(shard, flow, flow.place)
            flow.laid_out = flow.place + 1
            moved += 1
        elif flow.work == "cancel":
            moved += _cancel(shard, flow, flow.entries[flow.place - 1].message.id)
        else:
            back, edges = _retry(shard, flow, flow.entries[flow.place])
            moved, work = moved + back, work + edges
        flow.place += -1 if flow.work == "cancel" else 1
        if flow.place == (0 if flow.work == "cancel" else flow.total):
            _end_work(shard, flow)
            return moved
        if work >= 2 * MAX_STEP:  # they have many dependencies
            break
    shard.layouts[flow.id] = shard.layouts.pop(flow.id)  # flows take turns, a step each
    return moved


def _end_work(shard: Shard, flow: Flow) -> None:
    """All members were seen to: let them go, and go on with what was ordered meanwhile."""
    shard.flows_changed[flow.id] = flow
    guarded = flow.guard.dependents
    if guarded:
        shard.releases.append((flow.guard, State.COMPLETED, deque(guarded.values())))
    del shard.layouts[flow.id]
    flow.work, work = "", flow.next
    flow.next = ""
    if work:
        _begin(shard, flow, work)


def _lay_out(shard: Shard, flow: Flow, place: int) -> int:
    """Make a task of a member, as ``enqueue`` would; how much work it was."""
    member = flow.entries[place]
    message = member.message
    flow.entries[place] = msgspec.structs.replace(member, message=message.without_body())
    shard.reserve(_share(member), -1)
    shard.reserve_bytes(_share(member), -message_bytes(message))
    if shard.find(message.id) is not None:  # since it was staged
        count(shard, flow, State.CANCELLED)
        return 1
    parents, failed = _parents(shard, member)
    task = enqueue.new_task(shard, member)
    task.flow = flow
    if member.uses_results:
        pins.take(shard, task, member.depends_on)
    if failed is not None:
        shard.admit(task, failed[1])
        shard.emit("enqueued", task)
        dependencies.end_for(shard, task, *failed)
        return 2
    guarded = member.on_dependency_failure == "run" or not any(p.flow is flow for p in parents)
    waits: list[Task | Guard] = [*parents, flow.guard] if guarded else [*parents]
    enqueue.place(shard, task, member, waits)
    shard.emit("enqueued", task)
    return 1 + len(waits)


def _parents(shard: Shard, member: Submission) -> tuple[list[Task], tuple[str, State] | None]:
    """What a member has to wait for; or the dependency that ends it, and how."""
    parents: list[Task] = []
    failed: tuple[str, State] | None = None
    for dependency in member.depends_on:
        parent = shard.find(dependency.id)
        if parent is None:
            continue
        verdict = on_dependency(parent.state, member.on_dependency_failure)
        if verdict == "wait":
            parents.append(parent)
        elif verdict != "met" and failed is None:
            failed = (parent.id, State(verdict))
    return parents, failed


def _cancel(shard: Shard, flow: Flow, id: str) -> int:
    task = shard.find(id)
    if task is None or task.flow is not flow or task.state in FINAL:
        return 0
    operator_verbs.cancel(shard, task)
    return 1


def _take_back(shard: Shard, task: Task, member: Submission) -> int:
    """Let a member that still waits wait again for parents that were put back to work.

    Only the policy ``run`` lets a failed parent go while it waits for others.
    """
    if member.on_dependency_failure != "run":
        return 0
    parents, _ = _parents(shard, member)
    for parent in parents:
        if task.blocked_by is None or parent.id not in task.blocked_by:
            dependencies.attach(task, parent)
    return len(parents)


def _retry(shard: Shard, flow: Flow, member: Submission) -> tuple[int, int]:
    """Put a member back that failed, unless a dependency says that it would fail at once.

    How many were put back, and how many edges were seen to.
    """
    task = shard.find(member.message.id)
    if task is None or task.flow is not flow:
        return 0, 0
    if task.state is State.DEFERRED:
        return 0, _take_back(shard, task, member)
    if not may_return(task.state, task.reason):
        return 0, 0
    ended_it = task.reason.removeprefix("dependency_failed: ")
    if ended_it != task.reason and shard.find(ended_it) is None:  # forgotten, but not completed
        return 0, 0
    parents, failed = _parents(shard, member)
    if failed is not None:
        return 0, len(parents)
    task.tenant.queue.shelf(task.state).remove(task)
    count(shard, flow, task.state, -1)
    task.generation += 1
    task.attempts = task.crashes = task.unroutable = 0
    task.finished_at = task.deadline_at = task.due_at = task.kept_since = None
    task.reason, task.cancelling = "", False
    shard.move(task, State.DEFERRED)
    for parent in parents:
        dependencies.attach(task, parent)
    dependencies.attach(task, flow.guard)
    pins.retake(shard, task)
    shard.emit("requeued", task)
    return 1, len(parents) + 1
