"""What must hold for counters: they belong to queues, can be read, and agree with each other."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.stats import COUNTERS, HISTOGRAMS, Histogram

__all__ = ("check_counters",)

_BUCKETS = len(Histogram().counts)
_FIELDS = frozenset(
    (*COUNTERS, *(f"{name}:{i}" for name in HISTOGRAMS for i in (*range(_BUCKETS), "sum", "max")))
)
_HOUR = 3_600


def check_counters(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with what was counted."""
    for name, fields in shard.family("stats:"):
        if name not in shard.queues:
            yield f"'stats:{name}' belongs to no queue"
        yield from _queue(name, dict(fields))
    kept = shard.order("tallies")
    there = {name.replace(":", "\x1f", 1) for name, _ in shard.family("tally:")}
    for name in sorted(there - kept.keys()):
        yield f"'tally:{_shown(name)}' will never be forgotten"
    for name, ends in kept.items():
        hour = name.rpartition("\x1f")[2]
        if name not in there:
            yield f"'tallies' holds {_shown(name)}, which does not exist"
        elif not hour.isdecimal() or ends != _HOUR * (int(hour) + 2):
            yield f"'tallies' keeps {_shown(name)} until {ends:.0f}"


def _shown(name: str) -> str:
    return name.replace("\x1f", ":")


def _queue(name: str, fields: dict[str, str]) -> Iterator[str]:
    recent = fields.pop("recent", "0 0 0").split()
    if len(recent) != 3 or not all(map(str.isdecimal, recent)):
        yield f"'stats:{name}' holds what cannot be read for 'recent'"
    unread = [field for field, text in fields.items() if not text.isdecimal()]
    for field in unread:
        yield f"'stats:{name}' holds what cannot be read for {field!r}"
    for field in fields.keys() - _FIELDS:
        yield f"'stats:{name}' has a field {field!r} that nobody counts"
    if unread:
        return
    counts = {field: int(text) for field, text in fields.items()}
    started, waits = counts.get("started", 0), _total(counts, "wait")
    if started != waits:
        yield f"queue {name} counts {started} attempts that began and {waits} waits before them"
    if _total(counts, "run") > started:
        yield f"queue {name} counts more run times than the {started} attempts that began"
    if counts.get("retried", 0) > counts.get("failed", 0):
        yield f"queue {name} counts more attempts that are repeated than attempts that failed"


def _total(counts: dict[str, int], histogram: str) -> int:
    return sum(counts.get(f"{histogram}:{i}", 0) for i in range(_BUCKETS))
