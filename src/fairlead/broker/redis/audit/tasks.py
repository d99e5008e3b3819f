"""What must hold for every task: one message, one place, a lease while it runs, its own keys."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from fairlead.broker.redis.audit.values import (
    COMPLETED,
    DEAD,
    DEFERRED,
    FINAL,
    PARTS,
    QUEUED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    WAITING,
    Record,
    Task,
)
from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.redis.layout import US

_DUE = frozenset((SCHEDULED, RETRYING))
_ASLEEP = frozenset((SCHEDULED, RETRYING, DEFERRED))
_BEHIND = 9e18  # where deferred tasks stand among those that are asleep
_LEVEL = 2  # its place in a head
_DIGEST = 40  # bytes that stand for a body that was dropped
_TO_END = 2  # a unique key that is held until its task is over


def check_tasks(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with single tasks and with what belongs to them."""
    yield from _messages(shard)
    yield from _parts(shard)
    yield from _lines(shard)
    yield from _moments(shard)
    yield from _shelves(shard)
    yield from _leases(shard)
    yield from _running(shard)
    yield from _keys(shard)


def _messages(shard: Shard) -> Iterator[str]:
    """A record belongs to a message, and both say the same."""
    for id, task in shard.tasks.items():
        message, record = task.message, task.record
        if message is None:
            yield f"task {id} has a record but no message"
        elif message.life != record.life or not _same_head(message.head, record):
            yield f"task {id} has a record that belongs to another message"
        elif task.bodiless:
            if (record.size, message.size) != (0, _DIGEST):
                yield f"task {id} should have lost its body, but {message.size} bytes are there"
        elif message.size != record.size:
            yield f"task {id} has {message.size} bytes, its record says {record.size}"
        if record.life > shard.meta.get("life", 0.0):
            yield f"task {id} has a life that was never given"


def _same_head(head: bytes, record: Record) -> bool:
    """Whether a message has the head of a record, but for the level if that was changed."""
    if not record.moved:
        return head == record.head
    one, other = head.split(US), record.head.split(US)
    return one[:_LEVEL] == other[:_LEVEL] and one[_LEVEL + 1 :] == other[_LEVEL + 1 :]


def _parts(shard: Shard) -> Iterator[str]:
    """Errors, results, progress and checkpoints are there if the record says so, and count."""
    sizes: dict[str, int] = defaultdict(int)
    for bit, name in PARTS.items():
        kept = shard.hash(name)
        for id, size in kept.items():
            sizes[id] += size
            if id not in shard.tasks:
                yield f"{name!r} holds something of {id}, which no longer exists"
        for id, task in shard.tasks.items():
            said = bool(task.record.flags & bit)
            if said != (id in kept):
                yield f"task {id} has {'no ' if said else ''}{name}, its record says otherwise"
    for id, task in shard.tasks.items():
        if task.record.extra != sizes[id]:
            yield f"task {id} counts {task.record.extra} bytes of parts, there are {sizes[id]}"


def _lines(shard: Shard) -> Iterator[str]:
    """Each queued task stands once, in the line of its tenant and level.

    What is left of tasks that went elsewhere is skipped by whoever comes across it.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name, line in shard.family("line:"):
        for entry in line:
            task = shard.tasks.get(entry.partition("\x1f")[0])
            if task is not None and task.state == QUEUED and task.entry == entry:
                found[task.id].append(name)
    for id, task in shard.tasks.items():
        if task.state != QUEUED:
            continue
        places = found.get(id, [])
        if len(places) != 1:
            yield f"task {id} is queued but stands {len(places)} times in lines"
        elif places[0] != f"{task.queue}:{task.level}:{task.tenant}":
            yield f"task {id} stands in the line {places[0]!r}, which is not its own"


def _moments(shard: Shard) -> Iterator[str]:
    """What has to be done at a time is noted for that time, and nothing else is."""
    due, deadlines = dict(shard.order("due")), shard.order("deadlines")
    asleep = {
        (name, id): at for name, order in shard.family("asleep:") for id, at in order.items()
    }  # queue:tenant and id
    first: dict[str, float] = {}  # of each tenant, when the next of its tasks is due
    for id, task in shard.tasks.items():
        yield from _deadline(task, deadlines.get(id))
        place = (f"{task.queue}:{task.tenant}", id)
        at = asleep.pop(place, None)
        if (task.state in _ASLEEP) != (at is not None):
            yield f"task {id} is {task.shown}, which 'asleep:{place[0]}' does not agree with"
        elif task.state in _DUE:
            if at != task.record.due:
                yield f"task {id} is {task.shown} but will not be looked at when it is due"
            tenant = f"{task.queue}\x1f{task.tenant}"
            first[tenant] = min(first.get(tenant, math.inf), task.record.due)
        elif at not in (None, _BEHIND):
            yield f"task {id} is {task.shown} but stands where scheduled tasks are"
    for name, id in sorted(asleep):
        yield f"'asleep:{name}' holds {id}, which is not one of its tasks"
    for tenant, at in first.items():
        look = due.pop(tenant, None)
        if look is None or (look != at and not at < look <= shard.now):
            yield f"'due' has {_named(tenant)} looked at {look}, its next task is due at {at}"
    for tenant in due:
        yield f"'due' holds {_named(tenant)}, of which nothing is due"
    for id in deadlines:
        if id not in shard.tasks:
            yield f"'deadlines' holds {id}, which no longer exists"


def _named(key: str) -> str:
    queue, _, tenant = key.partition("\x1f")
    return f"tenant {tenant} of {queue}"


def _deadline(task: Task, kept: float | None) -> Iterator[str]:
    """A waiting task may start at its deadline, but not a moment later."""
    deadline = task.record.deadline
    if not deadline or task.state not in WAITING:
        if kept is not None:
            yield f"task {task.id} is {task.shown} but its deadline is still watched"
    elif kept != math.nextafter(deadline, math.inf):
        yield f"task {task.id} is {task.shown} but its deadline is not watched as it should be"


def _shelves(shard: Shard) -> Iterator[str]:
    """Finished tasks are kept where retention finds them, once.

    In the lists there may be ids whose task is gone or was put to other use. Pinned ones stand
    nowhere.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for name, line in shard.family("kept:"):
        last = 0.0
        for id in line:
            task = shard.tasks.get(id)
            if task is not None and task.state == COMPLETED and not task.set_aside:
                places[id].append(f"done:{name}")
                if task.record.expires < last:
                    yield f"task {id} is kept behind others that are kept longer"
                last = task.record.expires
    for family in ("done:", "dead:"):
        for name, order in shard.family(family):
            for id, expires in order.items():
                places[id].append(family + name)
                task = shard.tasks.get(id)
                if task is None:
                    yield f"'{family}{name}' holds {id}, which no longer exists"
                elif task.record.expires != expires and task.state in FINAL:
                    yield f"task {id} is kept until another time than its record says"
    for id, task in shard.tasks.items():
        shelf = f"{'dead' if task.state == DEAD else 'done'}:{task.queue}"
        aside = shard.is_aside(task)
        kept = task.state in FINAL and not aside
        found = places.get(id, [])
        if len(found) != kept or (kept and found[0] not in (shelf, f"{shelf}:{task.tenant}")):
            yield f"task {id} is {task.shown} but is kept on {places.get(id) or 'no shelf'}"


def _leases(shard: Shard) -> Iterator[str]:
    """A lease belongs to one incarnation, and every one of those has an end.

    What was lent by one call stands in one member, by its token, for as long as it is on loan.
    """
    leases = shard.order("leases")
    for name, calls in shard.family("held:"):
        if name not in leases:
            yield f"incarnation {name} has a lease that the sweep would not find"
        for member, token in calls.items():
            number, *ids = member.split("\x1f")
            if not number.isdigit() or not ids:
                yield f"incarnation {name} is kept without leases under token {token:.0f}"
            for id in ids:
                task = shard.tasks.get(id)
                if task is None or not (
                    task.state == RUNNING
                    and (task.record.incarnation, task.record.token) == (name, token)
                ):
                    yield f"incarnation {name} counts a loan of {id}, which it does not have"
    for name in leases:
        if not shard.order(f"held:{name}"):
            yield f"'leases' has an end for incarnation {name}, which holds nothing"


def _running(shard: Shard) -> Iterator[str]:
    """What runs is on loan to somebody, who is told with each heartbeat what to stop."""
    last = shard.meta.get("token", 0.0)
    asked = {
        (name, id): token
        for name, order in shard.family("cancelling:")
        for id, token in order.items()
    }
    on_loan = {
        (name, token, id)
        for name, calls in shard.family("held:")
        for member, token in calls.items()
        for id in member.split("\x1f")[1:]
    }
    for id, task in shard.tasks.items():
        if task.state != RUNNING:
            continue
        holder, token = task.record.incarnation, task.record.token
        if (holder, token, id) not in on_loan:
            yield f"task {id} is running but {holder} does not hold it"
        if not 0 < token <= last:
            yield f"task {id} runs under token {token}, which was never given"
        if asked.pop((holder, id), None) != (token if task.cancelling else None):
            yield f"incarnation {holder} does not know whether {id} is to be cancelled"
    for name, id in asked:
        yield f"incarnation {name} is told to cancel {id}, which it does not run"


def _keys(shard: Shard) -> Iterator[str]:
    """Unique keys and XCom values belong to something that lives, or end by themselves."""
    unique, windows = shard.hash("unique"), shard.order("windows")
    for field, id in unique.items():
        tenant, _, key = field.partition("\x1f")
        task = shard.tasks.get(id)
        if field not in windows and (
            task is None
            or task.state in FINAL
            or not task.record.hold
            or (task.tenant, task.record.unique) != (tenant, key)
        ):
            yield f"unique key {key} of {tenant} is held by {id}, which is over"
    for id, task in shard.tasks.items():
        held = task.record.hold == _TO_END and not task.record.generation
        field = f"{task.tenant}\x1f{task.record.unique}"
        if held and task.state not in FINAL and unique.get(field) != id:
            yield f"task {id} should hold the unique key {task.record.unique} but does not"
    for field in windows.keys() - unique.keys():
        yield f"'windows' ends the unique key {_shown(field)}, which nobody holds"
    values, ends = shard.hash("xcom"), shard.order("xcom-ends")
    for field in values.keys() - ends.keys():
        yield f"the XCom value {_shown(field)} has no end"
    for field in ends.keys() - values.keys():
        yield f"'xcom-ends' ends the XCom value {_shown(field)}, which does not exist"
    sizes, said = xcom_sizes(values), shard.hash("xcom-bytes")
    for tenant in sizes.keys() | said.keys():
        if said.get(tenant, "0") != str(sizes[tenant]):
            there = f"there are {sizes[tenant]}"
            yield f"tenant {tenant} counts {said.get(tenant)} bytes of XCom values, {there}"


def xcom_sizes(values: dict[str, tuple[float, str, int]]) -> Counter[str]:
    """What XCom values count for, by tenant."""
    sizes: Counter[str] = Counter()
    for field, (_, _, size) in values.items():
        sizes[field.partition("\x1f")[0]] += size
    return sizes


def _shown(field: str) -> str:
    tenant, _, key = field.partition("\x1f")
    return f"{key} of {tenant}"
