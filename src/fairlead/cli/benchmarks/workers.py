"""What a worker does with tasks that are queued already: whole processes, with everything on.

Each row starts ``fairlead worker`` on a Valkey of its own. It is measured from the first start of a
task to the last outcome that was settled, by the times in the server's stream of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fairlead.broker import Store, connect
from fairlead.broker.views import Snapshot
from fairlead.cli.benchmarks.process import TOGETHER
from fairlead.embedded import EmbeddedValkey
from fairlead.model.errors import FairleadError
from fairlead.model.events import EventId
from fairlead.settings import VARIABLE

__all__ = ("ROWS", "Row", "aims", "measure", "show")

_APP = "fairlead.cli.benchmarks.tasks:app"
_PAYLOAD = "." * 64
_LOOK = 0.01  # seconds between two looks at the counts
_PATIENCE = 120.0  # seconds for one row
_TICKS = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """One way to run a worker."""

    name: str
    task: str
    tasks: int
    processes: int = 1
    concurrency: int = 100


ROWS = (
    Row("async handlers, one child", "noop", 40_000),
    Row("sync handlers in threads, one child", "noop_sync", 40_000),
    Row("async handlers, two children", "noop", 40_000, processes=2),
    Row("200 µs of Python, one child", "busy", 8_000),
    Row("200 µs of Python, two children", "busy", 8_000, processes=2),
)


class Figures(NamedTuple):
    """What one run of a row gave."""

    rate: float  # tasks a second
    worker_us: float  # processor time of the children for a task
    server_us: float
    cores: float  # of the machine that were busy


def measure(
    *, rounds: int, scale: float, idle: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """All rows, each the median of some rounds in turn, and what an idle worker uses."""
    found: dict[str, list[Figures]] = {row.name: [] for row in ROWS}
    for number in range(1, rounds + 1):
        for row in ROWS:
            say(f"worker, round {number} of {rounds}: {row.name}")
            tasks = max(round(row.tasks * scale), TOGETHER)
            found[row.name].append(_run(row._replace(tasks=tasks)))
    say("worker that has nothing to do")
    rows = []
    for name, runs in found.items():
        middle = [median(values) for values in zip(*runs, strict=True)]
        rows.append({"name": name, **Figures(*middle)._asdict()})
    result = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "rounds": rounds,
        "rows": rows,
        "idle_cores": _idle(idle),
    }
    result["aims"] = aims(result)
    return result


def aims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, what came out, and whether that is enough."""
    one, sync, two, busy, busy_two = found["rows"]
    cpus = found["machine"]["cpus"] or 1
    gain, cores = two["rate"] / one["rate"], two["cores"] / cpus
    made = [
        ("sync against async", sync["rate"] / one["rate"], 0.5, True),
        ("two children against one", gain, 1.3, True),
        ("with 200 µs of Python", busy_two["rate"] / busy["rate"], 1.6, True),
        ("Python µs of an async task", one["worker_us"], 15.0, False),
        ("cores of an idle worker", found["idle_cores"], 0.01, False),
    ]
    rows = [
        {"name": name, "value": round(value, 4), "aim": aim, "least": least,
         "met": value >= aim if least else value <= aim}
        for name, value, aim, least in made
    ]  # fmt: skip
    if not rows[1]["met"] and cores >= 0.9:  # there is nothing left that a second could use
        rows[1] = {"name": "part of the cores busy with two children", "value": round(cores, 4),
                   "aim": 0.9, "least": True, "met": True}  # fmt: skip
    return rows


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    from fairlead.cli.terminal import console, table

    out = console()
    machine = found["machine"]
    rows = table(
        f"Worker processes (Python {machine['python']}, {machine['cpus']} CPUs)",
        *("what", "tasks/s", "worker µs", "server µs", "cores busy"),
    )
    for row in found["rows"]:
        parts = (f"{row[key]:.1f}" for key in ("worker_us", "server_us", "cores"))
        rows.add_row(row["name"], f"{row['rate']:,.0f}", *parts)
    out.print(rows)
    wanted = table("Aims", "what", "figure", "aim", "")
    for aim in found["aims"]:
        sign = "≥" if aim["least"] else "≤"
        met = "met" if aim["met"] else "missed"
        wanted.add_row(aim["name"], f"{aim['value']:g}", f"{sign} {aim['aim']:g}", met)
    out.print(wanted)


def _run(row: Row) -> Figures:
    with _server() as (url, server):
        return asyncio.run(_worked(row, url, server))


async def _worked(row: Row, url: str, server: int) -> Figures:
    store = connect(url)
    try:
        await _fill(row, url)
        last = (await store.events(limit=1)).last
        with _worker(row, url) as worker:
            first, began = await _until(store, lambda now: now.depth < row.tasks, _Meter(server))
            began.add(_children(worker))
            rest, ended = await _until(
                store, lambda now: not now.depth + now.running, began.again()
            )
            # A few tasks may be over before the first look: then there is nothing to divide by.
            done = max(first.depth + first.running - rest.depth - rest.running, 1)
            ended.add(list(began.pids))
            used = ended - began
        seconds = await _span(store, last)
        return Figures(
            row.tasks / seconds, used.worker / done * 1e6, used.server / done * 1e6, used.cores
        )
    finally:
        await store.close()


async def _fill(row: Row, url: str) -> None:
    # In another process: the app of the tasks takes its URL from the environment.
    code = (
        "import asyncio\n"
        "from fairlead.cli.benchmarks import tasks\n"
        "async def main():\n"
        f"    for start in range(0, {row.tasks}, {TOGETHER}):\n"
        f"        count = min({TOGETHER}, {row.tasks} - start)\n"
        f"        calls = [tasks.{row.task}.call('{_PAYLOAD}') for _ in range(count)]\n"
        "        await tasks.app.aenqueue_many(calls)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, VARIABLE: url}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment)
    if await process.wait():
        raise FairleadError("the tasks of the bench could not be enqueued")


async def _until(
    store: Store, reached: Callable[[Snapshot], bool], meter: _Meter
) -> tuple[Snapshot, _Meter]:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        now = await store.snapshot()
        if reached(now):
            meter.read()
            return now, meter
        await asyncio.sleep(_LOOK)
    raise FairleadError(f"the worker of the bench was not done within {_PATIENCE:g} s")


async def _span(store: Store, last: EventId | None) -> float:
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


class _Meter:
    """Processor time of the server, of the children, and of the machine."""

    def __init__(self, server: int, pids: Sequence[int] = ()) -> None:
        self._server_pid = server
        self.pids = list(pids)
        self.at = self.server = self.worker = self.busy = 0.0

    def again(self) -> _Meter:
        return _Meter(self._server_pid, self.pids)

    def read(self) -> None:
        self.at = time.monotonic()
        self.server = _cpu(self._server_pid)
        self.worker = sum(map(_cpu, self.pids))
        self.busy = _busy()

    def add(self, pids: Sequence[int]) -> None:
        """Count these processes in, as they are now."""
        if pids != self.pids:
            self.pids = list(pids)
            self.worker = sum(map(_cpu, self.pids))

    def __sub__(self, earlier: _Meter) -> _Used:
        seconds = max(self.at - earlier.at, 1e-6)
        return _Used(
            self.worker - earlier.worker,
            self.server - earlier.server,
            (self.busy - earlier.busy) / seconds,
        )


class _Used(NamedTuple):
    worker: float
    server: float
    cores: float


def _idle(seconds: float) -> float:
    """How much of a core a worker uses that has nothing to do: supervisor and child."""
    with _server() as (url, _), _worker(ROWS[0], url) as worker:
        asyncio.run(_registered(url))
        time.sleep(2.0)  # its first beats and looks
        pids = [worker.pid, *_children(worker)]
        before, began = sum(map(_cpu, pids)), time.monotonic()
        time.sleep(seconds)
        return (sum(map(_cpu, pids)) - before) / (time.monotonic() - began)


async def _registered(url: str) -> None:
    store = connect(url)
    until = time.monotonic() + _PATIENCE
    while not await store.workers() and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK)
    await store.close()


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        endpoint = (server := EmbeddedValkey(folder, dies_with_owner=True)).start()
        try:
            yield endpoint.url, endpoint.pid
        finally:
            server.stop()


@contextlib.contextmanager
def _worker(row: Row, url: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "fairlead", "worker", _APP, "-c", str(row.concurrency)]
    command += ["-p", str(row.processes), "--log-level", "error", "-q", "default"]
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


def _children(worker: subprocess.Popen[bytes]) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{worker.pid}/task").iterdir():
        found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def _cpu(pid: int) -> float:
    # Its clock of processor time, in nanoseconds: /proc/PID/stat counts in hundredths of a second,
    # which is as long as a small run of the bench.
    return time.clock_gettime(~pid << 3 | 2)


def _busy() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / _TICKS
