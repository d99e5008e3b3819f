"""What a task costs the process that enqueues or runs it, here and in another checkout, in turn.

    python benchmarks/processor_time.py [--other CHECKOUT] [--rounds 5]

Rates depend on what else the machine does. The processor time of the process does so much less:
compare the columns of one table, and the least more than the median. The server is the one that
``embedded://`` would start, without its file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROWS = {
    "enqueue one by one, sync": 1_500,
    "aenqueue one by one": 1_500,
    "aenqueue, 50 callers at once": 20_000,
    "aenqueue_many, 500 in a call": 20_000,
    "aenqueue_many, 5,000 in a call": 40_000,
    "run, async handlers that do nothing": 20_000,
}
_ROOT = Path(__file__).parents[1]


class Figures(NamedTuple):
    """Of one row in one round."""

    rate: float  # tasks a second
    microseconds: float  # of the processor, for a task


class Load:
    """An app with a task that does nothing, and what is done with it."""

    def __init__(self, url: str) -> None:
        from fairlead import Fairlead

        self.app = Fairlead(url)

        @self.app.task
        async def work(number: int, text: str) -> None: ...

        self.work = work

    def sync(self, count: int) -> None:
        for number in range(count):
            self.work.enqueue(number, "hello")

    async def callers(self, count: int, callers: int) -> None:
        async def caller() -> None:
            for number in range(count // callers):
                await self.work.aenqueue(number, "hello")

        await asyncio.gather(*(caller() for _ in range(callers)))

    async def bulk(self, count: int, each: int) -> None:
        for _ in range(max(1, count // each)):
            await self.app.aenqueue_many([self.work.call(n, "hello") for n in range(each)])

    async def run(self) -> None:
        await self.app.worker(concurrency=100).drain(limit=None)


def measure(url: str, row: str) -> Figures:
    """In a process of its own: one row, once everything is open and loaded."""
    import uvloop  # not by way of Fairlead: another checkout may have that elsewhere

    load, count = Load(url), ROWS[row]
    if row.startswith("enqueue"):
        load.sync(50)
        with _timed(count) as taken:
            load.sync(count)
        return taken[0]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(load.bulk(500, 500))
        if row.startswith("run"):
            runner.run(load.run())
            runner.run(load.bulk(count, 500))
            act = load.run()
        elif row.startswith("aenqueue_many"):
            act = load.bulk(count, 5_000 if "5,000" in row else 500)
        else:
            act = load.callers(count, 50 if "50" in row else 1)
        with _timed(count) as taken:
            runner.run(act)
        return taken[0]


@contextmanager
def _timed(count: int) -> Iterator[list[Figures]]:
    taken: list[Figures] = []
    began, before = time.perf_counter(), _processor()
    yield taken
    seconds = time.perf_counter() - began
    taken.append(Figures(count / seconds, (_processor() - before) / count * 1e6))


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def compare(checkouts: list[Path], rounds: int) -> None:
    """Print a table: each row by all checkouts in turn, on a server that is emptied before."""
    import redis

    from fairlead.embedded.valkey_server import find_binary

    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "socket")
        options = ("--port", "0", "--save", "", "--unixsocket", socket, "--dir", folder)
        server = subprocess.Popen([find_binary(), *options], stdout=subprocess.DEVNULL)
        while not socket.exists():
            time.sleep(0.05)
        try:
            for row in ROWS:
                found: dict[Path, list[Figures]] = {each: [] for each in checkouts}
                for _ in range(rounds):
                    for each in checkouts:
                        with redis.Redis(unix_socket_path=str(socket)) as admin:
                            admin.flushall()
                        command = [sys.executable, __file__, "--row", row, f"unix://{socket}"]
                        env = {**os.environ, "PYTHONPATH": str(each / "src")}
                        said = subprocess.check_output(
                            command, env=env, text=True, stderr=subprocess.DEVNULL
                        )
                        found[each].append(Figures(*map(float, said.split())))
                for each, figures in found.items():
                    rate = statistics.median(one.rate for one in figures)
                    spent = [one.microseconds for one in figures]
                    print(
                        f"{row:36} {each.name:16} {rate:8,.0f}/s "
                        f"{statistics.median(spent):7.1f} µs, least {min(spent):.1f}",
                        flush=True,
                    )
        finally:
            server.kill()
            server.wait()


def main() -> None:
    """Compare, or measure one row for whoever compares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--row")
    parser.add_argument("url", nargs="?")
    said = parser.parse_args()
    if said.row is not None:
        print(*measure(said.url, said.row))
    else:
        other = [said.other.resolve()] if said.other else []
        compare([*other, _ROOT], said.rounds)


if __name__ == "__main__":
    main()
