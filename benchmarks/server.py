"""What a task costs on a Valkey or Redis server, with everything on that a user has on.

Each round measures all of its rows once, so that a noisy moment meets them alike, and the median of
the rounds counts. In the same rounds stands what ``SET`` does on the same server: its rate says how
fast the machine is, and ratios to it are what can be compared between machines.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from benchmarks import latency, server_memory
from benchmarks.in_process import CALLERS, TOGETHER
from benchmarks.memory import Load
from benchmarks.server_load import (
    BATCH,
    FEATURES,
    Backlog,
    Feature,
    Trial,
    empty,
    enqueue_one_by_one,
    enqueue_together,
    silent,
)
from benchmarks.server_probe import Cost, Meter, Probe, plain_sets
from benchmarks.server_report import aims
from fairlead.broker import connect
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import InvalidOption

__all__ = ("Sizes", "measure", "sizes")

_CALLERS_QUEUE = "bench-callers"
_LIFE = ("server_us", "function_us")
_TOGETHER = ((0, 1, 2, 4), (3, 5, 6))  # which backlogs are on the server at the same time
_FEWEST_QUEUED = 2_000  # the memory of fewer is lost in what the server does besides
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
            for name in ("tasks", "warm_up", "sets", "tried", "fill", "first", "more")
        },
        queued=less(full.queued, _FEWEST_QUEUED),
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
        probe.close()
        shown = url.rpartition("@")[2].partition("?")[0]
        wanted = "that of an empty database: what is in it in the end is removed"
        raise InvalidOption("url", shown, wanted)
    try:
        run = _Run(url, probe, size, say)
        for places in _TOGETHER:
            await run.backlogs(places)
        await run.features()
        found = run.figures()
        found["memory"] = await _memory(url, probe, size, say)
        probe.ask("FLUSHDB")
        say("latency of a server that has nothing else to do")
        found["latency"] = (await latency.measure(url, size.latency))._asdict()
        found["aims"] = aims(found)
        return found
    finally:
        probe.ask("FLUSHDB")
        probe.close()


class _Seen(NamedTuple):
    """What one round found in one row."""

    cost: Cost
    plain: Cost | None = None  # SET in the same round
    life_server: float = 0.0  # µs from enqueue to settle
    life_function: float = 0.0


class _Run:
    """What the rounds find. Small backlogs are measured apart from large ones, and from features.

    On a server with a million tasks in it everything costs more than on one without, so rows that
    say how many there are must not share it with more than that.
    """

    def __init__(self, url: str, probe: Probe, size: Sizes, say: Callable[[str], None]) -> None:
        self._url, self._probe, self._size, self._say = url, probe, size, say
        self._seen: defaultdict[str, list[_Seen]] = defaultdict(list)
        self._before = {name: probe.calls(name) for name in ("xadd", "xtrim")}
        self._proof: dict[str, Any] = {}

    async def backlogs(self, places: Sequence[int]) -> None:
        """Some of the backlogs, in rounds; enqueueing goes with the first of them."""
        size = self._size
        queues = {
            place: Backlog(self._url, f"bench-{place}", size.backlogs[place]) for place in places
        }
        for backlog in queues.values():
            self._say(f"server, {backlog.load.name}: preloading")
            await backlog.prepare(self._say, size.warm_up)
        for _ in self._rounds(", ".join(str(queue.load.tenants) for queue in queues.values())):
            plain = plain_sets(self._probe, size.sets)
            if plain is not None:
                self._seen[f"set {places[0]}"].append(_Seen(plain, plain))
            if 0 in places:
                await self._enqueue(plain)
            for place, backlog in queues.items():
                entering, passing = self._meter(), self._meter()
                await backlog.run(size.tasks, entering, passing)
                costs = entering.cost(), passing.cost()
                server, function = (sum(getattr(cost, name) for cost in costs) for name in _LIFE)
                self._seen[f"load {place}"].append(_Seen(costs[1], plain, server, function))
        await self._prove()
        for backlog in queues.values():
            await backlog.close()
        self._probe.ask("FLUSHDB", "SYNC")

    async def _enqueue(self, plain: Cost | None) -> None:
        for way in (enqueue_one_by_one, enqueue_together):
            meter = self._meter()
            await way(self._url, _CALLERS_QUEUE, self._size.tasks, meter)
            self._seen[way.__name__].append(_Seen(meter.cost(), plain))
            await empty(self._url, _CALLERS_QUEUE)

    async def features(self) -> None:
        """Each feature in a queue of its own."""
        size = self._size
        trials = [
            Trial(self._url, feature, min(_SMALL_TENANTS, size.small.tenants))
            for feature in FEATURES
        ]
        self._say("server, one feature after the other: warming up")
        for trial in trials:
            await trial.prepare(size.warm_up)
        for _ in self._rounds("features"):
            for trial in trials:
                meter = self._meter()
                await trial.run(size.tried, meter)
                self._seen[trial.feature.queue].append(_Seen(meter.cost()))
        for trial in trials:
            await trial.close()

    def _rounds(self, what: str) -> Iterator[int]:
        for number in range(1, self._size.rounds + 1):
            self._say(f"server, {what}: round {number} of {self._size.rounds}")
            yield number

    def _meter(self) -> Meter:
        # One that preloading has begun is not this row's.
        if not self._probe.wait_for_rewrite():
            self._say("server: it still rewrites its file; the next row pays for that as well")
        return Meter(self._probe)

    # -- what it comes to -----------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        size = self._size
        small, large = (self._life(place)["function_us"] for place in (-2, -1))
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
            "sets": [
                _row(
                    f"SET, next to {size.backlogs[places[-1]].name}", self._seen[f"set {places[0]}"]
                )
                for places in _TOGETHER
                if self._seen[f"set {places[0]}"]
            ],
            "rows": [
                _row(f"enqueue, {CALLERS} callers at once", self._seen["enqueue_one_by_one"]),
                _row(f"enqueue, {TOGETHER} in a call", self._seen["enqueue_together"]),
                *(
                    _row(f"settle + fetch, {load.name}", self._seen[f"load {place}"])
                    for place, load in enumerate(size.loads)
                ),
            ],
            "lives": [self._life(place) for place in range(len(size.backlogs))],
            "growth": {
                "from": size.small.name,
                "to": size.large.name,
                "from_us": small,
                "to_us": large,
                "ratio": round(large / small, 3),
            },
            "features": [self._feature(feature) for feature in FEATURES],
            "proof": self._proof,
        }

    def _life(self, place: int) -> dict[str, Any]:
        place %= len(self._size.backlogs)
        load, seen = self._size.backlogs[place], self._seen[f"load {place}"]
        return {
            "name": load.name,
            "tenants": load.tenants,
            "limited": load.limited,
            "server_us": round(median(each.life_server for each in seen), 2),
            "function_us": round(median(each.life_function for each in seen), 2),
        }

    def _feature(self, feature: Feature) -> dict[str, Any]:
        seen, plain = (self._seen[name] for name in (feature.queue, FEATURES[0].queue))
        found: dict[str, Any] = {"name": feature.name}
        for name in _LIFE:
            spent = [getattr(each.cost, name) for each in seen]
            others = [getattr(each.cost, name) for each in plain]
            more = [one - other for one, other in zip(spent, others, strict=True)]  # in a round
            found[name] = round(median(spent), 2)
            found[f"more_{name}"] = round(median(more), 2)
        return found

    async def _prove(self) -> None:
        """Ask the server what was on while it was measured."""
        probe = self._probe
        broker = connect(self._url)
        counts = await broker.snapshot(tenants=False)
        oldest = await broker.events(limit=1)
        await broker.close()
        kept = counts.completed + counts.dead + counts.cancelled
        persistence = probe.info("persistence")
        self._proof = {
            "appendonly": probe.setting("appendonly"),
            "appendfsync": probe.setting("appendfsync"),
            "aof_bytes": int(persistence.get("aof_current_size", "0")),
            "aof_rewrites": int(persistence.get("aof_rewrites", "0")),
            "event_entries_written": probe.calls("xadd") - self._before["xadd"],
            "event_trims": probe.calls("xtrim") - self._before["xtrim"],
            "events_readable": bool(oldest.events),
            "finished_tasks_kept": max(kept, self._proof.get("finished_tasks_kept", 0)),
        }

    def _version(self) -> str:
        info = self._probe.info("server")
        name = info.get("server_name", "redis")
        return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


def _row(name: str, seen: list[_Seen]) -> dict[str, Any]:
    ratios = [
        each.cost.tasks_per_second / each.plain.tasks_per_second for each in seen if each.plain
    ]
    python = [each.cost.python_us for each in seen if each.cost.python_us is not None]
    return {
        "name": name,
        "tasks_per_second": round(median(each.cost.tasks_per_second for each in seen)),
        "set_ratio": round(median(ratios), 3) if ratios else None,
        "server_us": round(median(each.cost.server_us for each in seen), 2),
        "function_us": round(median(each.cost.function_us for each in seen), 2),
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
