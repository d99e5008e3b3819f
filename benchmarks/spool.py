"""What a record in the spool costs: callers at once, with fdatasync, beside the disk alone.

The disk alone is a loop that writes as much as a full group has and calls fdatasync. It says what
could be reached if records cost nothing but the disk; in each round it is measured just before.

Then what an app with a fallback pays while its broker is there, on a server of its own:
``fallback_cost``.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import fallback_cost
from benchmarks.environment import serving
from fairlead.cli.demo.stats import percentile
from fairlead.spool import Entry, Kind, Spool, SpoolLimits
from fairlead.spool.files import volatile

__all__ = ("measure", "show")

_CALLERS = 64
_PAYLOAD = 256  # bytes
_SECONDS = 3.0  # of a run
_AIM = 20_000  # records a second
_LIMITS = SpoolLimits(max_bytes=4 * 1024**3, max_count=10_000_000)


class Figures(NamedTuple):
    """What one run gave."""

    rate: float  # records a second
    p50_ms: float
    p99_ms: float
    cpu_us: float  # processor time of the process for one record


def measure(*, rounds: int, scale: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Each in turn, in each round; the figures are medians."""
    seconds = _SECONDS * scale
    runs: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=_place()) as folder:
        root = Path(folder)
        loads: dict[str, Callable[[], Figures]] = {
            f"write + fdatasync, {_CALLERS} at a time": lambda: _disk(root, _CALLERS, seconds),
            "write + fdatasync, one at a time": lambda: _disk(root, 1, seconds),
            f"spool, {_CALLERS} callers": lambda: asyncio.run(_calls(root, _CALLERS, seconds)),
            "spool, one caller": lambda: asyncio.run(_calls(root, 1, seconds)),
        }
        for number in range(1, rounds + 1):
            for name, load in loads.items():
                say(f"spool, round {number} of {rounds}: {name}")
                runs.setdefault(name, []).append(load())
        where = volatile(root)
        with serving() as (url, _):
            windows = asyncio.run(
                fallback_cost.measure(url, root, rounds=rounds, scale=scale, say=say)
            )
    rows = [
        {"name": name, **Figures(*map(median, zip(*each, strict=True)))._asdict()}
        for name, each in runs.items()
    ]
    return {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "rounds": rounds,
        "callers": _CALLERS,
        "payload": _PAYLOAD,
        "volatile": where,
        "rows": rows,
        "aim": _AIM,
        "windows": windows,
        "window_aim": fallback_cost.AIM,
    }


def _place() -> str | None:
    """Return a folder on a disk: that for temporary files may be in memory."""
    return "." if volatile(Path(tempfile.gettempdir())) is not None else None


def _disk(root: Path, records: int, seconds: float) -> Figures:
    data = os.urandom((_PAYLOAD + 29) * records)
    path = root / "raw"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    took: list[float] = []
    try:
        began, used = time.perf_counter(), time.process_time()
        at = began
        while at - began < seconds:
            os.write(fd, data)
            os.fdatasync(fd)
            now = time.perf_counter()
            took.append(now - at)
            at = now
    finally:
        os.close(fd)
        path.unlink()
    return _figures(took, records * len(took), at - began, time.process_time() - used)


async def _calls(root: Path, callers: int, seconds: float) -> Figures:
    spool = Spool.open(root / "spool", limits=_LIMITS)
    entry = Entry(Kind.SUBMISSION, os.urandom(_PAYLOAD))
    took: list[float] = []
    began, used = time.perf_counter(), time.process_time()

    async def call() -> None:
        at = time.perf_counter()
        while at - began < seconds:
            await spool.aappend([entry])
            now = time.perf_counter()
            took.append(now - at)
            at = now

    try:
        await asyncio.gather(*(call() for _ in range(callers)))
        lasted, used = time.perf_counter() - began, time.process_time() - used
        spool.confirm(range(1, len(took) + 1))
    finally:
        spool.close()
    return _figures(took, len(took), lasted, used)


def _figures(took: list[float], records: int, seconds: float, used: float) -> Figures:
    p50, p99 = (percentile(took, each) * 1_000 for each in (50, 99))
    return Figures(records / seconds, p50, p99, used / records * 1e6)


def show(found: dict[str, Any]) -> None:
    """Print a table, and whether the aim is reached."""
    from fairlead.cli.common.tables import console, table

    out, machine = console(), found["machine"]
    rows = table(
        f"Spool, records of {found['payload']} bytes "
        f"(Python {machine['python']}, {machine['cpus']} CPUs)",
        "load",
        "records/s",
        "p50 ms",
        "p99 ms",
        "CPU µs",
    )
    for row in found["rows"]:
        times = (f"{row[key]:.2f}" for key in ("p50_ms", "p99_ms", "cpu_us"))
        rows.add_row(row["name"], f"{row['rate']:,.0f}", *times)
    out.print(rows)
    rate = found["rows"][2]["rate"]
    out.print(f"That is {rate / found['rows'][0]['rate']:.2f} times what the disk does alone.")
    reached = "reached" if rate >= found["aim"] else "missed"
    out.print(f"Aim with {found['callers']} callers: {found['aim']:,} records/s ({reached}).")
    _show_windows(found)
    if found["volatile"]:
        out.print(f"This was measured in memory ({found['volatile']}), and says nothing of a disk.")


def _show_windows(found: dict[str, Any]) -> None:
    from fairlead.cli.common.tables import console, table

    out = console()
    rows = table(
        "An app with a fallback while its broker is there, CPU µs a task",
        "enqueue",
        "no fallback",
        "no window",
        "window",
        "window costs, CPU",
        "and speed",
    )
    for row in found["windows"]:
        parts = (f"{row['cpu_us'][each]:.1f}" for each in ("none", "off", "on"))
        costs = (f"{row[each] - 1:+.1%}" for each in ("window_cpu", "window"))
        rows.add_row(row["name"], *parts, *costs)
    out.print(rows)
    aim = found["window_aim"]
    reached = all(row["window_cpu"] <= aim for row in found["windows"])
    out.print(f"Aim: {aim - 1:.0%} of its CPU time at most ({'reached' if reached else 'missed'}).")
