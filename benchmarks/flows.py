"""What dependencies cost: a flow that fans out and joins, beside as many plain tasks.

Both are run by ``fairlead worker`` on a Valkey of its own, with everything on; all tasks are there
before it starts. Measured from the first start to the last outcome by the server's stream of
events, and with the server's own clock of how long each call took.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from benchmarks.environment import serving, span, told, until, working
from benchmarks.server_probe import Probe
from fairlead.broker import connect

__all__ = ("measure", "show")

_GROUPS = 10
_WIDTH = 1_000
_SLOW = 10.0  # ms that no call may take

_PLAIN = """
for start in range(0, {count}, 500):
    many = min(500, {count} - start)
    await tasks.app.aenqueue_many(tasks.noop.call("." * 64) for _ in range(many))
"""
_FLOW = """
call = lambda: tasks.noop.call("." * 64)
groups = [call() >> [call() for _ in range({width})] >> call() for _ in range({groups})]
await tasks.app.aenqueue_flow(groups >> call())
"""


class Figures(NamedTuple):
    """What one run gave."""

    enqueued: float  # tasks a second, with the start of a process
    rate: float  # tasks a second
    p99_ms: float  # of the calls, by the server's clock
    slow: int  # calls over 10 ms
    calls: int


def measure(*, rounds: int, scale: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Both in turn, in each round; the figures are medians."""
    width = max(round(_WIDTH * scale), 2)
    count = _GROUPS * (width + 2) + 1
    loads = {
        "plain tasks": _PLAIN.format(count=count),
        f"{_GROUPS} fan-outs of {width:,}, joined": _FLOW.format(width=width, groups=_GROUPS),
    }
    runs: dict[str, list[Figures]] = {name: [] for name in loads}
    for number in range(1, rounds + 1):
        for name, load in loads.items():
            say(f"flow, round {number} of {rounds}: {name}")
            runs[name].append(_run(load, count))
    rows = [
        {"name": name, **Figures(*map(median, zip(*each, strict=True)))._asdict()}
        for name, each in runs.items()
    ]
    ratios = [flow.rate / plain.rate for plain, flow in zip(*runs.values(), strict=True)]
    return {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "rounds": rounds,
        "tasks": count,
        "rows": rows,
        "ratio": median(ratios),
        "aim": 0.5,
    }


def _run(load: str, count: int) -> Figures:
    with serving() as (url, _):
        probe = Probe(url)
        try:
            probe.ask("CONFIG", "SET", "slowlog-log-slower-than", f"{_SLOW * 1000:.0f}")
            return asyncio.run(_worked(load, count, url, probe))
        finally:
            probe.close()


async def _worked(load: str, count: int, url: str, probe: Probe) -> Figures:
    store = connect(url)
    loop = asyncio.get_running_loop()
    try:
        began = loop.time()
        await told(url, load)
        took = loop.time() - began
        last = (await store.events(limit=1)).last
        with working(url):
            await until(store, lambda now: not now.depth + now.running)
        seconds = await span(store, last)
    finally:
        await store.close()
    quantiles = probe.info("latencystats")["latency_percentiles_usec_fcall"]
    p99 = dict(pair.split("=") for pair in quantiles.split(","))["p99"]
    slow = [entry for entry in probe.ask("SLOWLOG", "GET", "-1") if entry[3][0] == b"FCALL"]
    return Figures(
        count / took, count / seconds, float(p99) / 1000, len(slow), probe.calls("fcall")
    )


def show(found: dict[str, Any]) -> None:
    """The figures as a table, for people."""
    from fairlead.cli.common.tables import console, table

    out = console()
    machine = found["machine"]
    rows = table(
        f"{found['tasks']:,} tasks (Python {machine['python']}, {machine['cpus']} CPUs)",
        *("what", "enqueued/s", "run/s", "p99 of a call, ms", "calls over 10 ms"),
    )
    for row in found["rows"]:
        over = f"{row['slow']:.0f} of {row['calls']:,.0f}"
        rates = (f"{row['enqueued']:,.0f}", f"{row['rate']:,.0f}")
        rows.add_row(row["name"], *rates, f"{row['p99_ms']:.2f}", over)
    out.print(rows)
    met = "met" if found["ratio"] >= found["aim"] else "missed"
    out.print(
        f"The flow runs at {found['ratio']:.2f} of the speed of plain tasks "
        f"(aim {found['aim']:g}: {met})."
    )
