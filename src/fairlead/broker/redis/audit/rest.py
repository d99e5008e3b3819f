"""What must hold for the rest of a shard: its own record, mail, answers, workers, events, bells."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fairlead.broker.redis.audit.documents import check_documents, check_trails
from fairlead.broker.redis.audit.leadership import check_leaders
from fairlead.broker.redis.audit.schedules import check_schedules
from fairlead.broker.redis.audit.walk import Shard

__all__ = ("check_rest",)

_KINDS = frozenset(("finished", "cancel", "lent"))
_POSTS = frozenset("lut")  # link, unlink, told
_MAX_LETTERS = 10_000


def check_rest(shard: Shard) -> Iterator[str]:
    """Everything that is wrong beside tasks and queues."""
    yield from _incarnations(shard)
    yield from _mail(shard)
    yield from _outboxes(shard)
    yield from _events(shard)
    yield from _bells(shard)
    yield from check_schedules(shard)
    yield from check_documents(shard)
    yield from check_trails(shard)
    yield from check_leaders(shard)
    yield from _tombs(shard)
    for reader, place in shard.hash("readers").items():
        if len(place.split(" ")) != 4:
            yield f"'readers' holds what cannot be read for {reader!r}"
    jobs = shard.meta.get("jobs", 0.0)
    for job, number in shard.order("jobs").items():
        if number > jobs:
            yield f"'jobs' holds {job!r} under a number that was never given"


def _tombs(shard: Shard) -> Iterator[str]:
    """Ids that are known without their tasks end by themselves."""
    ends, stones = shard.order("tomb-ends"), shard.hash("tombs")
    listed: set[str] = set()
    for tenant, order in shard.family("tombs:"):
        listed |= order.keys()
        if min(order.values(), default=math.inf) < ends.get(tenant, math.inf):
            yield f"'tombs:{tenant}' is looked at only after something in it is over"
        for id, till in order.items():
            if stones.get(id) != (till, tenant):
                yield f"the tomb of {id} is not what 'tombs:{tenant}' says"
    for id in stones.keys() - listed:
        yield f"the tomb of {id} has no end"
    for tenant in ends:
        if f"tombs:{tenant}" not in shard.orders:
            yield f"'tomb-ends' has tenant {tenant}, which has no tombs"
    said = shard.meta.get("tombs", 0.0)
    if said != len(stones):
        yield f"'meta' counts {said:.0f} tombs, there are {len(stones)}"


def _incarnations(shard: Shard) -> Iterator[str]:
    """What is kept for an incarnation ends with it."""
    idle = shard.order("idle")
    for name in shard.hash("answers").keys() - idle.keys():
        yield f"'answers' keeps one for incarnation {name}, which will never be forgotten"
    for family in ("mail:", "mailbell:"):
        for name, _ in shard.family(family):
            if name not in idle:
                yield f"'{family}{name}' belongs to an incarnation that will never be forgotten"
    workers, seen = shard.hash("workers").keys(), shard.order("seen").keys()
    for name in workers - seen:
        yield f"'workers' keeps {name}, which will never be forgotten"
    for name, order in shard.hash("orders").items():
        if name not in workers or order not in ("p", "s"):
            yield f"'orders' has {order!r} for {name}, which cannot be"
    for name in seen - workers:
        yield f"'seen' keeps {name}, which is no worker"


def _mail(shard: Shard) -> Iterator[str]:
    """Letters are numbered in their order, and there are not too many of them."""
    written = shard.meta.get("letters", 0.0)
    for name, letters in shard.family("mail:"):
        last = 0
        if len(letters) > _MAX_LETTERS:
            yield f"incarnation {name} has {len(letters)} letters"
        for letter in letters:
            fields = letter.split("\x1f")
            if len(fields) != 5 or not fields[0].isdecimal() or fields[1] not in _KINDS:
                yield f"'mail:{name}' holds what cannot be read: {letter!r}"
                continue
            number = int(fields[0])
            if not last < number <= written:
                yield f"'mail:{name}' holds letter {number} behind {last} of {written:.0f}"
            last = number


def _outboxes(shard: Shard) -> Iterator[str]:
    """What other shards have to be told is numbered in its order."""
    posted = shard.meta.get("posts", 0.0)
    for name, entries in shard.family("outbox:"):
        last = 0
        for entry in entries:
            number, *fields = entry.split("\x1f")
            if not number.isdecimal() or len(fields) != 5 or fields[0] not in _POSTS:
                yield f"'outbox:{name}' holds what cannot be read: {entry!r}"
                continue
            if not last < int(number) <= posted:
                yield f"'outbox:{name}' holds entry {number} behind {last} of {posted:.0f}"
            last = int(number)


def _events(shard: Shard) -> Iterator[str]:
    """The stream has the entries that were written and not dropped, and places to cut it."""
    length, first, last = shard.stream
    entry, dropped = shard.meta.get("entry", 0.0), shard.meta.get("dropped", 0.0)
    kept = shard.meta.get("entries", 0.0) - shard.meta.get("dropped_entries", 0.0)
    if length != kept or (length and not (dropped < first and last == entry)):
        yield (
            f"'events' has {length} entries from {first} to {last}, "
            f"not {kept:.0f} from beyond {dropped:.0f} to {entry:.0f}"
        )
    at = dropped
    for mark in shard.lists.get("marks", []):
        number, *counts = mark.split(" ")
        if not (number.isdecimal() and [count.isdecimal() for count in counts] == [True, True]):
            yield f"'marks' holds what cannot be read: {mark!r}"
        elif not at < int(number) <= entry:
            yield f"'marks' holds {number}, where no entry can be cut"
        else:
            at = int(number)


def _bells(shard: Shard) -> Iterator[str]:
    """A bell is rung or it is not."""
    for name, tokens in shard.lists.items():
        if name.partition(":")[0] in ("bell", "mailbell") and len(tokens) > 1:
            yield f"the bell {name!r} has {len(tokens)} tokens, at most 1"
