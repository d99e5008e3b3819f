"""What it costs to keep the tasks of the last minute, in case that the broker loses them.

One process, one server, and three apps that take turns: without a fallback, with one whose window
keeps nothing, and with one as it is. Turns are short and in an order that changes, so that a noisy
moment meets all of them; what counts is the median of the ratios of neighbors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fairlead.app import Fairlead
from fairlead.broker.requests import Receipt, Submission
from fairlead.client.task import Task
from fairlead.fallback.recent_enqueues import RecentEnqueues

__all__ = ("AIM", "measure")

AIM = 1.05  # times what an enqueue takes without the window
_QUEUE = "bench-window"
_PAYLOAD = "x" * 100
_CALLERS, _TOGETHER = 50, 500
_TURNS = 40  # of each app, for each load, in a round


class _Load(NamedTuple):
    """One way to enqueue, and how many tasks make a turn; it tells how many it took in the end."""

    name: str
    tasks: int
    run: Callable[[Fairlead, Task[..., Any], int], Awaitable[int]]


class _Turn(NamedTuple):
    seconds: float
    cpu: float


class _Nothing(RecentEnqueues):
    """A window that keeps nothing. Its length lets the look for lost tasks go on as ever."""

    def __len__(self) -> int:
        return 1

    def add(
        self,
        shard: str,
        incarnation: str,
        number: int,
        submissions: Sequence[Submission],
        receipts: Sequence[Receipt],
    ) -> None:
        """Let it pass."""


async def measure(
    url: str, folder: Path, *, rounds: int, scale: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row for each load: what a task takes, and the ratios of the three."""
    plain, spooling = Fairlead(url), Fairlead(url, fallback="spool", spool=folder / "window")
    fallback = spooling._clients.fallback
    assert fallback is not None  # it was asked for
    windows = {"off": _Nothing(), "on": fallback.recent_enqueues}
    kept = _task(spooling)
    tasks = {"none": _task(plain), "off": kept, "on": kept}
    rows = []
    async with plain, spooling:
        for app in (plain, spooling):
            await _one(app, tasks["none" if app is plain else "on"], 1)  # opens the connection
        for load in _LOADS:
            say(f"spool, what the window costs: {load.name}")
            count = max(round(load.tasks * scale), 1)
            turns: dict[str, list[_Turn]] = {name: [] for name in tasks}
            for number in range(max(round(_TURNS * rounds * scale), 2)):
                names = list(tasks)
                for name in reversed(names) if number % 2 else names:
                    app = plain if name == "none" else spooling
                    fallback.recent_enqueues = windows.get(name, fallback.recent_enqueues)
                    began, used = time.perf_counter(), time.process_time()
                    done = await load.run(app, tasks[name], count)
                    took = time.perf_counter() - began, time.process_time() - used
                    turns[name].append(_Turn(*(each / done for each in took)))
            rows.append(_row(load.name, turns))
    return rows


def _row(name: str, turns: dict[str, list[_Turn]]) -> dict[str, Any]:
    def ratio(some: str, others: str, what: str) -> float:
        both = zip(turns[some], turns[others], strict=True)
        return float(median(getattr(a, what) / getattr(b, what) for a, b in both))

    return {
        "name": name,
        "us": {each: round(median(t.seconds for t in turns[each]) * 1e6, 2) for each in turns},
        "cpu_us": {each: round(median(t.cpu for t in turns[each]) * 1e6, 2) for each in turns},
        "window": round(ratio("on", "off", "seconds"), 4),
        "window_cpu": round(ratio("on", "off", "cpu"), 4),
        "fallback": round(ratio("on", "none", "seconds"), 4),
    }


def _task(app: Fairlead) -> Task[..., Any]:
    @app.task(name="bench.noop", queue=_QUEUE)
    async def noop(text: str) -> None: ...

    return noop


async def _one(app: Fairlead, task: Task[..., Any], count: int) -> int:  # noqa: ARG001
    for _ in range(count):
        await task.aenqueue(_PAYLOAD)
    return count


async def _lanes(app: Fairlead, task: Task[..., Any], count: int) -> int:  # noqa: ARG001
    each = -(-count // _CALLERS)

    async def lane() -> None:
        for _ in range(each):
            await task.aenqueue(_PAYLOAD)

    await asyncio.gather(*(lane() for _ in range(_CALLERS)))
    return each * _CALLERS


async def _bulk(app: Fairlead, task: Task[..., Any], count: int) -> int:
    calls = -(-count // _TOGETHER)
    for _ in range(calls):
        await app.aenqueue_many(task.call(_PAYLOAD) for _ in range(_TOGETHER))
    return calls * _TOGETHER


_LOADS = (
    _Load("one by one", 50, _one),
    _Load("50 lanes", 250, _lanes),
    _Load("500 in a call", 500, _bulk),
)
