"""What must hold for counters: they agree with each other, and those of an hour end with it."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.redis.looking import Counters

__all__ = ("check_counters",)

_HOUR = 3_600


def check_counters(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with what was counted."""
    for name, queue in shard.queues.items():
        yield from _queue(name, queue.counted)
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


def _queue(name: str, counted: Counters) -> Iterator[str]:
    counts, times = counted.counts, counted.times
    started, waits = counts["started"], times["wait"].count
    if started != waits:
        yield f"queue {name} counts {started} attempts that began and {waits} waits before them"
    if times["run"].count > started:
        yield f"queue {name} counts more run times than the {started} attempts that began"
    if counts["retried"] > counts["failed"]:
        yield f"queue {name} counts more attempts that are repeated than attempts that failed"
