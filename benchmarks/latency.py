"""From enqueue to the first line of the handler, while there is nothing else to do.

Client and worker are two apps on one loop, so they share nothing but the server and the processor:
each has its own connections, and the worker learns of a task as it would in another process. A task
is enqueued when the one before it is long settled, and the worker is back to waiting for a bell.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from fairlead.app import Fairlead
from fairlead.cli.demo.stats import percentile
from fairlead.embedded.valkey import EmbeddedValkey

__all__ = ("TASKS", "Latency", "latency", "measure")

TASKS = 500
_WARM_UP = 50  # tasks: functions are loaded into the server, connections opened
_REST = 0.005  # seconds in which the worker settles the task before and goes to sleep
_TOLD = 100  # tasks between two words about it
_QUEUE = "bench"
_PAYLOAD = "." * 64


class Latency(NamedTuple):
    """Milliseconds from before the call of ``aenqueue`` until the handler runs."""

    tasks: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def _silent(text: str) -> None: ...


async def measure(url: str, tasks: int = TASKS, *, say: Callable[[str], None] = _silent) -> Latency:
    """The latency of a server that has nothing else to do; ``memory://`` has none to share."""
    client, server = Fairlead(url), Fairlead(url)
    begun: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def noop(_text: str) -> None:
        begun.set_result(time.perf_counter())

    server.task(name="bench.noop", queue=_QUEUE, retention=0)(noop)
    send = client.task(name="bench.noop", queue=_QUEUE, retention=0)(noop)
    waits: list[float] = []
    async with client, server, server.worker(queues=[_QUEUE]):
        for number in range(_WARM_UP + tasks):
            await asyncio.sleep(_REST)
            begun = asyncio.get_running_loop().create_future()
            at = time.perf_counter()
            await send.aenqueue(_PAYLOAD)
            waits.append(await begun - at)
            if number and number % _TOLD == 0:
                say(f"latency: {number:,} of {_WARM_UP + tasks:,} tasks")
    found = waits[_WARM_UP:]
    return Latency(tasks, *(percentile(found, each) * 1_000 for each in (50, 99, 100)))


def latency(
    tasks: int = TASKS, *, url: str | None = None, say: Callable[[str], None] = _silent
) -> Latency:
    """The same on an event loop of its own, without a URL on a server of its own."""
    if url is not None:
        return _run(url, tasks, say)
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        EmbeddedValkey(folder, dies_with_owner=True) as endpoint,
    ):
        return _run(endpoint.url, tasks, say)


def _run(url: str, tasks: int, say: Callable[[str], None]) -> Latency:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(measure(url, tasks, say=say))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # a platform without it
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
