"""What must hold beside tasks and queues: mail, workers, events, bells, documents, counters."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fairlead.broker.documents import MAX_NOTES, MAX_TRAIL_BYTES
from fairlead.broker.leadership import MAX_LEADERS, MAX_LEADERSHIP
from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.redis.standing import Counters
from fairlead.broker.schedules import ScheduleRecord
from fairlead.broker.stats import HOUR

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
    yield from _schedules(shard)
    yield from _documents(shard)
    yield from _trails(shard)
    yield from _leaders(shard)
    yield from _counters(shard)
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


def _schedules(shard: Shard) -> Iterator[str]:
    """A schedule that has something to fire is looked at, and no other."""
    ticks = shard.order("ticks")
    known: dict[str, ScheduleRecord] = shard.hash("schedules")
    token = shard.meta.get("token", 0.0)
    for name, record in known.items():
        at, tick = None if record.paused else record.next_at, ticks.get(name)
        if at is None and tick is not None:
            yield f"schedule {name} is looked at although it has nothing to fire"
        if at is not None and (tick is None or tick < at):
            yield f"schedule {name} is due at {at} and looked at {tick}"
        if record.revision > token:
            yield f"schedule {name} has revision {record.revision}, which was never given"
    for name in ticks.keys() - known.keys():
        yield f"schedule {name} is looked at, but is not stored"


def _leaders(shard: Shard) -> Iterator[str]:
    """Terms of leaders were given, and their time ends."""
    held, token = shard.hash("leaders"), shard.meta.get("token", 0.0)
    latest = shard.meta.get("now", 0.0) + MAX_LEADERSHIP
    if len(held) > MAX_LEADERS:
        yield f"'leaders' has {len(held)} names, at most {MAX_LEADERS}"
    for name, (term, till) in held.items():
        if term > token:
            yield f"{name} is led in term {term}, which was never given"
        if not till <= latest:
            yield f"{name} is led until {till}, longer than anybody may ask for"


def _documents(shard: Shard) -> Iterator[str]:
    """Each document can be found, ends in time, and is counted."""
    stored = dict(shard.family("documents:"))
    named, timed = dict(shard.family("document-names:")), dict(shard.family("document-ends:"))
    looks, token = shard.order("document-ends"), shard.meta.get("token", 0.0)
    for kind in {**stored, **named, **timed, **looks}:
        known, ends = stored.get(kind, {}), timed.get(kind, {})
        for name in known.keys() ^ named.get(kind, {}).keys():
            what = "not listed" if name in known else "listed, but is not stored"
            yield f"document {name} of kind {kind} is {what}"
        for name, (revision, till) in known.items():
            if revision > token:
                yield f"document {name} of kind {kind} has a revision that was never given"
            if till != ends.get(name, 0.0):
                yield f"document {name} of kind {kind} ends at {till}, looked at {ends.get(name)}"
        for name in ends.keys() - known.keys():
            yield f"document {name} of kind {kind} has an end, but is not stored"
        first = min(ends.values(), default=math.inf)
        if (kind in looks) != bool(ends) or looks.get(kind, -math.inf) > first:
            yield f"documents of kind {kind} are looked at {looks.get(kind)}, not at {first}"


def _trails(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with trails."""
    said, token = shard.hash("trails"), shard.meta.get("token", 0.0)
    trails = dict(shard.family("trail:"))
    for name in said.keys() - trails.keys():
        yield f"trail {name} is counted, but has no notes"
    for name, notes in trails.items():
        rows = [row.split("\x1f") for row in notes]
        size = sum(int(length) for _, length in rows)
        if said.get(name) != str(size):
            yield f"trail {name} has {size} bytes, 'trails' says {said.get(name)}"
        if len(notes) > MAX_NOTES or size > MAX_TRAIL_BYTES:
            yield f"trail {name} keeps {len(notes)} notes of {size} bytes"
        for (number, _), score in zip(rows, notes.values(), strict=True):
            if not int(number) == score <= token:
                yield f"trail {name} has note {number} under {score:.0f}"


def _counters(shard: Shard) -> Iterator[str]:
    """Counters agree with each other, and those of an hour end with it."""
    for name, queue in shard.queues.items():
        yield from _counted(name, queue.counted)
    kept = shard.order("tallies")
    there = {name.replace(":", "\x1f", 1) for name, _ in shard.family("tally:")}
    for name in sorted(there - kept.keys()):
        yield f"'tally:{_shown(name)}' will never be forgotten"
    for name, ends in kept.items():
        hour = name.rpartition("\x1f")[2]
        if name not in there:
            yield f"'tallies' holds {_shown(name)}, which does not exist"
        elif not hour.isdecimal() or ends != HOUR * (int(hour) + 2):
            yield f"'tallies' keeps {_shown(name)} until {ends:.0f}"


def _shown(name: str) -> str:
    return name.replace("\x1f", ":")


def _counted(name: str, counted: Counters) -> Iterator[str]:
    counts, times = counted.counts, counted.times
    started, waits = counts["started"], times["wait"].count
    if started != waits:
        yield f"queue {name} counts {started} attempts that began and {waits} waits before them"
    if times["run"].count > started:
        yield f"queue {name} counts more run times than the {started} attempts that began"
    if counts["retried"] > counts["failed"]:
        yield f"queue {name} counts more attempts that are repeated than attempts that failed"
