"""What must hold for queues and tenants: counts, order, limits, and that nobody waits in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fairlead.broker.redis.audit.values import (
    AT_LIMITER,
    DEAD,
    FINAL,
    IDLE,
    PARKED,
    PAUSED,
    QUEUED,
    READY,
    RUNNING,
    SENTINEL,
    STATUSES,
    WAITING,
    Limit,
    Queue,
    Tenant,
)
from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.redis.layout import STATES

_LEVELS = 8
_SHELVES = ("kept:", "done:", "dead:", "large-done:", "large-dead:", "heads-done:", "heads-dead:")


def check_queues(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with queues, tenants and limiters."""
    yield from _counts(shard)
    yield from _bytes(shard)
    yield from _shelves(shard)
    yield from _trims(shard)
    yield from _lines(shard)
    yield from _homes(shard)
    for name, queue in shard.queues.items():
        tenants = shard.tenants.get(name, {})
        yield from _order(shard, name, queue, tenants)
        yield from _alarm(shard, name, queue)
        for tenant_name, tenant in tenants.items():
            yield from _tenant(shard, name, queue, tenant_name, tenant)
    yield from _limiters(shard)
    yield from _lobbies(shard)


def _counts(shard: Shard) -> Iterator[str]:
    """Counters say what a walk would."""
    by_queue: Counter[tuple[str, int]] = Counter()
    by_tenant: Counter[tuple[str, str, int]] = Counter()
    special: Counter[tuple[str, str]] = Counter()
    for id, task in shard.tasks.items():
        by_queue[task.queue, task.state] += 1
        by_tenant[task.queue, task.tenant, task.state] += 1
        special[task.queue, task.tenant] += task.special and task.state == QUEUED
        if task.tenant not in shard.tenants.get(task.queue, ()):
            yield f"task {id} belongs to a tenant that its queue has dropped"
    for name, queue in shard.queues.items():
        for state, said, there in _differences(
            queue.counts, [by_queue[name, state] for state in range(1, 9)]
        ):
            yield f"queue {name} counts {said} {state} tasks, there are {there}"
    for name, tenants in shard.tenants.items():
        for tenant_name, tenant in tenants.items():
            for state, said, there in _differences(
                tenant.counts, [by_tenant[name, tenant_name, state] for state in range(1, 9)]
            ):
                who = f"tenant {tenant_name} of {name}"
                yield f"{who} counts {said} {state} tasks, there are {there}"
            if tenant.special != special[name, tenant_name]:
                yield f"tenant {tenant_name} of {name} miscounts its special queued tasks"


def _differences(said: Sequence[int], there: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """States whose count is off, with both numbers."""
    for index, (one, other) in enumerate(zip(said, there, strict=True)):
        state = STATES[index + 1]
        if one != other and state is not None:
            yield state.value, one, other


def _bytes(shard: Shard) -> Iterator[str]:
    """Tenants and shelves know how much they hold; what is pinned stands on no shelf."""
    done: Counter[str] = Counter()
    dead: Counter[str] = Counter()
    live: Counter[str] = Counter()
    for task in shard.tasks.values():
        if task.state not in FINAL:
            live[f"{task.queue}\x1f{task.tenant}"] += task.bytes
        elif not shard.is_aside(task):
            by = dead if task.state == DEAD else done
            by[task.queue] += task.bytes
            by[f"{task.queue}\x1f{task.tenant}"] += task.bytes
    for name, queue in shard.queues.items():
        for what, said, there in (
            ("finished", queue.done_bytes, done[name]),
            ("dead", queue.dead_bytes, dead[name]),
        ):
            if said != there:
                yield f"queue {name} counts {said:.0f} bytes of {what} tasks, there are {there}"
        for tenant_name, tenant in shard.tenants.get(name, {}).items():
            who, field = f"tenant {tenant_name} of {name}", f"{name}\x1f{tenant_name}"
            for what, said, there in (
                ("finished", tenant.done_bytes, done[field]),
                ("dead", tenant.dead_bytes, dead[field]),
                ("unfinished", tenant.live_bytes, live[field]),
            ):
                if said != there:
                    yield f"{who} counts {said:.0f} bytes of {what} tasks, there are {there}"


def _shelves(shard: Shard) -> Iterator[str]:
    """It is known which tenants have an order of their own on a shelf, and they are looked at."""
    for bit, shelf in ((1, "done"), (2, "dead")):
        for name, queue in shard.queues.items():
            own = {key for key, t in shard.tenants.get(name, {}).items() if t.large & bit}
            if queue.large[bit - 1] != len(own):
                said = queue.large[bit - 1]
                yield f"queue {name} counts {said} tenants that keep much, there are {len(own)}"
            for index in (f"large-{shelf}:{name}", f"heads-{shelf}:{name}"):
                for tenant in sorted(own ^ shard.order(index).keys()):
                    yield f"{index!r} has tenant {tenant}, or lacks it, against its record"
            yield from _heads(shard, shelf, name)


def _heads(shard: Shard, shelf: str, name: str) -> Iterator[str]:
    """Nothing in the order of one tenant is over before the moment at which it is looked at."""
    heads = shard.order(f"heads-{shelf}:{name}")
    families = ("kept:", "done:") if shelf == "done" else ("dead:",)
    for family in families:
        for where, entries in shard.family(family):
            queue, colon, tenant = where.partition(":")
            if not colon or queue != name:
                continue
            tasks = [shard.tasks[id] for id in entries if id in shard.tasks]
            kept = [task.record.expires for task in tasks if task.state in FINAL]
            if tenant not in heads:
                yield f"'{family}{where}' is never looked at"
            elif any(0 < expires < heads[tenant] for expires in kept):
                yield f"'{family}{where}' is looked at only after something in it is over"


def _trims(shard: Shard) -> Iterator[str]:
    """Tidy looks at each queue that keeps something, or that is empty, and not too late."""
    trims = shard.order("trims")
    firsts: dict[str, float] = {}
    for task in shard.tasks.values():
        if task.state in FINAL and not shard.is_aside(task):
            expires = task.record.expires
            firsts[task.queue] = min(firsts.get(task.queue, expires), expires)
    for name, queue in shard.queues.items():
        at = trims.get(name, 0.0)
        if at != queue.look:
            yield f"queue {name} is looked at by tidy at another moment than it says"
        # What could not go when it was over is looked at a moment later.
        late = name in firsts and at > max(firsts[name], shard.meta.get("now", 0.0)) + 1.0
        if not at and (name in firsts or not any(queue.counts)):
            yield f"queue {name} is never looked at by tidy"
        elif late:
            yield f"queue {name} keeps a task that is over before tidy looks at it"
    for name in trims:
        if name not in shard.queues:
            yield f"tidy looks at queue {name}, which does not exist"


def _lines(shard: Shard) -> Iterator[str]:
    """Tenants know how long their lines are, and every line has a tenant."""
    known = {
        f"{name}:{level}:{tenant_name}": tenant.lengths[level]
        for name, tenants in shard.tenants.items()
        for tenant_name, tenant in tenants.items()
        for level in range(_LEVELS)
    }
    for name, line in shard.family("line:"):
        said = known.pop(name, None)
        if said is None:
            yield f"the line {name!r} belongs to no tenant"
        elif said != len(line):
            yield f"the line {name!r} has {len(line)} entries, its tenant says {said}"
    for name, said in known.items():
        if said:
            yield f"the line {name!r} has 0 entries, its tenant says {said}"


def _homes(shard: Shard) -> Iterator[str]:
    """Whatever is kept for a queue belongs to one that exists."""
    for name in shard.tenants:
        if name not in shard.queues:
            yield f"'tenants:{name}' belongs to no queue"
    for name in shard.confs:
        if name not in shard.queues:
            yield f"'settings' has some for {name}, which is no queue"
    for family in ("ready:", "active:", "saved:", *_SHELVES):
        for name, _ in shard.family(family):
            if name.partition(":")[0] not in shard.queues:
                yield f"'{family}{name}' belongs to no queue"
    said = shard.hash("tenant-settings")
    for field in shard.gates:
        name, _, tenant = field.partition("\x1f")
        if field not in said and f"\x1f{tenant}" not in said:
            yield f"'gates' limits tenant {tenant} of {name}, for which no limit was set"


def _order(shard: Shard, name: str, queue: Queue, tenants: dict[str, Tenant]) -> Iterator[str]:
    """Fetch finds the tenants that may run, in the order of their tags, and no others."""
    order = dict(shard.order(f"ready:{name}"))
    if order.pop(SENTINEL, None) is None:
        yield f"'ready:{name}' lacks the member that is always there"
    for tenant_name, tag in order.items():
        tenant = tenants.get(tenant_name)
        if tenant is None or tenant.status != READY:
            yield f"'ready:{name}' holds tenant {tenant_name}, which is not ready"
        elif tenant.tag != tag:
            yield f"tenant {tenant_name} of {name} is ordered by another tag than its own"
    ready = {key: tenant for key, tenant in tenants.items() if tenant.status == READY}
    for tenant_name in ready.keys() - order.keys():
        yield f"tenant {tenant_name} of {name} is ready but fetch cannot find it"
    weight = sum(tenant.weight for tenant in ready.values())
    if queue.weight != weight:
        yield f"queue {name} has {queue.weight:.0f} as the sum of weights, not {weight}"
    active = shard.sets.get(f"active:{name}", set())
    for tenant_name in active - tenants.keys():
        yield f"'active:{name}' holds tenant {tenant_name}, which has nothing"
    for tenant_name, tenant in tenants.items():
        busy = tenant.count(*WAITING, RUNNING) > 0
        if not busy == tenant.busy == (tenant_name in active):
            yield f"tenant {tenant_name} of {name} is wrongly listed as active or not"


def _alarm(shard: Shard, name: str, queue: Queue) -> Iterator[str]:
    """If only its rate holds a queue back, somebody will wake up for it."""
    conf = shard.confs.get(name)
    if conf is None or conf.paused or not queue.weight:
        return
    limit = Limit(
        concurrency=conf.concurrency,
        rate=conf.rate,
        burst=conf.burst,
        since=queue.since,
        gone=queue.gone,
    )
    closed = limit.closed(queue.counts[RUNNING - 1])
    if not closed and limit.waits(shard.now) and f"{name}\x1f" not in shard.order("alarms"):
        yield f"queue {name} waits for its rate, and nothing will tell when that allows more"


def _tenant(
    shard: Shard, queue_name: str, queue: Queue, name: str, tenant: Tenant
) -> Iterator[str]:
    """Whoever has queued work and nothing against it is where fetch looks."""
    who, status = f"tenant {name} of {queue_name}", tenant.status
    queued, entries = tenant.count(QUEUED), sum(tenant.lengths)
    field = f"{queue_name}\x1f{name}"
    if (status == IDLE) != (queued == 0):
        yield f"{who} is {STATUSES[status]}, {queued} queued"
    if status == IDLE and entries:
        yield f"{who} is idle but its lines hold {entries} entries"
    if tenant.pause != (status == PAUSED) and (not tenant.pause or status != IDLE):
        yield f"{who} is {STATUSES[status]}, which is not what was set for it"
    if (status == AT_LIMITER) != (tenant.spot != ""):
        yield f"{who} is {STATUSES[status]} with a place at limiter {tenant.spot!r}"
    if tenant.woken and status != READY:
        yield f"{who} is {STATUSES[status]} and keeps the wake-up of limiter {tenant.woken}"
    if tenant.gated and field not in shard.gates:
        yield f"{who} has a limit that is stored nowhere"
    if not sum(tenant.counts):
        saved = name in shard.order(f"saved:{queue_name}")
        if tenant.tag <= queue.clock and not saved:
            yield f"{who} has nothing and will never be forgotten"
    if status == PARKED:
        yield from _parked(shard, who, field, tenant)
    if status == AT_LIMITER:
        yield from _waits(shard, queue_name, name, tenant)


def _parked(shard: Shard, who: str, field: str, tenant: Tenant) -> Iterator[str]:
    gate = shard.gates.get(field)
    alarmed = field in shard.order("alarms")
    if gate is None:
        yield f"{who} is parked for no reason"
    elif not alarmed and not gate.closed(tenant.count(RUNNING)):
        yield f"{who} is parked although there is room, or will be without anybody telling"


def _waits(shard: Shard, queue: str, name: str, tenant: Tenant) -> Iterator[str]:
    spot = tenant.spot
    limiter = shard.limiters.get(spot)
    if name not in shard.order(f"waiters:{spot}:{queue}"):
        yield f"tenant {name} of {queue} waits at limiter {spot}, which does not know of it"
    elif limiter is None:
        yield f"tenant {name} of {queue} waits at limiter {spot}, which does not exist"
    elif not limiter.full(shard.now) and f"\x1f{spot}" not in shard.order("alarms"):
        woken = any(each.woken == spot for each in shard.tenants[queue].values())
        if not woken:
            yield f"tenant {name} of {queue} waits for limiter {spot}, which has room"


def _limiters(shard: Shard) -> Iterator[str]:
    """Room is held by running tasks only, and by each once."""
    used: Counter[str] = Counter()
    for task in shard.tasks.values():
        if task.state == RUNNING:
            used.update(task.limiters)
    for name in used.keys() | shard.limiters.keys():
        said = shard.limiters[name].used if name in shard.limiters else 0
        if said != used[name]:
            yield f"limiter {name} counts {said:.0f}, {used[name]} are held"
    yield from _probes(shard)


def _probes(shard: Shard) -> Iterator[str]:
    """The probes of a breaker are those that were lent since it opened."""
    probing: Counter[str] = Counter()
    for task in shard.tasks.values():
        for name in task.limiters if task.state == RUNNING else ():
            limiter = shard.limiters.get(name)
            circuit = limiter.circuit if limiter is not None else None
            if circuit is not None and circuit.opened_at is not None:
                probing[name] += task.record.token > circuit.last_token
    for name, limiter in shard.limiters.items():
        if limiter.circuit.probing != probing[name]:
            said = limiter.circuit.probing
            yield f"limiter {name} counts {said} probes, {probing[name]} run"
        if limiter.circuit.last_token > shard.meta.get("token", 0.0):
            yield f"limiter {name} opened after a token that was never given"


def _lobbies(shard: Shard) -> Iterator[str]:
    """A limiter knows who waits at it: how many of which queue, and who they are."""
    counted = {
        (limiter, queue): number
        for limiter, order in shard.family("lobby:")
        for queue, number in order.items()
    }
    for name, order in shard.family("waiters:"):
        limiter, _, queue = name.partition(":")
        said = counted.pop((limiter, queue), 0)
        if said != len(order):
            yield f"limiter {limiter} counts {said:.0f} waiters of {queue}, there are {len(order)}"
        for tenant_name in order:
            tenant = shard.tenants.get(queue, {}).get(tenant_name)
            if tenant is None or (tenant.status, tenant.spot) != (AT_LIMITER, limiter):
                who = f"tenant {tenant_name} of {queue}"
                yield f"limiter {limiter} would wake {who}, which does not wait there"
    for (limiter, queue), said in counted.items():
        yield f"limiter {limiter} counts {said:.0f} waiters of {queue}, there are 0"
