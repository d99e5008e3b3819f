"""What must hold for pins: a task is kept for each that will read it, for nobody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fairlead.broker.redis.audit.reading import read_uses
from fairlead.broker.redis.audit.values import CANCELLED, COMPLETED, DEAD, FINAL, Task
from fairlead.broker.redis.audit.walk import Shard

_USES = 32  # of the flags of a record: it has 'uses'


def check_pins(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with pins, and with what is kept for them."""
    yield from _counts(shard)
    yield from _uses(shard)
    yield from _asides(shard)
    ends = shard.order("xcom-ends")
    for field, (till, *_) in shard.hash("xcom").items():
        if ends.get(field, till) < till:
            tenant, _, key = field.partition("\x1f")
            yield f"the XCom value {key} of {tenant} would be looked at before its end"


def _counts(shard: Shard) -> Iterator[str]:
    wanted, pins, ties = _wanted(shard), shard.hash("pins"), shard.hash("ties")
    for id, task in shard.tasks.items():
        said, there = pins.get(id, 0), wanted[id, task.record.life]
        if said != there:
            yield f"task {id} counts {said} pins, there are {there}"
        tie = ties.get(id, "")
        if (id in pins) != ("p" in tie or ("o" in tie and task.state == COMPLETED)):
            yield f"task {id} is pinned, or is not, but its ties say otherwise"
        if shard.is_aside(task) and task.record.expires:
            yield f"task {id} is pinned but has a time to be forgotten"
    for id in pins:
        if id not in shard.tasks:
            yield f"'pins' holds {id}, which no longer exists"


def _wanted(shard: Shard) -> Counter[tuple[str, int]]:
    """How many pins each life of a task should have: of those who use it, and in transit."""
    wanted: Counter[tuple[str, int]] = Counter()
    for id, uses in shard.hash("uses").items():
        task = shard.tasks.get(id)
        if task is not None and task.state not in FINAL:
            wanted.update(uses)
    for text in shard.lists.get("unpins", []):
        try:
            uses = read_uses(text[1:].encode())
        except ValueError:
            shard.findings.append(f"'unpins' holds what cannot be read: {text!r}")
            continue
        wanted.update(uses) if text[0] == "-" else wanted.subtract(uses)
    return wanted


def _uses(shard: Shard) -> Iterator[str]:
    uses = shard.hash("uses")
    for id in uses:
        if id not in shard.tasks:
            yield f"'uses' holds {id}, which no longer exists"
    for id, task in shard.tasks.items():
        said = bool(task.record.flags & _USES)
        if said != (id in uses):
            yield f"task {id} has {'no ' if said else ''}uses, its record says otherwise"
        elif said and task.state in FINAL and not _may_return(task):
            yield f"task {id} is {task.shown} and still has uses"


def _may_return(task: Task) -> bool:
    """Whether it may be put to work again: a dead one, or one that ended for another."""
    return task.state == DEAD or (task.state == CANCELLED and not task.bodiless)


def _asides(shard: Shard) -> Iterator[str]:
    """Which tasks count for no cap is known without looking for them."""
    there: Counter[str] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for task in filter(shard.is_aside, shard.tasks.values()):
        there[task.queue] += 1
        sizes[task.queue, task.tenant] += task.bytes
    for name, tenants in shard.tenants.items():
        for tenant_name, tenant in tenants.items():
            said, size = tenant.pin_bytes, sizes[name, tenant_name]
            if said != size:
                who = f"tenant {tenant_name} of {name}"
                yield f"{who} counts {said:.0f} bytes of pinned tasks, there are {size}"
    asides = shard.hash("aside")
    for name in sorted(there.keys() | asides.keys()):
        if asides.get(name, "0") != str(there[name]):
            yield f"queue {name} counts {asides.get(name, 0)} tasks aside, there are {there[name]}"
    for field, number in (("aside", there.total()), ("unpins", len(shard.lists.get("unpins", [])))):
        said = shard.meta.get(field, 0.0)
        if said != number:
            yield f"'meta' counts {said:.0f} under {field!r}, there are {number}"
