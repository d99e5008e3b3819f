"""`make bench`: what a task costs on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fairlead.cli.common.commands import Command, Number, talk
from fairlead.cli.common.output import print_json
from fairlead.model.errors import Refused

__all__ = ("bench",)

_ROUNDS = 3


@click.command(
    cls=Command,
    examples=(
        ("python -m benchmarks", "everything: some minutes, and 2 GB of memory"),
        ("python -m benchmarks --quick", "without the largest backlogs: two or three minutes"),
        ("python -m benchmarks memory --json > before.json", "to compare with later"),
        ("python -m benchmarks server --url redis://host/9", "on a server that is there already"),
        ("python -m benchmarks worker", "whole worker processes, in a minute or two"),
        ("python -m benchmarks flow", "what dependencies cost, in half a minute"),
        ("python -m benchmarks api", "the HTTP API, in a minute"),
        ("python -m benchmarks ledger", "PostgreSQL as the record, in a minute or two"),
        (
            "python -m benchmarks spool",
            "records on this disk while the broker is away, in a minute",
        ),
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
    import asyncio

    from benchmarks import api, flows, ledger, memory_report, server, server_report, spool, workers

    if url is not None and what not in ("all", "server"):
        raise click.UsageError(f"--url {url.rpartition('@')[2]} is for the server only")
    # What it starts imports this package, wherever it was called.
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    rounds = 1 if quick else _ROUNDS
    parts: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None]]] = {
        "memory": (
            lambda: asyncio.run(memory_report.figures(quick=quick, scale=scale, say=_say)),
            memory_report.show,
        ),
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
        print_json(found if what == "all" else found[what])
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


def _say(text: str) -> None:
    talk(f"bench: {text}")
