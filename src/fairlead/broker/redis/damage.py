"""What is wrong with indexes of a shard, compared with the records of its tasks and tenants."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from fairlead.broker.redis.audit.edges import waits_of
from fairlead.broker.redis.audit.flows import is_guard
from fairlead.broker.redis.audit.tasks import xcom_sizes
from fairlead.broker.redis.audit.values import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DEFERRED,
    FINAL,
    IDLE,
    PAUSED,
    QUEUED,
    READY,
    RETRYING,
    RUNNING,
    SCHEDULED,
    SENTINEL,
    WAITING,
    Task,
    Tenant,
)
from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.redis.wire import Value

_BEHIND = 9e18  # where deferred tasks stand among those that are asleep
_RANKS = ("large-done:", "large-dead:", "heads-done:", "heads-dead:")
_TO_END = 2  # a unique key that is held until its task is over
Said = tuple[int, float, float, str]  # state, moment, token, incarnation
Thing = tuple[str, str, tuple[Value, ...]]  # kind, queue if it is one queue's, and the arguments


def find_damage(shard: Shard, versions: dict[str, dict[str, bytes]]) -> list[Thing]:
    """What may have to be mended, in the order in which it is; the server judges it.

    ``versions`` are the records of tenants as they were before the walk, by ``tenants:`` and queue.
    """
    lost = list(_records(shard))
    if lost:  # counts come later, when it is known what there is
        return lost
    return [
        *_tenants(shard, versions),
        *_places(shard),
        *_standing(shard),
        *_queues(shard),
        *_limiters(shard),
        *_values(shard),
        *_edges(shard),
        *_orphans(shard),
    ]


# -- records -----------------------------------------------------------------------------------


def _records(shard: Shard) -> Iterator[Thing]:
    """Tasks without a record of which an index says that they are not queued."""
    lined = {entry for _, line in shard.family("line:") for entry in line}
    lost = {
        id: task
        for id, task in shard.tasks.items()
        if not task.recorded and task.entry not in lined
    }
    if not lost:
        return
    said = {**_finished(shard, lost), **_unfinished(shard, lost)}
    unique = {id: field.partition("\x1f")[2] for field, id in shard.hash("unique").items()}
    for id, (state, at, token, holder) in said.items():
        late = shard.order("deadlines").get(id)
        deadline = math.nextafter(late, -math.inf) if late is not None else 0.0
        args = (id, state, repr(at), f"{token:.0f}", holder, repr(deadline), unique.get(id, ""))
        yield "record", "", args


def _finished(shard: Shard, lost: dict[str, Task]) -> dict[str, Said]:
    """Those that stand on a shelf: they must not run again."""
    results = shard.hash("results")
    found: dict[str, Said] = {}
    for name, ids in shard.family("kept:"):
        found.update((id, (COMPLETED, 0.0, 0.0, "")) for id in ids if _owned(lost, id, name))
    for name, order in shard.family("done:"):
        for id, at in order.items():
            if _owned(lost, id, name):
                found[id] = (COMPLETED if id in results else CANCELLED, at, 0.0, "")
    for name, order in shard.family("dead:"):
        of_it = ((id, at) for id, at in order.items() if _owned(lost, id, name))
        found.update((id, (DEAD, at, 0.0, "")) for id, at in of_it)
    return found


def _unfinished(shard: Shard, lost: dict[str, Task]) -> dict[str, Said]:
    """Those that are asleep, or on loan."""
    found: dict[str, Said] = {}
    for name, order in shard.family("asleep:"):
        for id, at in order.items():
            if id in lost and name == f"{lost[id].queue}:{lost[id].tenant}":
                waits = at < _BEHIND
                found[id] = (SCHEDULED if waits else DEFERRED, at if waits else 0.0, 0.0, "")
    for name, calls in shard.family("held:"):
        for member, token in calls.items():
            on_loan = (id for id in member.split("\x1f")[1:] if id in lost)
            found.update((id, (RUNNING, 0.0, token, name)) for id in on_loan)
    return found


def _owned(lost: dict[str, Task], id: str, queue: str) -> bool:
    return id in lost and queue in (lost[id].queue, f"{lost[id].queue}:{lost[id].tenant}")


# -- tenants and queues ------------------------------------------------------------------------


def _tenants(shard: Shard, versions: dict[str, dict[str, bytes]]) -> Iterator[Thing]:
    """Tenants whose counts are not those of their tasks."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 13)
    for task in shard.tasks.values():
        if task.message is not None:
            own = counts[task.queue, task.tenant]
            own[task.state - 1] += 1
            own[8] += task.special and task.state == QUEUED
            if task.state not in FINAL:
                own[11] += task.bytes
            elif shard.is_aside(task):
                own[12] += task.bytes
            else:
                own[10 if task.state == DEAD else 9] += task.bytes
    for queue, tenants in shard.tenants.items():
        for name in tenants:
            counts.setdefault((queue, name), [0] * 13)
    for (queue, name), own in counts.items():
        tenant = shard.tenants.get(queue, {}).get(name)
        if tenant is None or _said(tenant) != own:
            version = versions.get(f"tenants:{queue}", {}).get(name, b"")
            if tenant is not None or any(own):
                yield "tenant", queue, (queue, name, version, *own)


def _said(tenant: Tenant) -> list[float]:
    sizes = (tenant.done_bytes, tenant.dead_bytes, tenant.live_bytes, tenant.pin_bytes)
    return [*tenant.counts, tenant.special, *sizes]


def _standing(shard: Shard) -> Iterator[Thing]:
    """Tenants that do not stand where their records say."""
    asleep = dict(shard.family("asleep:"))
    lengths = {name: len(line) for name, line in shard.family("line:")}
    ranked = {name for family in _RANKS for name, _ in shard.family(family)}
    for queue in sorted(shard.tenants.keys() | ranked):
        tenants = shard.tenants.get(queue, {})
        ready = shard.order(f"ready:{queue}")
        active = shard.sets.get(f"active:{queue}", set())
        for name, tenant in tenants.items():
            times = [at for at in asleep.get(f"{queue}:{name}", {}).values() if at < _BEHIND]
            look = shard.order("due").get(f"{queue}\x1f{name}")
            lined = tuple(lengths.get(f"{queue}:{level}:{name}", 0) for level in range(8))
            if (
                not _stands(tenant, ready.get(name))
                or lined != tenant.lengths
                or not (name in active) == tenant.busy == (tenant.count(*WAITING, RUNNING) > 0)
                or (look is None) != (not times)
                or (look is not None and look < min(times))
                or (look is not None and look > max(min(times), shard.meta.get("now", 0.0)))
                or _large(shard, queue, name) != tenant.large
            ):
                yield "status", queue, (name,)
        for name in sorted(
            (ready.keys() | active | _ranked(shard, queue)) - tenants.keys() - {SENTINEL}
        ):
            yield "status", queue, (name,)


def _stands(tenant: Tenant, tag: float | None) -> bool:
    wanted = IDLE if not tenant.count(QUEUED) else PAUSED if tenant.pause else None
    if wanted is not None:
        return tenant.status == wanted and tag is None
    if tenant.status in (IDLE, PAUSED):
        return False
    return tag == (tenant.tag if tenant.status == READY else None)


def _large(shard: Shard, queue: str, name: str) -> int:
    """The shelves on which a tenant has an order of its own, if all indexes agree; else -1."""
    found = 0
    for bit, shelf, families in ((1, "done", ("kept:", "done:")), (2, "dead", ("dead:",))):
        own = any(
            kept.get(f"{family}{queue}:{name}")
            for family in families
            for kept in (shard.lists, shard.orders)
        )
        for index in (f"large-{shelf}:{queue}", f"heads-{shelf}:{queue}"):
            if own != (name in shard.order(index)):
                return -1
        found += bit * own
    return found


def _ranked(shard: Shard, queue: str) -> set[str]:
    return {name for rank in _RANKS for name in shard.order(f"{rank}{queue}")}


def _queues(shard: Shard) -> Iterator[Thing]:
    """Queues that are lost, or whose sums are not those of their tasks and tenants."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 8)
    for task in shard.tasks.values():
        if task.message is not None:
            counts[task.queue][task.state - 1] += 1
    for name in sorted(shard.queues.keys() | counts.keys() | shard.tenants.keys()):
        queue, tenants = shard.queues.get(name), shard.tenants.get(name, {}).values()
        if (
            queue is None
            or list(queue.counts) != counts[name]
            or queue.weight != sum(t.weight for t in tenants if t.status == READY)
            or queue.done_bytes != sum(tenant.done_bytes for tenant in tenants)
            or queue.dead_bytes != sum(tenant.dead_bytes for tenant in tenants)
            or queue.large
            != (sum(t.large & 1 for t in tenants), sum(t.large >> 1 for t in tenants))
            or SENTINEL not in shard.order(f"ready:{name}")
            or queue.look != shard.order("trims").get(name, 0.0)
        ):
            yield "queue", "", (name,)


def _limiters(shard: Shard) -> Iterator[Thing]:
    """Limiters that count others than those that run."""
    used: Counter[str] = Counter()
    probing: Counter[str] = Counter()
    for task in shard.tasks.values():
        for name in task.limiters if task.state == RUNNING else ():
            used[name] += 1
            limiter = shard.limiters.get(name)
            if limiter is not None and limiter.circuit.opened_at is not None:
                probing[name] += task.record.token > limiter.circuit.last_token
    for name in used.keys() | shard.limiters.keys():
        limiter = shard.limiters.get(name)
        said = (limiter.used, limiter.circuit.probing) if limiter is not None else (0, 0)
        if said != (used[name], probing[name]):
            yield "limiter", "", (name,)


def _values(shard: Shard) -> Iterator[Thing]:
    """Tenants that count other XCom values than there are."""
    sizes, said = xcom_sizes(shard.hash("xcom")), shard.hash("xcom-bytes")
    for tenant in sorted(sizes.keys() | said.keys()):
        if said.get(tenant, "0") != str(sizes[tenant]):
            yield "xcom", "", (tenant, said.get(tenant, ""), sizes[tenant])


# -- tasks -------------------------------------------------------------------------------------


def _places(shard: Shard) -> Iterator[Thing]:
    """Tasks that are not found where their state says; of a queue, the first accepted first."""
    lines = {(name, entry) for name, line in shard.family("line:") for entry in line}
    asleep = {(name, id): at for name, order in shard.family("asleep:") for id, at in order.items()}
    held = {
        (name, token, id)
        for name, calls in shard.family("held:")
        for member, token in calls.items()
        for id in member.split("\x1f")[1:]
    }
    shelves = {
        (family, id, name)
        for family in ("kept:", "done:", "dead:")
        for name, order in shard.family(family)
        for id in order
    }
    leases, unique = shard.order("leases"), shard.hash("unique")

    def stands(task: Task) -> bool:
        record, state = task.record, task.state
        if state == QUEUED:
            return (f"{task.queue}:{task.level}:{task.tenant}", task.entry) in lines
        if state == RUNNING:
            loan = (record.incarnation, record.token, task.id)
            return loan in held and record.incarnation in leases
        if state in FINAL:
            if shard.is_aside(task):
                return True
            return any(
                (family, task.id, name) in shelves
                for family in (("dead:",) if state == DEAD else ("kept:", "done:"))
                for name in (task.queue, f"{task.queue}:{task.tenant}")
            )
        at = record.due if state in (SCHEDULED, RETRYING) else _BEHIND
        return asleep.get((f"{task.queue}:{task.tenant}", task.id)) == at

    def watched(task: Task) -> bool:
        record = task.record
        late = shard.order("deadlines").get(task.id)
        if record.deadline and task.state in WAITING:
            return late == math.nextafter(record.deadline, math.inf)
        return late is None

    def holds(task: Task) -> bool:
        record = task.record
        if record.hold != _TO_END or record.generation or task.state in FINAL:
            return True
        return unique.get(f"{task.tenant}\x1f{record.unique}") is not None

    wrong = [
        task
        for task in shard.tasks.values()
        if task.message is not None and not (stands(task) and watched(task) and holds(task))
    ]
    wrong.sort(key=lambda task: (task.queue, task.message.at if task.message is not None else 0.0))
    for task in wrong:
        yield "place", task.queue, (task.id,)


def _edges(shard: Shard) -> Iterator[Thing]:
    """Deferred tasks that wait for one of this shard of which nothing is stored."""
    for child in shard.hash("before"):
        for parent, life in waits_of(shard, child):
            task = shard.tasks.get(parent)
            near = not life.startswith("@") and not is_guard(parent)
            if near and (task is None or str(task.record.life) != life):
                yield "edge", "", (child, parent, life)


def _orphans(shard: Shard) -> Iterator[Thing]:
    """Entries of indexes that belong to no task."""

    def dropped(name: str, members: Iterable[str]) -> Iterator[Thing]:
        for member in members:
            yield "drop", "", (name, member)

    tasks = shard.tasks
    yield from dropped("deadlines", (id for id in shard.order("deadlines") if id not in tasks))
    for family, states in (("done:", {COMPLETED, CANCELLED}), ("dead:", {DEAD})):
        for name, order in shard.family(family):
            gone = (id for id in order if id not in tasks or tasks[id].state not in states)
            yield from dropped(family + name, gone)
    for name, order in shard.family("asleep:"):
        for id in order:
            task = tasks.get(id)
            own = task is not None and name == f"{task.queue}:{task.tenant}"
            if task is None or not own or task.state not in (SCHEDULED, RETRYING, DEFERRED):
                yield from dropped(f"asleep:{name}", [id])
    for key in shard.order("due"):
        queue, _, tenant = key.partition("\x1f")
        if tenant not in shard.tenants.get(queue, {}):
            yield from dropped("due", [key])
    loans = {name for name, calls in shard.family("held:") if calls}
    yield from dropped("trims", (name for name in shard.order("trims") if name not in shard.queues))
    yield from dropped("leases", (name for name in shard.order("leases") if name not in loans))
