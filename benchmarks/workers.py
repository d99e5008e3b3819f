"""What a worker does with tasks that are queued already: whole processes, with everything on.

Each row starts ``fairlead worker`` on a Valkey of its own. It is measured from the first start of a
task to the last outcome that was settled, by the times in the server's stream of events.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.environment import (
    LOOK,
    PATIENCE,
    processor_seconds,
    serving,
    span,
    told,
    until,
    working,
)
from benchmarks.in_process import TOGETHER
from fairlead.broker import connect
from fairlead.model.errors import FairleadError

__all__ = ("ROWS", "Row", "aims", "measure", "show")

_FILL = """
for start in range(0, {row.tasks}, 500):
    count = min(500, {row.tasks} - start)
    await tasks.app.aenqueue_many(tasks.{row.task}.call("." * 64) for _ in range(count))
"""
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
    from fairlead.cli.common.tables import console, table

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
    with serving() as (url, server):
        return asyncio.run(_worked(row, url, server))


async def _worked(row: Row, url: str, server: int) -> Figures:
    store = connect(url)
    try:
        await told(url, _FILL.format(row=row))
        last = (await store.events(limit=1)).last
        with working(url, processes=row.processes, concurrency=row.concurrency) as worker:
            first = await until(store, lambda now: now.depth < row.tasks)
            began = _Meter(server, _children(worker))
            rest = await until(store, lambda now: not now.depth + now.running)
            ended = _Meter(server, began.pids)
            # A few tasks may be over before the first look: then there is nothing to divide by.
            done = max(first.depth + first.running - rest.depth - rest.running, 1)
            used = ended - began
        seconds = await span(store, last)
        return Figures(
            row.tasks / seconds, used.worker / done * 1e6, used.server / done * 1e6, used.cores
        )
    finally:
        await store.close()


class _Meter:
    """Processor time of the server, of the children, and of the machine."""

    def __init__(self, server: int, pids: Sequence[int]) -> None:
        self.pids = pids
        self.at = time.monotonic()
        self.server = processor_seconds(server)
        self.worker = sum(map(processor_seconds, pids))
        self.busy = _busy()

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
    with serving() as (url, _), working(url) as worker:
        asyncio.run(_registered(url))
        time.sleep(2.0)  # its first beats and looks
        pids = [worker.pid, *_children(worker)]
        before, began = sum(map(processor_seconds, pids)), time.monotonic()
        time.sleep(seconds)
        return (sum(map(processor_seconds, pids)) - before) / (time.monotonic() - began)


async def _registered(url: str) -> None:
    store = connect(url)
    until = time.monotonic() + PATIENCE
    while not await store.workers() and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(LOOK)
    found = await store.workers()
    await store.close()
    if not found:  # what it does before that is not how it rests
        raise FairleadError(f"the worker did not register within {PATIENCE:g} seconds")


def _children(worker: subprocess.Popen[bytes]) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{worker.pid}/task").iterdir():
        found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def _busy() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / _TICKS
