"""The memory broker as ``fairlead bench memory`` shows it: which loads, and the table of them."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from typing import Any

from benchmarks import in_process, memory
from benchmarks.memory import Cost, Load
from fairlead.cli.common.tables import console, table

__all__ = ("figures", "loads", "show")

_ROUNDS = 3
_TASKS = 20_000  # that pass through each load in a round
_WARM_UP = 60_000  # enough to fill the retention of a queue and its events
_SMALL, _MIDDLE, _LARGE = Load(1_000, 100), Load(100_000, 10_000), Load(1_000_000, 100_000)
_ONE = Load(1_000, 1)
_LIMITED = Load(100_000, 10_000, limited=True)


def loads(*, quick: bool, scale: float = 1.0) -> list[Load]:
    """The rows of the table: one tenant, 100, then ever more of both, and last one with limits."""
    rows = [_ONE, _SMALL, _MIDDLE, *([] if quick else [_LARGE]), _LIMITED]
    return [
        row._replace(
            queued=max(round(row.queued * scale), memory.BATCH),
            tenants=max(round(row.tenants * scale), min(row.tenants, 2)),
        )
        for row in rows
    ]


async def figures(*, quick: bool, say: Callable[[str], None], scale: float = 1.0) -> dict[str, Any]:
    """Measure the broker in memory; a smaller scale is for tests."""
    rows = loads(quick=quick, scale=scale)
    tasks, warm_up = (max(round(count * scale), memory.BATCH) for count in (_TASKS, _WARM_UP))
    costs = await memory.costs(rows, rounds=_ROUNDS, tasks=tasks, warm_up=warm_up, say=say)
    gc.collect()  # the backlogs, before anything else is measured
    rates = await in_process.measure(tasks, rounds=_ROUNDS, say=say)
    one, small, large = costs[0], costs[1], costs[-2]
    return {
        "broker": "memory",
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "rounds": _ROUNDS,
        "batch": memory.BATCH,
        "clock": "thread CPU time",  # of the rows; tasks_per_second there is per second of it
        "rows": [_row(load, cost) for load, cost in zip(rows, costs, strict=True)],
        "growth": {
            "from": rows[1].name,
            "to": rows[-2].name,
            "ratio": round(large.total / small.total, 3),
        },
        "one_tenant": {
            "from": rows[1].name,
            "to": rows[0].name,
            "ratio": round(one.total / small.total, 3),
        },
        "process": [
            {
                "name": rate.name,
                "tasks_per_second": round(rate.tasks_per_second),
                "cpu_us": round(rate.cpu_us, 2),
            }
            for rate in rates
        ],
    }


def _row(load: Load, cost: Cost) -> dict[str, Any]:
    return {
        "name": load.name,
        "queued": load.queued,
        "tenants": load.tenants,
        "limited": load.limited,
        "enqueue_us": round(cost.enqueue, 3),
        "fetch_us": round(cost.fetch, 3),
        "settle_us": round(cost.settle, 3),
        "total_us": round(cost.total, 3),
        "tasks_per_second": round(1e6 / cost.total),
    }


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    out = console()
    machine = found["machine"]
    rows = table(
        f"Broker in memory, CPU µs a task (Python {machine['python']}, {machine['cpus']} CPUs)",
        "backlog",
        "enqueue",
        "fetch",
        "settle",
        "all three",
        "tasks/CPU s",
    )
    for row in found["rows"]:
        parts = (f"{row[f'{part}_us']:.2f}" for part in ("enqueue", "fetch", "settle", "total"))
        rows.add_row(row["name"], *parts, f"{row['tasks_per_second']:,}")
    out.print(rows)
    ways = table("Client and worker in one process", "way", "tasks/s", "CPU µs a task")
    for way in found["process"]:
        ways.add_row(way["name"], f"{way['tasks_per_second']:,}", f"{way['cpu_us']:.1f}")
    out.print(ways)
    for key in ("growth", "one_tenant"):
        ratio = found[key]
        out.print(f"{ratio['to']} costs {ratio['ratio']:.2f} times what {ratio['from']} does.")
