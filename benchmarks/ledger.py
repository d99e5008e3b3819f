"""What the ledger costs: each step of a task between PostgreSQL and Valkey, and a worker beside it.

Both servers are started for it, with everything on. The steps are measured one after the other, so
each has the machine for itself; the worker runs beside a manager that records what it does.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.in_process import TOGETHER
from fairlead.model.errors import Refused
from fairlead.runtime.event_loop import new_runner

__all__ = ("aims", "measure", "show")

_TASKS = 20_000
_WORKED = 40_000
_COMMITS = 300


def measure(*, rounds: int, scale: float, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it, each figure the median of some rounds in turn, on servers of their own."""
    if find_spec("psycopg") is None:  # everybody has this command, and not everybody the driver
        raise Refused("binary", 'the ledger needs psycopg: pip install "fairlead[postgres]"')
    from benchmarks import ledger_load
    from benchmarks.ledger_environment import Rate, standing

    count, worked = (max(round(each * scale), TOGETHER) for each in (_TASKS, _WORKED))
    steps: dict[str, list[Rate]] = {}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    waits: list[dict[str, float]] = []
    for number in range(1, rounds + 1):
        say(f"ledger, round {number} of {rounds}: enqueue, dispatch, record")
        with standing() as place, new_runner() as runner:
            for name, rate in runner.run(ledger_load.pipeline(place, count)).items():
                steps.setdefault(name, []).append(rate)
        for name, each in rates.items():
            say(f"ledger, round {number} of {rounds}: a worker {name} a ledger")
            with standing() as place, new_runner() as runner:
                run = ledger_load.worker_rate(place, worked, ledger=name == "with")
                each.append(runner.run(run))
        say(f"ledger, round {number} of {rounds}: from commit to start")
        with standing() as place, new_runner() as runner:
            waits.append(runner.run(ledger_load.latency(place, max(round(_COMMITS * scale), 5))))
    result: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "rounds": rounds,
        "tasks": count,
        "rows": [
            {"name": name, **Rate(*map(median, zip(*each, strict=True)))._asdict()}
            for name, each in steps.items()
        ],
        "worker": {
            "tasks": worked,
            **{name: median(each) for name, each in rates.items()},
            "ratio": median(on / off for off, on in zip(*rates.values(), strict=True)),
        },
        "commit_to_start": {key: median(each[key] for each in waits) for key in waits[0]},
    }
    result["aims"] = aims(result)
    return result


def aims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, what came out, and whether that is enough."""
    committed, dispatched, recorded, direct = (row["rate"] for row in found["rows"])
    made = [
        ("rows a second, enqueued in transactions", committed, 15_000, True),
        ("tasks a second, dispatched", dispatched, 10_000, True),
        ("tasks a second, recorded", recorded, 10_000, True),
        ("tasks a second, recorded without a row", direct, 10_000, True),
        ("a worker with a ledger against without", found["worker"]["ratio"], 0.7, True),
        ("commit to start in the median, ms", found["commit_to_start"]["p50_ms"], 20.0, False),
    ]
    return [
        {"name": name, "value": round(value, 3), "aim": aim, "least": least,
         "met": value >= aim if least else value <= aim}
        for name, value, aim, least in made
    ]  # fmt: skip


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    from fairlead.cli.common.tables import console, table

    out = console()
    machine = found["machine"]
    rows = table(
        f"{found['tasks']:,} tasks through the ledger "
        f"(Python {machine['python']}, {machine['cpus']} CPUs)",
        *("what", "tasks/s", "Python µs", "PostgreSQL µs", "server µs"),
    )
    for row in found["rows"]:
        parts = (f"{row[key]:.1f}" for key in ("python_us", "postgres_us", "server_us"))
        rows.add_row(row["name"], f"{row['rate']:,.0f}", *parts)
    out.print(rows)
    worker, wait = found["worker"], found["commit_to_start"]
    out.print(
        f"A worker runs {worker['without']:,.0f} tasks a second without a ledger and "
        f"{worker['with']:,.0f} with one: {worker['ratio']:.2f} times."
    )
    out.print(
        f"From commit to start: {wait['p50_ms']:.1f} ms in the median, "
        f"{wait['p99_ms']:.1f} ms in the 99th percentile; "
        f"without a ledger {wait['direct_ms']:.1f} ms."
    )
    wanted = table("Aims", "what", "figure", "aim", "")
    for aim in found["aims"]:
        sign = "≥" if aim["least"] else "≤"
        met = "met" if aim["met"] else "missed"
        wanted.add_row(aim["name"], f"{aim['value']:,g}", f"{sign} {aim['aim']:,g}", met)
    out.print(wanted)
