"""What one process of the HTTP API does: load from another process, on a Valkey of its own.

Three processes share the machine: the load, ``fairlead api`` and the server. On two cores that is
one too many, so the table also says what a request costs the API and the server in processor time.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.environment import PATIENCE, processor_seconds, serving
from fairlead.model.errors import FairleadError
from fairlead.settings import VARIABLE

__all__ = ("aims", "measure", "show")

_CONNECTIONS = 50
_SECONDS = 4.0
_LINES = 40_000
_SOCKETS = 200
_EVENTS = 50
_MANY = """
import asyncio, time
from benchmarks import tasks
from fairlead.runtime.event_loop import new_runner
async def main():
    calls = [tasks.noop.call("." * 64) for _ in range({count})]
    await tasks.app.aenqueue_many(calls[:500])
    began = time.perf_counter()
    await tasks.app.aenqueue_many(calls[500:])
    return ({count} - 500) / (time.perf_counter() - began)
with new_runner() as runner:
    print(runner.run(main()))
"""


def measure(*, rounds: int, scale: float, say: Callable[[str], None]) -> dict[str, Any]:
    """All rows, each the median of some rounds in turn."""
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(1, rounds + 1):
        with serving() as (url, server), _api(url) as (order, api):
            for name, run in _ROWS.items():
                say(f"api, round {number} of {rounds}: {name}")
                with _Meter(api, server) as meter:
                    figures = run(order, scale)
                figures |= meter.costs(figures.get("count", 0))
                found.setdefault(name, []).append(figures)
    rows = [
        {"name": name, **{key: round(median(each[key] for each in runs), 3) for key in runs[0]}}
        for name, runs in found.items()
    ]
    result: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "rounds": rounds,
        "rows": rows,
    }
    result["aims"] = aims(result)
    return result


def aims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, what came out, and whether that is enough."""
    rows = {row["name"]: row for row in found["rows"]}
    made = [
        ("single submissions a second", rows[SUBMIT]["rate"], 5_000, True),
        ("their p95, ms", rows[SUBMIT]["p95_ms"], 10.0, False),
        ("lines against aenqueue_many", rows[LINES]["rate"] / rows[MANY]["rate"], 0.7, True),
        ("reads of a task a second", rows[READ]["rate"], 5_000, True),
        (f"p99 of an event at {_SOCKETS} sockets, ms", rows[EVENTS]["p99_ms"], 100.0, False),
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
        f"One process of the API (Python {machine['python']}, {machine['cpus']} CPUs)",
        *("what", "a second", "p50 ms", "p95 ms", "p99 ms", "API µs", "server µs"),
    )
    for row in found["rows"]:
        parts = (
            f"{row[key]:,.{digits}f}" if key in row else ""
            for key, digits in (
                ("rate", 0), ("p50_ms", 1), ("p95_ms", 1), ("p99_ms", 1), ("api_us", 0),
                ("server_us", 0),
            )
        )  # fmt: skip
        rows.add_row(row["name"], *parts)
    out.print(rows)
    wanted = table("Aims", "what", "figure", "aim", "")
    for aim in found["aims"]:
        sign = "≥" if aim["least"] else "≤"
        met = "met" if aim["met"] else "missed"
        wanted.add_row(aim["name"], f"{aim['value']:g}", f"{sign} {aim['aim']:g}", met)
    out.print(wanted)


Order = dict[str, Any]


def _submit(order: Order, scale: float) -> dict[str, float]:
    found = _load(order, what="submit", connections=_CONNECTIONS, seconds=_SECONDS * scale)
    order["ids"] = found.pop("ids")
    return found


def _read(order: Order, scale: float) -> dict[str, float]:
    found = _load(order, what="read", connections=_CONNECTIONS, seconds=_SECONDS * scale)
    del found["ids"]
    return found


def _lines(order: Order, scale: float) -> dict[str, float]:
    return _load(order, what="lines", count=_many(scale))


def _many_calls(order: Order, scale: float) -> dict[str, float]:
    count = _many(scale)
    answer = subprocess.run(
        [sys.executable, "-c", _MANY.format(count=count)],
        env={**os.environ, VARIABLE: order["url"]}, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    if answer.returncode:
        raise FairleadError(f"aenqueue_many failed: {answer.stderr[-500:]}")
    return {"rate": float(answer.stdout)}


def _events(order: Order, scale: float) -> dict[str, float]:
    sockets, count = max(round(_SOCKETS * scale), 2), max(round(_EVENTS * scale), 3)
    return _load(order, what="events", sockets=sockets, count=count)


def _many(scale: float) -> int:
    return max(round(_LINES * scale), 1_000)


SUBMIT = f"POST of a task, {_CONNECTIONS} connections"
READ = f"GET of a task, {_CONNECTIONS} connections"
LINES = "tasks as lines of one request"
MANY = "aenqueue_many, without the API"
EVENTS = f"an event at {_SOCKETS} sockets"
_ROWS: dict[str, Callable[[Order, float], dict[str, float]]] = {
    SUBMIT: _submit,
    READ: _read,
    LINES: _lines,
    MANY: _many_calls,
    EVENTS: _events,
}


def _load(order: Order, **more: Any) -> dict[str, Any]:
    """Have the load carry out an order."""
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.api_load"],
        input=json.dumps(order | more), capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    if answer.returncode:
        raise FairleadError(f"the load failed: {answer.stderr[-500:]}")
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@contextlib.contextmanager
def _api(url: str) -> Iterator[tuple[Order, int]]:
    """Start one process of the API with a token: where it is, and its process."""
    environment = {**os.environ, VARIABLE: url}
    made = subprocess.run(
        [sys.executable, "-m", "fairlead", "token", "create", "--name", "bench", "--json",
         "--scopes", "read,submit,payload"],
        env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if made.returncode:
        raise FairleadError(f"no token could be made: {made.stderr[-500:]}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fairlead", "api", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "error"], env=environment)
    try:
        _wait(port, process)
        token = json.loads(made.stdout)["token"]
        yield {"host": "127.0.0.1", "port": port, "token": token, "url": url}, process.pid
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 30
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise FairleadError("the API did not start")


class _Meter:
    """Processor time of the API and of the server while something runs."""

    def __init__(self, api: int, server: int) -> None:
        self._pids = {"api_us": api, "server_us": server}
        self._used: dict[str, float] = {}

    def __enter__(self) -> _Meter:
        self._used = {key: processor_seconds(pid) for key, pid in self._pids.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for key, pid in self._pids.items():
            self._used[key] = processor_seconds(pid) - self._used[key]

    def costs(self, count: float) -> dict[str, float]:
        """Microseconds for one of so many requests."""
        return {key: used / count * 1e6 for key, used in self._used.items()} if count else {}
