"""A flow as the memory broker remembers it, and what the ends of its members come to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from fairlead.broker.flows import MAX_FLOWS_KEPT, MAX_MEMBERS_KEPT, FlowPart, FlowRecord
from fairlead.broker.requests import Submission
from fairlead.model.lifecycle import State

if TYPE_CHECKING:
    from fairlead.broker.memory.records import Task
    from fairlead.broker.memory.state import ShardState

_KEEP = {State.COMPLETED: 3_600.0, State.DEAD: 604_800.0, State.CANCELLED: 604_800.0}
_TRIMMED = 2  # flows that one finished flow may push out of the retention
_MARK = "\x1e"  # before the id of a flow, where ids of tasks may stand as well

Work = Literal["", "lay", "cancel", "retry"]


class Guard:
    """What members wait for until all of a flow was seen to, as if it were a task."""

    state = State.COMPLETED

    def __init__(self, flow: str) -> None:
        self.id = _MARK + flow
        self.dependents: dict[str, Task] | None = None


class Flow:
    """One flow: first staged, then laid out, then live."""

    def __init__(self, part: FlowPart, writer: str) -> None:
        self.id = part.flow
        self.tenant = part.tenant
        self.name = part.name
        self.writer = writer  # the incarnation that writes it
        self.parts = 0  # received
        self.shares = {(share.queue, share.tenant): share.count for share in part.shares}
        self.left = dict(self.shares)  # members that are still to be written
        self.bytes: Counter[tuple[str, str]] = Counter()  # by share, of members that are written
        self.total = sum(self.shares.values())
        self.entries: list[Submission] = []  # without bodies, once they are laid out
        self.ids: set[str] = set()  # of the members, while it is written
        self.committed_at: float | None = None
        self.finished_at: float | None = None
        self.laid_out = 0
        self.counts: Counter[State] = Counter()  # members by final state
        self.work: Work = ""  # what is being done to it, member by member
        self.place = 0  # where that goes on
        self.next: Work = ""  # what was ordered meanwhile
        self.guard = Guard(part.flow)
        self.watchers: dict[str, None] = {}

    @property
    def state(self) -> State:
        """Running until every member is final."""
        if self.laid_out < self.total or self.counts.total() < self.total:
            return State.RUNNING
        if self.counts[State.DEAD]:
            return State.DEAD
        return State.CANCELLED if self.counts[State.CANCELLED] else State.COMPLETED

    def record(self) -> FlowRecord:
        """All of it, for people."""
        return FlowRecord(
            id=self.id,
            tenant=self.tenant,
            name=self.name,
            state=self.state,
            total=self.total,
            laid_out=self.laid_out,
            completed=self.counts[State.COMPLETED],
            dead=self.counts[State.DEAD],
            cancelled=self.counts[State.CANCELLED],
            committed_at=self.committed_at or 0.0,
            finished_at=self.finished_at,
        )


def visible(shard: ShardState, id: str) -> Flow | None:
    """The flow, unless it is unknown, not committed yet, or past its retention."""
    flow = shard.flows.get(id)
    if flow is None or flow.committed_at is None:
        return None
    ends = shard.flow_ends.get(id)
    return None if ends is not None and ends <= shard.now else flow


def count(shard: ShardState, flow: Flow, state: State, many: int = 1) -> None:
    """A member ended like this, or (-1) was put back to work; ``conclude`` sees what it means."""
    if shard.flows.get(flow.id) is not flow:  # forgotten; the id may be another's now
        return
    flow.counts[state] += many
    shard.flows_changed[flow.id] = flow


def conclude(shard: ShardState) -> None:
    """After a verb: finish flows whose last member ended, reopen those that run again."""
    changed = [flow for flow in shard.flows_changed.values() if shard.flows.get(flow.id) is flow]
    shard.flows_changed.clear()
    for flow in changed:
        state = flow.state
        if state is not State.RUNNING and flow.finished_at is None:
            _finish(shard, flow, state)
        elif state is State.RUNNING and flow.finished_at is not None:
            _close(shard, flow)


def _finish(shard: ShardState, flow: Flow, state: State) -> None:
    flow.finished_at = shard.now
    shard.members_kept += flow.total
    shard.flow_ends.set(flow.id, shard.now + _KEEP[state])
    shard.stream.rows.append((f"flow_{state}", flow.id, "", flow.tenant, state, 0, 0, ""))
    for watcher in flow.watchers:
        shard.write_to(watcher, "finished", flow.id, state=state)
    flow.watchers.clear()
    trim(shard, _TRIMMED)


def _close(shard: ShardState, flow: Flow) -> None:
    """Take a flow off the shelf: it runs again, or is forgotten."""
    flow.finished_at = None
    shard.members_kept -= flow.total
    shard.flow_ends.discard(flow.id)


def trim(shard: ShardState, most: int) -> int:
    """Forget finished flows that are too many, or past their time."""
    done = 0
    while done < most:
        too_many = len(shard.flow_ends) > MAX_FLOWS_KEPT or shard.members_kept > MAX_MEMBERS_KEPT
        first = shard.flow_ends.first()
        if first is None or (first[0] > shard.now and not too_many):
            break
        drop(shard, shard.flows[first[1]])
        done += 1
    return done


def drop(shard: ShardState, flow: Flow) -> None:
    """Forget a flow; if it was never committed, its room is free again."""
    if flow.committed_at is None:
        shard.stages.discard(flow.id)
        for share, many in flow.shares.items():
            shard.reserve(share, -many)
            shard.reserve_bytes(share, -flow.bytes[share])
    elif flow.finished_at is not None:
        _close(shard, flow)
    shard.layouts.pop(flow.id, None)
    flow.work = ""
    flow.entries = []  # tasks that were members know it as long as they are kept
    del shard.flows[flow.id]
