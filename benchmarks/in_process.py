"""Client and worker in one process, on a broker in memory: tasks a second, and CPU for each."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fairlead.app import Fairlead

__all__ = ("CALLERS", "CONCURRENCY", "TOGETHER", "Rate", "measure")

CALLERS = 100
TOGETHER = 500  # calls in one aenqueue_many
CONCURRENCY = 100
_PAYLOAD = "." * 64  # an argument; with name and id the body has about 100 bytes


class Rate(NamedTuple):
    """What one way to do it gives."""

    name: str
    tasks_per_second: float
    cpu_us: float  # for one task


async def measure(tasks: int, *, rounds: int, say: Callable[[str], None]) -> list[Rate]:
    """The fastest round of each way, each with an app and a broker of its own."""
    ways: tuple[tuple[str, Callable[[int], Awaitable[Rate]]], ...] = (
        (f"aenqueue, {CALLERS} callers at once", _one_by_one),
        (f"aenqueue_many, {TOGETHER} at a time", _together),
        (f"worker, no-op handlers, {CONCURRENCY} at a time", _worked),
    )
    best: dict[str, Rate] = {}
    for number in range(1, rounds + 1):
        say(f"client and worker, round {number} of {rounds}")
        for name, way in ways:
            gc.collect()  # the round before
            rate = (await way(tasks))._replace(name=name)
            if name not in best or rate.tasks_per_second > best[name].tasks_per_second:
                best[name] = rate
    return list(best.values())


class _Stopwatch:
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def rate(self) -> Rate:
        seconds = time.perf_counter() - self._began
        cpu = time.process_time() - self._cpu
        return Rate("", self._tasks / seconds, cpu / self._tasks * 1e6)


async def _one_by_one(tasks: int) -> Rate:
    app = Fairlead("memory://")

    @app.task(name="bench.noop")
    async def noop(text: str) -> None: ...

    async def caller(count: int) -> None:
        for _ in range(count):
            await noop.aenqueue(_PAYLOAD)

    async with app:
        each = -(-tasks // CALLERS)
        watch = _Stopwatch(each * CALLERS)
        await asyncio.gather(*(caller(each) for _ in range(CALLERS)))
        return watch.rate()


async def _together(tasks: int) -> Rate:
    app = Fairlead("memory://")

    @app.task(name="bench.noop")
    async def noop(text: str) -> None: ...

    async with app:
        calls = -(-tasks // TOGETHER)
        watch = _Stopwatch(calls * TOGETHER)
        for _ in range(calls):
            await app.aenqueue_many(noop.call(_PAYLOAD) for _ in range(TOGETHER))
        return watch.rate()


async def _worked(tasks: int) -> Rate:
    app = Fairlead("memory://")
    left = tasks
    done = asyncio.Event()

    @app.task(name="bench.noop")
    async def noop(_text: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with app:
        for start in range(0, tasks, TOGETHER):
            count = min(TOGETHER, tasks - start)
            await app.aenqueue_many(noop.call(_PAYLOAD) for _ in range(count))
        watch = _Stopwatch(tasks)
        async with app.worker(concurrency=CONCURRENCY):
            await done.wait()
        return watch.rate()  # with the settling of the last ones
