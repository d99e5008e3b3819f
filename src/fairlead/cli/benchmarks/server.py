"""What a task costs on a Valkey or Redis server, with everything on that a user has on.

Each round measures everything once, so that a noisy moment meets all rows alike, and the median of
the rounds counts. In the same rounds stands what ``SET`` does on the same server: its rate says how
fast the machine is, and ratios to it are what can be compared between machines.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from fairlead.broker import connect
from fairlead.cli.benchmarks import latency, server_memory
from fairlead.cli.benchmarks.memory import Load
from fairlead.cli.benchmarks.process import CALLERS, TOGETHER
from fairlead.cli.benchmarks.server_load import (
    BATCH,
    FEATURES,
    Backlog,
    Trial,
    empty,
    enqueue_one_by_one,
    enqueue_together,
    silent,
)
from fairlead.cli.benchmarks.server_probe import Cost, Meter, Probe, plain_sets
from fairlead.cli.benchmarks.server_report import aims
from fairlead.embedded import EmbeddedValkey
from fairlead.model.errors import InvalidOption

__all__ = ("Sizes", "measure", "sizes")

_CALLERS_QUEUE = "bench-callers"
_SMALL_TENANTS = 100  # of the queues that try one feature each


class Sizes(NamedTuple):
    """How much of everything."""

    rounds: int = 3
    tasks: int = 20_000  # that pass through each load in a round
    warm_up: int = 11_000  # enough to fill the retention of a queue
    sets: int = 200_000
    tried: int = 5_000  # tasks of each feature in a round
    loads: tuple[Load, ...] = (
        Load(20_000, 1),
        Load(20_000, 100),
        Load(20_000, 1_000),
        Load(200_000, 100_000),
        Load(20_000, 1_000, limited=True),
    )
    small: Load = Load(1_000, 100)
    large: Load = Load(1_000_000, 100_000)
    queued: int = 100_000  # for the memory of one
    fill: int = 500_000  # at most, until the stream of events is full
    first: int = 20_000
    more: int = 200_000
    latency: int = latency.TASKS

    @property
    def backlogs(self) -> tuple[Load, ...]:
        """All queues with a backlog: the rows of the table, then the two that show growth."""
        return (*self.loads, self.small, self.large)


_QUICK = Sizes(
    tasks=10_000,
    sets=100_000,
    tried=2_000,
    loads=(
        Load(20_000, 1),
        Load(20_000, 100),
        Load(20_000, 1_000),
        Load(100_000, 100_000),
        Load(20_000, 1_000, limited=True),
    ),
    large=Load(100_000, 10_000),
    queued=20_000,
    more=50_000,
    latency=100,
)


def sizes(*, quick: bool, scale: float = 1.0) -> Sizes:
    """How much is measured; a smaller scale is for tests."""
    full = _QUICK if quick else Sizes()
    if scale == 1.0:
        return full

    def less(count: int, least: int = BATCH) -> int:
        return max(round(count * scale), least)

    def smaller(load: Load) -> Load:
        return load._replace(
            queued=less(load.queued, 5 * BATCH), tenants=less(load.tenants, min(load.tenants, 2))
        )

    return Sizes(
        rounds=full.rounds,
        loads=tuple(smaller(load) for load in full.loads),
        small=smaller(full.small),
        large=smaller(full.large),
        **{
            name: less(getattr(full, name))
            for name in ("tasks", "warm_up", "sets", "tried", "queued", "fill", "first", "more")
        },
        latency=less(full.latency, 5),
    )


def measure(
    size: Sizes, *, url: str | None = None, say: Callable[[str], None] = silent
) -> dict[str, Any]:
    """All figures, without a URL on a server of its own."""
    with _server(url) as place, asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_measure(place, size, say))


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        EmbeddedValkey(folder, dies_with_owner=True) as endpoint,
    ):
        yield endpoint.url


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # a platform without it
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _measure(url: str, size: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    probe = Probe(url)
    if probe.ask("DBSIZE"):
        shown = url.rpartition("@")[2].partition("?")[0]
        wanted = "that of an empty database: what is in it in the end is removed"
        raise InvalidOption("url", shown, wanted)
    try:
        run = _Run(url, probe, size, say)
        await run.prepare()
        for number in range(1, size.rounds + 1):
            say(f"server, round {number} of {size.rounds}")
            await run.round()
        found = run.figures()
        found["proof"] = await run.proof()
        await run.close()
        found["memory"] = await _memory(url, probe, size, say)
        probe.ask("FLUSHDB")
        say("latency of a server that has nothing else to do")
        found["latency"] = (await latency.measure(url, size.latency))._asdict()
        found["aims"] = aims(found)
        return found
    finally:
        probe.ask("FLUSHDB")
        probe.close()


class _Round(NamedTuple):
    """What one round found."""

    plain: Cost | None  # SET
    rows: list[Cost]  # one by one, together, then the exchanges of each load
    lives: list[float]  # of all backlogs: server µs from enqueue to settle
    functions: list[float]  # of all backlogs: function µs from enqueue to settle
    features: list[float]  # function µs


class _Run:
    """The queues on the server, and what the rounds found there."""

    def __init__(self, url: str, probe: Probe, size: Sizes, say: Callable[[str], None]) -> None:
        self._url, self._probe, self._size, self._say = url, probe, size, say
        self._backlogs = [
            Backlog(url, f"bench-{number}", load) for number, load in enumerate(size.backlogs)
        ]
        self._trials = [
            Trial(url, feature, min(_SMALL_TENANTS, size.small.tenants)) for feature in FEATURES
        ]
        self._rounds: list[_Round] = []
        self._before = {name: probe.calls(name) for name in ("xadd", "xtrim")}

    async def prepare(self) -> None:
        for backlog in self._backlogs:
            self._say(f"server, {backlog.load.name}: preloading")
            await backlog.prepare(self._say, self._size.warm_up)
        self._say("server, one feature after the other: warming up")
        for trial in self._trials:
            await trial.prepare(self._size.warm_up)

    async def close(self) -> None:
        for backlog in self._backlogs:
            await backlog.close()
        for trial in self._trials:
            await trial.close()

    async def round(self) -> None:
        url, probe, size = self._url, self._probe, self._size
        plain = plain_sets(probe, size.sets)
        rows: list[Cost] = []
        for way in (enqueue_one_by_one, enqueue_together):
            meter = Meter(probe)
            await way(url, _CALLERS_QUEUE, size.tasks, meter)
            rows.append(meter.cost())
            await empty(url, _CALLERS_QUEUE)
        lives: list[float] = []
        functions: list[float] = []
        for backlog in self._backlogs:
            entering, passing = Meter(probe), Meter(probe)
            await backlog.run(size.tasks, entering, passing)
            costs = entering.cost(), passing.cost()
            if len(rows) < 2 + len(size.loads):
                rows.append(costs[1])
            lives.append(sum(cost.server_us for cost in costs))
            functions.append(sum(cost.function_us for cost in costs))
        features: list[float] = []
        for trial in self._trials:
            meter = Meter(probe)
            await trial.run(size.tried, meter)
            features.append(meter.cost().function_us)
        self._rounds.append(_Round(plain, rows, lives, functions, features))

    def figures(self) -> dict[str, Any]:
        size, rounds = self._size, self._rounds
        names = [
            f"enqueue, {CALLERS} callers at once",
            f"enqueue, {TOGETHER} in a call",
            *(f"settle + fetch, {load.name}" for load in size.loads),
        ]
        small, large = (median(each.functions[place] for each in rounds) for place in (-2, -1))
        return {
            "broker": "server",
            "machine": {
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cpus": os.cpu_count(),
            },
            "server": self._version(),
            "rounds": size.rounds,
            "batch": BATCH,
            "set": _row("SET, 50 connections", [each.plain for each in rounds], rounds),
            "rows": [
                _row(name, [each.rows[place] for each in rounds], rounds)
                for place, name in enumerate(names)
            ],
            "lives": [
                {
                    "name": load.name,
                    "tenants": load.tenants,
                    "limited": load.limited,
                    "server_us": round(median(each.lives[place] for each in rounds), 2),
                    "function_us": round(median(each.functions[place] for each in rounds), 2),
                }
                for place, load in enumerate(size.backlogs)
            ],
            "growth": {
                "from": size.small.name,
                "to": size.large.name,
                "from_us": round(small, 2),
                "to_us": round(large, 2),
                "ratio": round(large / small, 3),
            },
            "features": [
                {
                    "name": feature.name,
                    "function_us": round(median(each.features[place] for each in rounds), 2),
                    # Against the plain tasks of the same round.
                    "more_us": round(
                        median(each.features[place] - each.features[0] for each in rounds), 2
                    ),
                }
                for place, feature in enumerate(FEATURES)
            ],
        }

    async def proof(self) -> dict[str, Any]:
        """What the server says of what was on while it was measured."""
        probe = self._probe
        broker = connect(self._url)
        counts = await broker.snapshot()
        oldest = await broker.events(limit=1)
        await broker.close()
        return {
            "appendonly": probe.setting("appendonly"),
            "appendfsync": probe.setting("appendfsync"),
            "aof_bytes": int(probe.info("persistence").get("aof_current_size", "0")),
            "event_entries_written": probe.calls("xadd") - self._before["xadd"],
            "event_trims": probe.calls("xtrim") - self._before["xtrim"],
            "events_readable": bool(oldest.events),
            "finished_tasks_kept": counts.completed + counts.dead + counts.cancelled,
        }

    def _version(self) -> str:
        info = self._probe.info("server")
        name = info.get("server_name", "redis")
        return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


def _row(
    name: str, costs: list[Cost | None] | list[Cost], rounds: list[_Round]
) -> dict[str, Any] | None:
    found = [cost for cost in costs if cost is not None]
    if not found:
        return None
    ratios = [
        cost.tasks_per_second / each.plain.tasks_per_second
        for cost, each in zip(found, rounds, strict=True)
        if each.plain is not None
    ]
    python = [cost.python_us for cost in found if cost.python_us is not None]
    return {
        "name": name,
        "tasks_per_second": round(median(cost.tasks_per_second for cost in found)),
        "set_ratio": round(median(ratios), 3) if ratios else None,
        "server_us": round(median(cost.server_us for cost in found), 2),
        "function_us": round(median(cost.function_us for cost in found), 2),
        "python_us": round(median(python), 2) if python else None,
    }


async def _memory(
    url: str, probe: Probe, size: Sizes, say: Callable[[str], None]
) -> dict[str, Any]:
    say("memory: on the emptied server, until its stream of events is full")
    probe.ask("FLUSHDB", "SYNC")
    broker = connect(url)
    grown = await server_memory.growth(
        broker, probe, fill=size.fill, first=size.first, more=size.more, say=say
    )
    say(f"memory: {size.queued:,} tasks that wait")
    room = await server_memory.queued_bytes(broker, probe, size.queued)
    await broker.close()
    return {
        "queued": room.tasks,
        "bytes_per_task": round(room.each, 1),
        "first": size.first,
        "more": size.more,
        "before_bytes": grown.before,
        "after_bytes": grown.after,
        "grown_bytes": grown.bytes,
        "allowed_bytes": grown.allowed,
    }
