"""What must hold for flows: nothing of them is left over, and nothing of them is left undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fairlead.broker.redis.audit.values import CANCELLED, COMPLETED, DEAD, FINAL, Flow
from fairlead.broker.redis.audit.walk import Shard

_MARK = "\x1e"  # before the id of a flow, where ids of tasks may stand
_STAGED, _LAYING, _LIVE = 1, 2, 3
_LAY, _CANCEL, _RETRY = 1, 2, 3


def is_guard(id: str) -> bool:
    """Whether this stands for a flow that members wait for until all were seen to."""
    return id.startswith(_MARK)


def guarded(shard: Shard, guard: str) -> bool:
    """Whether a flow will let those go that wait for it."""
    flow = shard.hash("flows").get(guard.removeprefix(_MARK))
    return flow is not None and flow.work in (_LAY, _RETRY)


def check_flows(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with flows."""
    flows: dict[str, Flow] = shard.hash("flows")
    ends = Counter((task.flow, task.state) for task in shard.tasks.values() if task.state in FINAL)
    for id, flow in flows.items():
        yield from _kept(shard, id, flow)
        yield from _written(shard, id, flow)
        if flow.phase > _STAGED:
            yield from _counted(id, flow, ends)
    yield from _left_over(shard, flows)
    yield from _room(shard, flows)
    yield from _told(shard, flows)
    finished = [flow for flow in flows.values() if flow.finished]
    for field, wanted in (
        ("laying", sum(1 for flow in flows.values() if flow.work)),
        ("flows_kept", len(finished)),
        ("members_kept", sum(flow.total for flow in finished)),
    ):
        if shard.meta.get(field, 0.0) != wanted:
            yield f"'meta' counts {shard.meta.get(field, 0.0):.0f} for {field}, there are {wanted}"


def _kept(shard: Shard, id: str, flow: Flow) -> Iterator[str]:
    """A flow stands where its phase says, and something will end it."""
    for key, wanted in (
        ("stages", flow.phase == _STAGED),
        ("layouts", flow.work > 0),
        ("flow-ends", flow.finished > 0.0),
    ):
        if (id in shard.order(key)) != wanted:
            yield f"flow {id} is {'not ' if wanted else ''}in '{key}'"
    done = flow.phase == _LIVE and sum(flow.counts) >= flow.total
    if done != (flow.finished > 0.0):
        yield f"flow {id} has {sum(flow.counts)} of {flow.total} members ended and is not kept so"
    if (flow.phase == _LAYING) != (flow.work == _LAY):
        yield f"flow {id} will never be laid out"


def _written(shard: Shard, id: str, flow: Flow) -> Iterator[str]:
    """Its members are all there, and those that are no tasks yet can become some."""
    rows: list[str] = shard.lists.get(f"flow:{id}", [])
    edges = shard.lists.get(f"edges:{id}", [])
    whole = sum(1 for row in rows if _share(row))
    expected = flow.total
    if flow.phase == _STAGED:
        expected = sum(count - left for _, _, count, left, _ in flow.shares)
        if len(shard.sets.get(f"staged:{id}", ())) != expected:
            yield f"flow {id} does not know which members were written"
    if len(rows) != expected or len(edges) != flow.edges:
        yield f"flow {id} should have {expected} members and {flow.edges} rows of edges"
    left = {_STAGED: expected, _LAYING: flow.total - min(flow.place, flow.total)}
    if whole != left.get(flow.phase, 0):
        yield f"flow {id} has {whole} members that are no tasks yet, which is not so many"


def _share(row: str) -> tuple[str, str, int] | None:
    """Queue, tenant and bytes of a member that is no task yet."""
    queue, tenant, size, _ = row.split("\x1f")
    return (queue, tenant, int(size)) if queue else None


def _counted(id: str, flow: Flow, ends: Counter[tuple[str, int]]) -> Iterator[str]:
    """What ended was counted; what was forgotten since still is."""
    name = f"{id}\x1f{flow.life}" if flow.life else id
    for state, count in zip((COMPLETED, DEAD, CANCELLED), flow.counts, strict=True):
        if ends[name, state] > count:
            yield f"flow {id} counts {count} members that ended, there are {ends[name, state]}"
    if sum(flow.counts) > flow.total:
        yield f"flow {id} counts {sum(flow.counts)} members that ended of {flow.total}"


def _left_over(shard: Shard, flows: dict[str, Flow]) -> Iterator[str]:
    """Nothing is kept of flows that are gone."""
    for key in ("stages", "layouts", "flow-ends"):
        for id in shard.order(key).keys() - flows.keys():
            yield f"'{key}' holds flow {id}, which does not exist"
    for family in ("flow:", "edges:", "staged:"):
        for id, _ in shard.family(family):
            if id not in flows or (family == "staged:" and flows[id].phase != _STAGED):
                yield f"'{family}{id}' belongs to no flow"
    jobs = {tuple(job.split("\x1f")[1:3]) for job in shard.order("jobs")}
    for number, _ in shard.family("undone:"):
        if (number, "9") not in jobs:
            yield f"'undone:{number}' holds edges that nobody would take away"


def _room(shard: Shard, flows: dict[str, Flow]) -> Iterator[str]:
    """Room is reserved for members that are no tasks yet: for so many, and for their bytes."""
    wanted: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for id, flow in flows.items():
        rows = [share for row in shard.lists.get(f"flow:{id}", []) if (share := _share(row))]
        shares = [(queue, tenant, 1) for queue, tenant, _ in rows]
        if flow.phase == _STAGED:
            shares = [(queue, tenant, count) for queue, tenant, count, *_ in flow.shares]
        for queue, tenant, count in shares:
            wanted[f"{queue}\x1f{tenant}"] += count
            wanted[f"{queue}\x1f"] += count
        own: Counter[str] = Counter()
        for queue, tenant, size in rows:
            own[f"{queue}\x1f{tenant}\x1f"] += size
        sizes += own
        said = {f"{queue}\x1f{tenant}\x1f": size for queue, tenant, *_, size in flow.shares}
        if flow.phase == _STAGED and own != +Counter(said):
            yield f"flow {id} does not know how much was written of it"
    reserved = shard.hash("reserved")
    wanted += sizes
    for field in reserved.keys() | wanted.keys():
        if reserved.get(field, "0") != str(wanted[field]):
            queue, tenant, *more = field.split("\x1f")
            what = "bytes" if more else "tasks"
            yield f"room for {reserved.get(field)} {what} of {tenant or 'all'} in {queue} is wrong"
    total = shard.meta.get("reserved", 0.0)
    if total != sizes.total():
        yield f"'meta' counts {total:.0f} bytes that are reserved, there are {sizes.total()}"


def _told(shard: Shard, flows: dict[str, Flow]) -> Iterator[str]:
    """Who watches a flow will be told of its end."""
    ties, watchers = shard.hash("ties"), shard.hash("watchers")
    for name in filter(is_guard, ties.keys() | watchers.keys()):
        id = name.removeprefix(_MARK)
        flow = flows.get(id)
        if flow is None or flow.finished:
            yield f"somebody waits for flow {id}, which is over"
        if ("w" in ties.get(name, "")) != (name in watchers):
            yield f"flow {id} does not know who has to be told of its end"
        guards = f"after:0:{name}" in shard.orders
        if ("d" in ties.get(name, "")) and not guards and not guarded(shard, name):
            yield f"flow {id} is said to have members to let go, but there are none"
