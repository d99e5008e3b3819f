"""What is measured of a peer, and how a figure is made from what it did."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.peers.catalog import Peer, Way
from benchmarks.peers.processes import Failure
from benchmarks.peers.trial import Trial
from fairlead.cli.demo.stats import percentile

__all__ = ("FULL", "MEASURES", "QUICK", "Figure", "Measure", "Sizes", "rate", "spread")

_IDLE_SLOTS = 10  # of a worker that waits; nobody is faster with more
_GAP = 0.02  # seconds from one task to the next while latency is measured
_WARM = 10  # tasks before, which find the worker, or open connections
# Tasks before memory is taken, and those whose memory it is. Tables of keys double in size: both
# sums are three quarters of a power of two, so that none is nearly empty.
_STORED, _STORED_SLOWLY = (288, 12_000), (72, 3_000)
_LEAST = 20  # tasks, however small the share


@dataclass(frozen=True)
class Sizes:
    """How much is done for a figure."""

    rounds: int
    share: float  # of the backlogs in the catalog
    seconds: float  # of enqueueing
    paced: int  # tasks whose latency is taken
    filled: float = 1.0  # of what is stored to see its memory


FULL = Sizes(rounds=3, share=1.0, seconds=2.0, paced=300)
QUICK = replace(FULL, rounds=1, share=0.4, seconds=0.7, paced=100)


class Figure(NamedTuple):
    """One column of the table."""

    key: str
    title: str
    less_is_better: bool = False
    digits: int = 0


@dataclass(frozen=True)
class Measure:
    """A way to measure, which gives a figure or several at once."""

    name: str
    figures: tuple[Figure, ...]
    take: Callable[[Trial, Sizes], tuple[float, ...]]
    way: Way | None = None  # that a peer must have
    tenants: tuple[int, ...] = ()  # with so many Fairlead is measured, too

    def applies_to(self, peer: Peer) -> bool:
        """Whether the peer can do that."""
        return self.way is None or self.way in peer.ways


def rate(found: Mapping[str, Sequence[int]], processes: int) -> float:
    """Return tasks a second, from when the last process had begun until the last task.

    Starting up does not count: peers differ in that, and do it once.
    """
    if len(found) < processes:
        raise Failure(f"only {len(found)} of {processes} processes ran tasks")
    began = max(min(moments) for moments in found.values())
    after = [moment for moments in found.values() for moment in moments if moment > began]
    if not after:
        raise Failure("one process had run everything before the other began")
    return len(after) / ((max(after) - began) / 1e9)


def spread(values: Iterable[float]) -> float:
    """Return half of the distance from the least to the most, as a part of the median."""
    found = list(values)
    return (max(found) - min(found)) / 2 / statistics.median(found)


def _processing(trial: Trial, sizes: Sizes, processes: int) -> tuple[float, ...]:
    tasks = max(round(trial.peer.backlog * processes * sizes.share), _LEAST)
    trial.tell("fill", tasks)
    trial.start(trial.peer.slots, processes)
    return (rate(trial.wait(tasks), processes),)


def _latency(trial: Trial, sizes: Sizes) -> tuple[float, ...]:
    trial.start(min(trial.peer.slots, _IDLE_SLOTS))
    trial.tell("pace", _WARM, 0.0)
    trial.wait(_WARM)
    trial.tell("pace", _WARM + sizes.paced, _GAP)
    found = list(trial.wait(_WARM + _WARM + sizes.paced).values())
    if len(found) != 1:  # which were the last to be sent could not be told
        raise Failure(f"{len(found)} processes ran tasks instead of one")
    waits = [wait / 1e6 for wait in found[0][-sizes.paced :]]
    return percentile(waits, 50), percentile(waits, 99)


def _enqueueing(way: Way) -> Callable[[Trial, Sizes], tuple[float, ...]]:
    def take(trial: Trial, sizes: Sizes) -> tuple[float, ...]:
        found = trial.tell(way, sizes.seconds)
        if not found.get("tasks"):
            raise Failure("nothing was enqueued in time")
        return (found["tasks"] / found["seconds"],)

    return take


def _bytes(trial: Trial, sizes: Sizes) -> tuple[float, ...]:
    """Return the memory of each task that waits, without a stream of events, which is capped."""
    first, more = _STORED if "bulk" in trial.peer.ways else _STORED_SLOWLY
    first, more = (max(round(tasks * sizes.filled), _LEAST) for tasks in (first, more))
    trial.tell("fill", first)
    before = trial.server.used_memory(without=trial.peer.events)
    trial.tell("fill", more)
    return ((trial.server.used_memory(without=trial.peer.events) - before) / more,)


MEASURES = (
    Measure(
        "processing",
        (Figure("processing", "run/s, 1 process"),),
        lambda trial, sizes: _processing(trial, sizes, 1),
        tenants=(1_000, 10_000),
    ),
    Measure(
        "processing-2",
        (Figure("processing-2", "run/s, 2 processes"),),
        lambda trial, sizes: _processing(trial, sizes, 2),
    ),
    Measure(
        "latency",
        (
            Figure("p50", "idle ms, p50", less_is_better=True, digits=2),
            Figure("p99", "idle ms, p99", less_is_better=True, digits=2),
        ),
        _latency,
    ),
    Measure("sync", (Figure("sync", "one by one/s, sync"),), _enqueueing("sync"), "sync"),
    Measure("async", (Figure("async", "one by one/s, async"),), _enqueueing("async"), "async"),
    Measure(
        "callers", (Figure("callers", "50 callers/s"),), _enqueueing("callers"), "callers"
    ),
    Measure("bulk", (Figure("bulk", "bulk/s"),), _enqueueing("bulk"), "bulk"),
    Measure("bytes", (Figure("bytes", "bytes a task", less_is_better=True),), _bytes),
)  # fmt: skip
