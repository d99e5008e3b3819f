"""Looks for what must never be of flows: counts that are off, members that nobody will let go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fairlead.broker.memory.flow_state import Flow
from fairlead.broker.memory.records import message_bytes
from fairlead.broker.memory.transitions import Shard
from fairlead.model.lifecycle import FINAL, State


def check_flows(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with flows."""
    yield from _reservations(shard)
    yield from _guards(shard)
    ends: Counter[tuple[str, State]] = Counter()
    for task in shard.tasks.values():
        flow = task.flow
        if flow is not None and shard.flows.get(flow.id) is flow and task.state in FINAL:
            ends[flow.id, task.state] += 1
    for flow in shard.flows.values():
        if flow.committed_at is None:
            if flow.id not in shard.stages:
                yield f"flow {flow.id} is being written and would never be removed"
            continue
        yield from _flow(shard, flow)
        for state in FINAL:
            if flow.counts[state] < ends[flow.id, state]:
                yield f"flow {flow.id} counts {flow.counts[state]} {state} members, there are more"
    kept = sum(flow.total for flow in shard.flows.values() if flow.finished_at is not None)
    if kept != shard.members_kept:
        yield f"{shard.members_kept} members of finished flows are counted, there are {kept}"


def _flow(shard: Shard, flow: Flow) -> Iterator[str]:
    done = flow.state is not State.RUNNING
    if done != (flow.finished_at is not None) or done != (flow.id in shard.flow_ends):
        yield f"flow {flow.id} is {flow.state}, which is not how it is kept"
    if bool(flow.work) != (flow.id in shard.layouts):
        yield f"flow {flow.id} has members to see to that nobody would come to"
    if flow.laid_out < flow.total and flow.work != "lay":
        yield f"flow {flow.id} will never be laid out"


def _reservations(shard: Shard) -> Iterator[str]:
    """Room is kept for members that are no tasks yet."""
    wanted: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for flow in shard.flows.values():
        shares = Counter(flow.shares)
        left = flow.entries[flow.laid_out :]
        for each in left:
            sizes[each.message.queue, each.message.tenant] += message_bytes(each.message)
        if flow.committed_at is not None:
            shares = Counter((each.message.queue, each.message.tenant) for each in left)
        for (queue, tenant), many in shares.items():
            wanted[queue, tenant] += many
            wanted[queue, ""] += many
    if +wanted != +shard.reserved:
        yield f"room is reserved for {dict(shard.reserved)}, flows need {dict(wanted)}"
    if +sizes != shard.reserved_bytes:
        yield f"flows need {dict(sizes)} bytes, {dict(shard.reserved_bytes)} are reserved"


def _guards(shard: Shard) -> Iterator[str]:
    """Who waits for the rest of its flow will be let go when that was seen to."""
    in_transit = {
        (parent.id, child.id) for parent, _, children in shard.releases for child in children
    }
    for id, task in shard.tasks.items():
        flow = task.flow
        if flow is None or flow.guard.id not in (task.blocked_by or ()):
            continue
        if id not in (flow.guard.dependents or ()):
            yield f"task {id} waits for the rest of its flow {flow.id}, which does not know of it"
        elif flow.work not in ("lay", "retry") and (flow.guard.id, id) not in in_transit:
            yield f"task {id} waits for the rest of its flow {flow.id}, which is there"
