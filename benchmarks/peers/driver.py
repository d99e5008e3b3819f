"""Do one thing with an adapter in Python: `python -m benchmarks.peers.driver NAME VERB ...`.

It runs in the environment of the peer; `adapter` lists the verbs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.metadata import version
from typing import Any

from benchmarks.peers.adapter import CALLERS, IN_A_CALL, PAYLOAD, Adapter, Awaited, Called

__all__ = ("drive",)

_FIRST = 50  # calls that are not measured: connections are opened, scripts loaded


def drive(adapter: Adapter, verb: str, *arguments: str) -> dict[str, Any]:
    """Do what the verb says, and return what is to be printed."""
    if verb == "version":
        return {"version": ", ".join(f"{name} {version(name)}" for name in adapter.packages)}
    if verb == "work":
        slots, processes = map(int, arguments)
        adapter.work(slots, processes)
        return {}
    called, awaited = adapter.called, adapter.awaited
    if verb == "sync":
        awaited = None
    elif verb == "async" or (verb in ("fill", "bulk") and awaited and awaited.many):
        called = None
    amount = float(arguments[0])
    gap = float(arguments[1]) if len(arguments) > 1 else 0.0
    if awaited is not None:
        return _run(_awaiting(awaited, verb, amount, gap))
    assert called is not None, f"the adapter cannot {verb}"
    return _calling(called, verb, amount, gap)


async def _awaiting(calls: Awaited, verb: str, amount: float, gap: float) -> dict[str, Any]:
    async with calls.opened():
        if verb == "fill":
            for size in _batches(int(amount), IN_A_CALL if calls.many else CALLERS):
                if calls.many:
                    await calls.many([PAYLOAD] * size)
                else:
                    await asyncio.gather(*(calls.one(PAYLOAD) for _ in range(size)))
            return {}
        if verb == "pace":
            for _ in range(int(amount)):
                await calls.timed(time.time_ns())
                await asyncio.sleep(gap)
            return {}
        if verb == "bulk":
            assert calls.many is not None
            await calls.many([PAYLOAD] * IN_A_CALL)
        else:
            await asyncio.gather(*(calls.one(PAYLOAD) for _ in range(_FIRST)))
        clock = _Clock(amount)
        if verb == "bulk":
            tasks = 0
            while clock.runs():
                await calls.many([PAYLOAD] * IN_A_CALL)  # type: ignore[misc]
                tasks += IN_A_CALL
        else:
            lanes = CALLERS if verb == "callers" else 1
            tasks = sum(await asyncio.gather(*(_lane(calls, clock) for _ in range(lanes))))
        return clock.told(tasks)


async def _lane(calls: Awaited, clock: _Clock) -> int:
    tasks = 0
    while clock.runs():
        await calls.one(PAYLOAD)
        tasks += 1
    return tasks


def _calling(calls: Called, verb: str, amount: float, gap: float) -> dict[str, Any]:
    if verb == "fill":
        for size in _batches(int(amount), IN_A_CALL):
            if calls.many:
                calls.many([PAYLOAD] * size)
            else:
                _repeat(calls.one, size)
        return {}
    if verb == "pace":
        for _ in range(int(amount)):
            calls.timed(time.time_ns())
            time.sleep(gap)
        return {}
    if verb == "callers":
        return _threads(calls, amount)
    if verb == "bulk":
        assert calls.many is not None
        calls.many([PAYLOAD] * IN_A_CALL)
    else:
        _repeat(calls.one, _FIRST)
    tasks, clock = 0, _Clock(amount)
    while clock.runs():
        if verb == "bulk":
            calls.many([PAYLOAD] * IN_A_CALL)  # type: ignore[misc]
            tasks += IN_A_CALL
        else:
            calls.one(PAYLOAD)
            tasks += 1
    return clock.told(tasks)


def _threads(calls: Called, seconds: float) -> dict[str, Any]:
    """Call from as many threads, each of which has connected before the clock starts."""
    clocks: list[_Clock] = []
    tasks: list[int] = []
    ready = threading.Barrier(CALLERS, action=lambda: clocks.append(_Clock(seconds)))

    def caller() -> None:
        calls.one(PAYLOAD)
        ready.wait()
        mine = 0
        while clocks[0].runs():
            calls.one(PAYLOAD)
            mine += 1
        tasks.append(mine)

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tasks) == CALLERS, "a caller has failed"
    return clocks[0].told(sum(tasks))


class _Clock:
    """Runs for so many seconds, and says how many it has been."""

    def __init__(self, seconds: float) -> None:
        self._began = time.perf_counter()
        self._ends = self._began + seconds

    def runs(self) -> bool:
        return time.perf_counter() < self._ends

    def told(self, tasks: int) -> dict[str, Any]:
        return {"tasks": tasks, "seconds": time.perf_counter() - self._began}


def _batches(tasks: int, most: int) -> list[int]:
    return [min(most, tasks - start) for start in range(0, tasks, most)]


def _repeat(call: Callable[[str], object], times: int) -> None:
    for _ in range(times):
        call(PAYLOAD)


def _run(main: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run on the fast loop where the environment has it, as workers do."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    found = drive(import_module(f"benchmarks.peers.adapters.{name}").ADAPTER, *rest)
    print(json.dumps(found), flush=True)
