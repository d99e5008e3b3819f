"""What benchmarks of whole workers share: a server, a worker, tasks to run, and a look at them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from fairlead.broker import Store
from fairlead.broker.records import Snapshot
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import FairleadError
from fairlead.model.events import EventId
from fairlead.settings import VARIABLE

__all__ = ("LOOK", "PATIENCE", "processor_seconds", "serving", "span", "told", "until", "working")

LOOK = 0.01  # seconds between two looks at the counts
PATIENCE = 120.0  # seconds for one row
_APP = "benchmarks.tasks:app"


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """A server of its own: its URL and its process."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        endpoint = (server := EmbeddedValkey(folder, dies_with_owner=True)).start()
        try:
            yield endpoint.url, endpoint.pid
        finally:
            server.stop()


@contextlib.contextmanager
def working(
    url: str, *, processes: int = 1, concurrency: int = 100
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker for the tasks of the bench."""
    command = [sys.executable, "-m", "fairlead", "worker", _APP, "-c", str(concurrency)]
    command += ["-p", str(processes), "--log-level", "error", "-q", "default"]
    process = subprocess.Popen(command, env={**os.environ, VARIABLE: url})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def told(url: str, body: str) -> None:
    """Have another process do something with ``tasks``: its app takes the URL from there."""
    code = "import asyncio\nfrom benchmarks import tasks\n"
    code += "async def main():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    code += "asyncio.run(main())\n"
    environment = {**os.environ, VARIABLE: url}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment)
    if await process.wait():
        raise FairleadError("the tasks of the bench could not be enqueued")


async def until(store: Store, reached: Callable[[Snapshot], bool]) -> Snapshot:
    """Look at the counts until it is so."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        now = await store.snapshot(tenants=False)
        if reached(now):
            return now
        await asyncio.sleep(LOOK)
    raise FairleadError(f"the worker of the bench was not done within {PATIENCE:g} s")


async def span(store: Store, last: EventId | None) -> float:
    """Seconds from the first start to the last outcome."""
    first, final = float("inf"), 0.0
    while True:
        page = await store.events(after=last, limit=500)
        for event in page.events:
            if event.kind == "started":
                first = min(first, event.at)
            elif event.kind == "completed":
                final = max(final, event.at)
        if not page.events:
            return max(final - first, 1e-6)
        last = page.last


def processor_seconds(pid: int) -> float:
    """How long a process has used the processor, by its own clock."""
    # In nanoseconds: /proc/PID/stat counts in hundredths of a second, which is as long as a small
    # run of the bench.
    return time.clock_gettime(~pid << 3 | 2)
