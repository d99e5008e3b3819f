"""``fairlead bench``: what a task costs on this machine."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from fairlead.cli.benchmarks import (
    api,
    flows,
    ledger,
    memory,
    process,
    server,
    server_report,
    spool,
    workers,
)
from fairlead.cli.benchmarks.memory import Cost, Load
from fairlead.cli.commands import Command, Number, talk
from fairlead.model.errors import Refused

__all__ = ("bench", "figures", "loads")

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


@click.command(
    cls=Command,
    section="Try it",
    examples=(
        ("fairlead bench", "everything: some minutes, and 2 GB of memory"),
        ("fairlead bench --quick", "without the largest backlogs: two or three minutes"),
        ("fairlead bench memory --json > before.json", "to compare with later"),
        ("fairlead bench server --url redis://host/9", "on a server that is there already"),
        ("fairlead bench worker", "whole worker processes, in a minute or two"),
        ("fairlead bench flow", "what dependencies cost, in half a minute"),
        ("fairlead bench api", "the HTTP API, in a minute"),
        ("fairlead bench ledger", "PostgreSQL as the record, in a minute or two"),
        ("fairlead bench spool", "records on this disk while the broker is away, in a minute"),
    ),
)
@click.argument(
    "what",
    type=click.Choice(["all", "memory", "server", "worker", "flow", "api", "ledger", "spool"]),
    default="all",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
@click.option("--quick", is_flag=True, help="Stop at 100,000 tasks, most of 10,000 tenants.")
@click.option(
    "--url",
    help="Measure this server. The database must be empty, and is emptied again in the end.",
)
@click.option("--scale", type=Number(0.001, 1.0), default=1.0, hidden=True)
def bench(what: str, as_json: bool, quick: bool, url: str | None, scale: float) -> None:
    """Measure what a task costs on this machine.

    memory: the memory broker is called directly, by one thread, with 100 tasks of 100 bytes at a
    time, while a backlog of the size given stays as large as it is; then client and worker run in
    one process. Each figure is the best of three rounds.

    server: the same kind of tasks on a Valkey that is started for it, with its file, events and
    retention on, and beside them what SET does there, if redis-benchmark is installed. Each figure
    is the median of three rounds.

    worker: `fairlead worker` as a whole, on a Valkey of its own, with tasks that are queued
    already, from the first start to the last outcome. Each figure is the median of three rounds.

    flow: the same with ten fan-outs of a thousand tasks, each joined, and the ten joined; beside as
    many plain tasks.

    api: one process of the HTTP API, with load from another process and a Valkey of its own.

    ledger: the way of a task through PostgreSQL, step by step, and a worker beside a manager. Both
    servers are started for it; it needs fairlead[postgres].

    spool: what is kept on this disk while the broker is away, with 64 callers and with one, each
    answered after fdatasync; beside it the disk alone. Each figure is the median of three rounds.
    Then what an app pays for a fallback while its broker, a Valkey of its own, is there.
    """
    if url is not None and what not in ("all", "server"):
        raise click.UsageError(f"--url {url.rpartition('@')[2]} is for the server only")
    rounds = 1 if quick else _ROUNDS
    parts: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None]]] = {
        "memory": (lambda: asyncio.run(figures(quick=quick, scale=scale)), _show),
        "worker": (
            lambda: workers.measure(rounds=rounds, scale=scale, idle=10.0 * scale, say=_say),
            workers.show,
        ),
        "flow": (lambda: flows.measure(rounds=rounds, scale=scale, say=_say), flows.show),
        "api": (lambda: api.measure(rounds=rounds, scale=scale, say=_say), api.show),
        "ledger": (lambda: ledger.measure(rounds=rounds, scale=scale, say=_say), ledger.show),
        "spool": (lambda: spool.measure(rounds=rounds, scale=scale, say=_say), spool.show),
        "server": (
            lambda: server.measure(server.sizes(quick=quick, scale=scale), url=url, say=_say),
            server_report.show,
        ),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (measure, _) in parts.items():
        if what in ("all", name):
            with _optional(what == "all" and (name != "server" or url is None)):
                found[name] = measure()
    if as_json:
        click.echo(json.dumps(found if what == "all" else found[what]))
        return
    for name, figures_of_it in found.items():
        parts[name][1](figures_of_it)


@contextmanager
def _optional(optional: bool) -> Iterator[None]:
    """Where everything is measured that can be, a missing server is no reason to stop."""
    try:
        yield
    except Refused as refused:
        if not optional or refused.cause != "binary":
            raise
        _say(f"nothing is measured on a server: {refused}")


async def figures(*, quick: bool, scale: float = 1.0) -> dict[str, Any]:
    """Measure the broker in memory; a smaller scale is for tests."""
    rows = loads(quick=quick, scale=scale)
    tasks, warm_up = (max(round(count * scale), memory.BATCH) for count in (_TASKS, _WARM_UP))
    costs = await memory.costs(rows, rounds=_ROUNDS, tasks=tasks, warm_up=warm_up, say=_say)
    gc.collect()  # the backlogs, before anything else is measured
    rates = await process.measure(tasks, rounds=_ROUNDS, say=_say)
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


def _say(text: str) -> None:
    talk(f"bench: {text}")


def _show(found: dict[str, Any]) -> None:
    from fairlead.cli.terminal import console, table

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
