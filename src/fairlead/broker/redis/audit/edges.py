"""What must hold between tasks: who waits for whom, who is told of an end.

Of an edge between two shards each has one half; whoever sees all shards compares them.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.broker.redis.audit.flows import guarded, is_guard
from fairlead.broker.redis.audit.values import COMPLETED, DEFERRED, FINAL, Task
from fairlead.broker.redis.audit.walk import Shard

_POLICY_WAIT = 2
_UNDO = "9"  # a job that takes edges away
_FAR = 4  # fields of a child in another shard: shard, id, life, policy


def check_edges(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with dependencies: directions that disagree, waits without end."""
    yield from _waits(shard)
    yield from _releases(shard)
    yield from _ties(shard)


def _waits(shard: Shard) -> Iterator[str]:
    """Deferred tasks wait for something that knows of them."""
    made = shard.meta.get("edges", 0.0)
    for child_id in shard.hash("before"):
        edges = waits_of(shard, child_id)
        child = shard.tasks.get(child_id)
        if child is None or child.state != DEFERRED:
            yield f"'before' holds {child_id}, which is not deferred"
        for (parent_id, life), number in edges.items():
            if number > made:
                yield f"task {child_id} waits for {parent_id} by an edge that was never made"
            near = not life.startswith("@")  # else it is the shard of the parent
            if near and shard.order(f"after:{life}:{parent_id}").get(child_id) != number:
                yield f"task {child_id} waits for {parent_id}, which does not know of it"
    for child_id, _ in shard.family("before:"):
        if shard.hash("before").get(child_id) != {}:
            yield f"'before:{child_id}' is there, but its task does not wait for that much"
    for id, task in shard.tasks.items():
        if task.state == DEFERRED and not waits_of(shard, id):
            yield f"task {id} is deferred but waits for nothing"


def waits_of(shard: Shard, child_id: str) -> dict[tuple[str, str], float]:
    """What a task waits for: the parent and its life or shard, and the number of the edge."""
    few: dict[tuple[str, str], float] = shard.hash("before").get(child_id, {})
    if few:
        return few
    found: dict[tuple[str, str], float] = {}
    for member, number in shard.order(f"before:{child_id}").items():
        parent_id, _, life = member.rpartition("\x1f")
        found[parent_id, life] = number
    return found


def _releases(shard: Shard) -> Iterator[str]:
    """Whoever has dependents will end, or is about to tell them that it did."""
    in_transit, undone = _jobs(shard)
    for name, order in shard.family("after:"):
        life, _, parent_id = name.partition(":")
        parent, bound = shard.tasks.get(parent_id), in_transit.get((parent_id, life), -1.0)
        if parent is not None and str(parent.record.life) != life:
            parent = None
        for member, number in order.items():
            child_id, policy, near = _dependent(shard, member)
            if undone.get((child_id, parent_id, life)) == number:
                continue
            if near and waits_of(shard, child_id).get((parent_id, life)) != number:
                yield f"task {parent_id} would release {child_id}, which does not wait for it"
            elif number > bound and not (is_guard(parent_id) and guarded(shard, parent_id)):
                yield from _blocked(child_id, policy, parent, parent_id)


def _dependent(shard: Shard, member: str) -> tuple[str, int, bool]:
    """The id and the policy of a child, and whether it lives in this shard."""
    fields = member.split("\x1f")
    if len(fields) == _FAR and fields[-1].isdecimal():
        return fields[1], int(fields[-1]), False
    child = shard.tasks.get(member)
    return member, 0 if child is None else child.record.policy, True


def _blocked(child_id: str, policy: int, parent: Task | None, parent_id: str) -> Iterator[str]:
    """What a wait that nobody is about to end must look like."""
    if parent is None:
        yield f"task {child_id} waits for {parent_id}, which no longer exists"
    elif parent.state == COMPLETED or (parent.state in FINAL and policy != _POLICY_WAIT):
        yield f"task {child_id} waits for {parent_id}, which is {parent.shown}"


def _jobs(shard: Shard) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str, str], float]]:
    """Ends that dependents are about to be told of, and up to which of their edges.

    And edges that are about to be taken away, of tasks that waited for many.
    """
    found: dict[tuple[str, str], float] = {}
    undone: dict[tuple[str, str, str], float] = {}
    for job in shard.order("jobs"):
        fields = job.split("\x1f")
        if len(fields) == 4 and fields[2] == _UNDO:
            for member, number in shard.order(f"undone:{fields[1]}").items():
                parent_id, _, life = member.rpartition("\x1f")
                undone[fields[0], parent_id, life] = number
        elif len(fields) == 4 and fields[3].isdecimal():
            key = (fields[0], fields[1])
            found[key] = max(found.get(key, 0.0), float(fields[3]))
        else:
            shard.findings.append(f"'jobs' holds what cannot be read: {job!r}")
    return found, undone


def _ties(shard: Shard) -> Iterator[str]:
    """One look says whether somebody waits for a task."""
    ties, watchers = shard.hash("ties"), shard.hash("watchers")
    for id in ties:
        if id not in shard.tasks and not is_guard(id):
            yield f"'ties' holds {id}, which no longer exists"
    for id in watchers:
        task = shard.tasks.get(id)
        if is_guard(id):
            continue  # see check_flows
        if task is None or task.state in FINAL:
            yield f"'watchers' waits for the end of {id}, which is over"
        elif "w" not in ties.get(id, ""):
            yield f"task {id} has watchers that would not be told of its end"
    for id, task in shard.tasks.items():
        if "w" in ties.get(id, "") and id not in watchers:
            yield f"task {id} is said to have watchers, but there are none"
        if f"after:{task.record.life}:{id}" in shard.orders and "d" not in ties.get(id, ""):
            yield f"task {id} has dependents that would not be told of its end"
