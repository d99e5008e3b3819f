"""Looks for what must never be: a task in two places or none, counts that are off, lost waiters.

Walks everything, so it is for operators and tests. Each finding is one sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from fairlead.broker.leadership import MAX_LEADERS, MAX_LEADERSHIP
from fairlead.broker.memory.audit_flows import check_flows
from fairlead.broker.memory.fair import IDLE, PARKED, READY, Queue
from fairlead.broker.memory.limits import Limiter
from fairlead.broker.memory.records import xcom_bytes
from fairlead.broker.memory.retention import Shelf
from fairlead.broker.memory.schedules import due
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.memory.transitions import Shard
from fairlead.model.lifecycle import FINAL, WAITING, State


def audit(shard: Shard) -> list[str]:
    """Everything that is wrong; empty if nothing is."""
    return [
        *_places(shard),
        *_due(shard),
        *_counts(shard),
        *_bytes(shard),
        *_leases(shard),
        *_workers(shard),
        *_dependencies(shard),
        *_pins(shard),
        *_keys(shard),
        *_tenants(shard),
        *_limiters(shard),
        *check_flows(shard),
        *_schedules(shard),
        *_documents(shard),
        *_leaders(shard),
        *_counters(shard),
    ]


def _places(shard: Shard) -> Iterator[str]:
    """Every task is in exactly one place, and every index points at a task."""
    in_level = Counter(
        entry[0].id
        for queue in shard.queues.values()
        for tenant in queue.tenants.values()
        for level in tenant.levels
        for entry in level
        if entry[0] is not None
    )
    for id, task in shard.tasks.items():
        leased = task.incarnation in shard.incarnations and (
            id in shard.incarnations[task.incarnation].leases
        )
        places = {
            State.QUEUED: in_level[id],
            State.RUNNING: int(task.state is State.RUNNING and leased),
            State.DEFERRED: int(bool(task.blocked_by)),
        }
        places[State.SCHEDULED] = places[State.RETRYING] = int(task.due_key in task.tenant.due)
        kept = int(task.state in FINAL and task in task.tenant.queue.shelf(task.state))
        if task.aside:
            kept += 1  # where it is for as long as it is pinned
        expected = kept if task.state in FINAL else places[task.state]
        if expected != 1:
            yield f"task {id} is {task.state} but stands {expected} times where such tasks are"
        for state, count in places.items():
            if (
                count
                and state is not task.state
                and {state, task.state}
                != {
                    State.SCHEDULED,
                    State.RETRYING,
                }
            ):
                yield f"task {id} is {task.state} but stands where {state} tasks are"
        if (task.state in WAITING) != (id in task.tenant.waiting):
            yield f"task {id} is {task.state}, which its tenant's backlog does not agree with"
        if task.tenant.queue.tenants.get(task.message.tenant) is not task.tenant:
            yield f"task {id} belongs to a tenant record that its queue has dropped"
    for id in in_level:
        if id not in shard.tasks:
            yield f"a level holds {id}, which no longer exists"


def _due(shard: Shard) -> Iterator[str]:
    """Each tenant with tasks that are due some time is looked at in time, and no other is."""
    tenants = {t.key: t for queue in shard.queues.values() for t in queue.tenants.values()}
    for key, tenant in tenants.items():
        for _, id in tenant.due:
            if id not in shard.tasks or shard.tasks[id].tenant is not tenant:
                yield f"tenant {tenant.name} of {tenant.queue.name} waits for {id}, not its own"
        first, look = tenant.due.first(), shard.due.get(key)
        if (first is None) != (look is None) or (
            first is not None
            and look is not None
            and look != first[0]
            and not first[0] < look <= shard.now
        ):
            yield f"tenant {tenant.name} of {tenant.queue.name} is not looked at when it has to be"
    for key in shard.due:
        if key not in tenants:
            yield f"a tenant {key} is looked at that does not exist"


def _counts(shard: Shard) -> Iterator[str]:
    """Counters say what a walk would."""
    by_queue: Counter[tuple[str, State]] = Counter()
    by_tenant: Counter[tuple[str, str, State]] = Counter()
    for task in shard.tasks.values():
        message = task.message
        by_queue[message.queue, task.state] += 1
        by_tenant[message.queue, message.tenant, task.state] += 1
    for queue in shard.queues.values():
        for state in State:
            if queue.counts[state] != by_queue[queue.name, state]:
                yield (
                    f"queue {queue.name} counts {queue.counts[state]} {state} tasks, "
                    f"there are {by_queue[queue.name, state]}"
                )
        if queue.depth != sum(queue.counts[state] for state in WAITING):
            yield f"queue {queue.name} has depth {queue.depth}, which its counts do not add up to"
        for tenant in queue.tenants.values():
            for state in State:
                if tenant.counts[state] != by_tenant[queue.name, tenant.name, state]:
                    yield f"tenant {tenant.name} of {queue.name} miscounts its {state} tasks"
            if tenant.known != sum(tenant.counts.values()):
                yield f"tenant {tenant.name} of {queue.name} miscounts its tasks: {tenant.known}"
            busy = bool(tenant.waiting) or tenant.counts[State.RUNNING] > 0
            if busy != (tenant.name in queue.active):
                yield f"tenant {tenant.name} of {queue.name} is wrongly listed as active or not"


def _bytes(shard: Shard) -> Iterator[str]:
    """It is known how much each tenant has and keeps; what is pinned stands on no shelf."""
    kept: Counter[tuple[Shelf, str]] = Counter()
    live: Counter[tuple[str, str]] = Counter()
    pinned: Counter[tuple[str, str]] = Counter()
    for task in shard.tasks.values():
        if task.state not in FINAL:
            live[task.tenant.key] += task.counted_bytes()
        elif task.aside:
            pinned[task.tenant.key] += task.counted_bytes()
        else:
            kept[task.tenant.queue.shelf(task.state), task.tenant.name] += task.counted_bytes()
    for queue in shard.queues.values():
        for tenant in queue.tenants.values():
            if tenant.live_bytes != live[tenant.key]:
                yield f"tenant {tenant.name} of {queue.name} miscounts the bytes of its tasks"
            if tenant.pinned_bytes != pinned[tenant.key]:
                yield f"tenant {tenant.name} of {queue.name} miscounts the bytes of pinned tasks"
            for shelf in (queue.finished, queue.dead):
                if shelf.held(tenant) != kept[shelf, tenant.name]:
                    yield f"tenant {tenant.name} of {queue.name} miscounts the bytes it keeps"


def _leases(shard: Shard) -> Iterator[str]:
    """A lease belongs to one incarnation, and every one of those has an end."""
    for name, incarnation in shard.incarnations.items():
        if not incarnation.leases:
            yield f"incarnation {name} is kept without leases"
        if shard.lease_ends.get(name) != incarnation.lease_end:
            yield f"incarnation {name} has a lease that the sweep would not find"
        for id, task in incarnation.leases.items():
            if shard.tasks.get(id) is not task or task.state is not State.RUNNING:
                yield f"incarnation {name} holds {id}, which is not running"
            elif task.incarnation != name or task.token > shard.token:
                yield f"incarnation {name} holds {id} under a lease that is not its own"


def _workers(shard: Shard) -> Iterator[str]:
    """A worker's record ends, and what it was ordered to do goes with it."""
    for name in shard.workers.keys() ^ set(shard.worker_ends):
        yield f"worker {name} is registered without an end, or has an end only"
    for name in shard.worker_orders.keys() - shard.workers.keys():
        yield f"worker {name} has an order, but is not registered"


def _dependencies(shard: Shard) -> Iterator[str]:
    """Both directions agree, and every wait has something that will end it."""
    in_transit = {
        (parent.id, child.id) for parent, _, children in shard.releases for child in children
    }
    for id, task in shard.tasks.items():
        for parent_id in task.blocked_by or ():
            if task.flow is not None and parent_id == task.flow.guard.id:
                continue  # see audit_flows
            parent = shard.tasks.get(parent_id)
            known = parent is not None and id in (parent.dependents or ())
            if (parent_id, id) in in_transit:
                continue  # it is about to be told
            if not known:
                yield f"task {id} waits for {parent_id}, which does not know of it"
            elif parent is not None and parent.state is State.COMPLETED:
                yield f"task {id} waits for {parent_id}, which is completed"
        for child_id, child in (task.dependents or {}).items():
            if shard.tasks.get(child_id) is not child or id not in (child.blocked_by or ()):
                yield f"task {id} would release {child_id}, which does not wait for it"


def _pins(shard: Shard) -> Iterator[str]:
    """A task is pinned once by each that will read its result, and by nobody else."""
    wanted: Counter[tuple[str, int]] = Counter()
    for task in shard.tasks.values():
        if task.state not in FINAL:
            wanted.update(task.uses)
    for again, id, sequence in shard.unpins:
        wanted[id, sequence] += -1 if again else 1
    for id, task in shard.tasks.items():
        if task.pins != wanted[id, task.sequence]:
            yield f"task {id} counts {task.pins} pins, there are {wanted[id, task.sequence]}"


def _keys(shard: Shard) -> Iterator[str]:
    """Unique keys, deadlines and XCom values belong to something that lives."""
    for (tenant, key), id in shard.unique.items():
        if (tenant, key) in shard.windows:
            continue
        task = shard.tasks.get(id)
        if task is None or task.state in FINAL or task.unique is None:
            yield f"unique key {key} of {tenant} is held by {id}, which is over"
    for id, task in shard.tasks.items():
        timed = task.deadline_at is not None and task.state in WAITING
        if timed != (id in shard.deadlines):
            yield f"the deadline of {id} ({task.state}) is not kept as it should be"
    if set(shard.xcom) != {key for key in shard.xcom if key in shard.xcom_ends}:
        yield "an XCom value has no end"
    sizes: Counter[str] = Counter()
    for (tenant, _), (value, _, writer) in shard.xcom.items():
        sizes[tenant] += xcom_bytes(value, writer)
    if sizes != shard.xcom_bytes:
        yield f"XCom values count for {dict(sizes)}, not {dict(shard.xcom_bytes)}"


def _tenants(shard: Shard) -> Iterator[str]:
    """Whoever has queued work and nothing against it is where fetch looks."""
    for queue in shard.queues.values():
        reachable = queue.ready_names
        ready = [t for t in queue.tenants.values() if t.status is READY]
        if queue.ready_weight != sum(t.weight for t in ready):
            yield f"queue {queue.name} has a wrong sum of weights"
        for tenant in queue.tenants.values():
            queued = tenant.counts[State.QUEUED]
            if (tenant.status is IDLE) != (queued == 0):
                yield f"tenant {tenant.name} of {queue.name} is {tenant.status}, {queued} queued"
            if tenant.status is READY and tenant.name not in reachable:
                yield f"tenant {tenant.name} of {queue.name} is ready but fetch cannot find it"
            if tenant.status is PARKED:
                yield from _parked(shard, queue, tenant.name)


def _parked(shard: Shard, queue: Queue, name: str) -> Iterator[str]:
    tenant = queue.tenants[name]
    gate = tenant.parked_on
    if gate is None:
        yield f"tenant {name} of {queue.name} is parked for no reason"
    elif isinstance(gate, Limiter):
        woken = any(t.woken_by is gate for t in queue.tenants.values())
        told = gate.room(shard.now) == math.inf or ("", gate.name) in shard.alarms
        if not told and not woken:
            yield f"tenant {name} of {queue.name} waits for limiter {gate.name}, which has room"
    elif (
        gate.closed_until(tenant.counts[State.RUNNING], shard.now) is None
        and (queue.name, name) not in shard.alarms
    ):
        yield f"tenant {name} of {queue.name} is parked although there is room"


def _limiters(shard: Shard) -> Iterator[str]:
    """Room is held by running tasks only, and by each once."""
    used: Counter[str] = Counter()
    probing: Counter[str] = Counter()
    for task in shard.tasks.values():
        if task.held and task.state is not State.RUNNING:
            yield f"task {task.id} holds limiters but does not run"
        used.update(limiter.name for limiter in task.held)
        for limiter in task.held:
            circuit = limiter.circuit
            if circuit.opened_at is not None and task.token > circuit.last_token:
                probing[limiter.name] += 1
    for limiter in shard.limiters.values():
        said, there = limiter.circuit.probing, probing[limiter.name]
        if said != there:
            yield f"limiter {limiter.name} counts {said} probes, {there} run"
        if limiter.used != used[limiter.name]:
            yield f"limiter {limiter.name} counts {limiter.used}, {used[limiter.name]} are held"


def _schedules(shard: Shard) -> Iterator[str]:
    """What is to be fired will be looked at, and nothing else will."""
    for name, record in shard.schedules.items():
        at, tick = due(record), shard.ticks.get(name)
        if at is None and tick is not None:
            yield f"schedule {name} is looked at although it has nothing to fire"
        if at is not None and (tick is None or tick < at):
            yield f"schedule {name} is due at {at} and looked at {tick}"
        if record.revision > shard.token:
            yield f"schedule {name} has revision {record.revision}, which was never given"
    for name in set(shard.ticks) - shard.schedules.keys():
        yield f"schedule {name} is looked at, but is not stored"


def _documents(shard: Shard) -> Iterator[str]:
    """What ends is looked at when it does; trails know how much they keep."""
    documents = shard.documents
    for kind in documents.kinds.keys() | documents.ends.keys():
        known, ends = documents.kinds.get(kind, {}), documents.ends.get(kind, TimeIndex())
        timed = {name for name, each in known.items() if each.expires_at is not None}
        for name in timed ^ set(ends):
            yield f"document {name} of kind {kind} does not end as it should"
        for name in timed & set(ends):
            if ends.get(name) != known[name].expires_at:
                yield f"document {name} of kind {kind} is looked at {ends.get(name)}"
        if max((each.revision for each in known.values()), default=0) > shard.token:
            yield f"a document of kind {kind} has a revision that was never given"
    for name, trail in shard.trails.named.items():
        if trail.bytes != sum(len(note.value) for note in trail.notes):
            yield f"trail {name} miscounts the bytes of its notes"


def _counters(shard: Shard) -> Iterator[str]:
    """What was counted agrees with itself."""
    for queue in shard.queues.values():
        counts = queue.tally.shown(0)
        if counts.started != counts.wait.count:
            yield f"queue {queue.name} counts {counts.started} attempts, {counts.wait.count} waits"
        if counts.run.count > counts.started or counts.retried > counts.failed:
            yield f"queue {queue.name} counts more ends of attempts than there were"


def _leaders(shard: Shard) -> Iterator[str]:
    """Terms were given, and the time of every holder ends."""
    held = shard.leaders.held
    if len(held) > MAX_LEADERS:
        yield f"{len(held)} names are held"
    for name, each in held.items():
        if each.term > shard.token:
            yield f"{name} is led in term {each.term}, which was never given"
        if each.until > shard.now + MAX_LEADERSHIP:
            yield f"{name} is led until {each.until}"
