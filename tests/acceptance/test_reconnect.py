"""Servers that die, freeze or fall silent: once they are back, every worker goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import pytest

from fairlead.model.events import Event
from tests.acceptance.harness import Site, opened
from tests.support.proxy import Proxy, proxy
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess, until

WITHIN = 5.0  # seconds from the return of the server
BACKLOG = 500  # naps, of 0.2 s; two workers with two at a time need 25 s for them

Load = Literal["busy", "idle"]


class Holes(Proxy):
    """A proxy whose connections can be made to lead nowhere, while new ones work."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 0, lambda _: False)
        self._lost: set[asyncio.StreamWriter] = set()
        self._over = asyncio.Event()

    def lose(self) -> None:
        """From now on nothing passes through the connections there are, and nobody is told."""
        for pair in self._pairs:
            self._lost |= {each for each in (pair.client, pair.server) if each is not None}

    async def end(self) -> None:
        self._over.set()
        await self.refuse()
        self.cut()
        for _ in range(5):  # the connections' own tasks end after their transports
            await asyncio.sleep(0)

    async def _pass(self, frame: bytes, gate: asyncio.Event, to: asyncio.StreamWriter) -> None:
        if to in self._lost:
            await self._over.wait()
            return
        await super()._pass(frame, gate, to)


@pytest.fixture
def durable() -> Iterator[Running]:
    with server(aof=True, config={"appendfsync": "always"}) as running:
        yield running


@contextlib.asynccontextmanager
async def two_workers(
    running: Running, folder: Path, load: Load = "busy", url: str = ""
) -> AsyncIterator[tuple[Site, list[WorkerProcess]]]:
    """Two workers with one child each, in the middle of work or with nothing to do."""
    async with opened(running.url, folder) as site:
        workers = [
            site.worker("-c", "2", "-p", "1", host=host, TEST_URL=url or running.url)
            for host in ("one", "another")
        ]
        for worker in workers:
            await worker.ready()
        if load == "busy":
            await site.enqueue("nap", BACKLOG, 0.2)
        else:
            await site.enqueue("nap", 12, 0.2)
        await both_work(site, workers, 0.0)
        if load == "idle":
            await site.stream.until(
                lambda: site.stream.counts["completed"] == 12, "the workers to have nothing to do"
            )
        yield site, workers
        await site.app.apurge()


def fetched(site: Site, worker: WorkerProcess, since: float) -> list[Event]:
    """What a worker was lent after a moment: tokens are not below the broker's time."""
    children = set(worker.children())
    tokens = {r.token for r in site.records("begin") if r.pid in children}
    return [
        event
        for event in site.stream.events
        if event.kind == "started" and event.token in tokens and event.token > since * 1e6
    ]


async def both_work(
    site: Site, workers: list[WorkerProcess], since: float, seconds: float = 20.0
) -> None:
    await until(
        lambda: all(fetched(site, worker, since) for worker in workers),
        lambda: "both workers to fetch\n" + "\n\n".join(w.tail(10) for w in workers),
        seconds,
    )


async def fetch_again(
    site: Site, workers: list[WorkerProcess], since: float, within: float = WITHIN
) -> None:
    """Each of them was lent something in time, by the broker's clock, and is the one it was."""
    before = [worker.children() for worker in workers]
    await both_work(site, workers, since, within + 15.0)
    for worker, children in zip(workers, before, strict=True):
        first = min(event.at for event in fetched(site, worker, since))
        print(f"{worker.name} fetched {first - since:.2f} s after the return of the server")
        assert first <= since + within, f"{worker.name} needed {first - since:.1f} s"
        assert worker.children() == children, f"{worker.name} was started again"
        assert worker.log("child died") == []


@pytest.mark.parametrize("load", ["busy", pytest.param("idle", marks=pytest.mark.slow)])
async def test_workers_fetch_again_after_the_server_was_killed_and_started_again(
    durable: Running, tmp_path: Path, load: Load
) -> None:
    async with two_workers(durable, tmp_path, load) as (site, workers):
        await asyncio.to_thread(durable.restart)
        back = time.time()
        if load == "idle":
            await site.enqueue("nap", 20, 0.2)
        await fetch_again(site, workers, back)


@pytest.mark.slow
@pytest.mark.parametrize("load", ["busy", "idle"])
async def test_workers_fetch_again_after_all_their_connections_were_killed(
    durable: Running, tmp_path: Path, load: Load
) -> None:
    async with two_workers(durable, tmp_path, load) as (site, workers):
        durable.admin("CLIENT", "KILL", "TYPE", "normal")
        back = time.time()
        if load == "idle":
            await site.enqueue("nap", 20, 0.2)
        await fetch_again(site, workers, back)


@pytest.mark.slow
async def test_workers_fetch_again_after_a_server_that_was_away_for_a_while(
    durable: Running, tmp_path: Path
) -> None:
    async with two_workers(durable, tmp_path) as (site, workers):
        durable.kill()
        noticed = [len(worker.log()) for worker in workers]
        await until(
            lambda: all(len(w.log()) > n for w, n in zip(workers, noticed, strict=True)),
            "the workers to say that the server is gone",
        )
        await asyncio.sleep(8.0)  # long enough for all pauses between attempts to have grown
        await asyncio.to_thread(durable.start)
        await fetch_again(site, workers, time.time())


@pytest.mark.long(45)
@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_workers_fetch_again_after_a_freeze_of_forty_seconds(
    durable: Running, tmp_path: Path
) -> None:
    async with two_workers(durable, tmp_path) as (site, workers):
        durable.pause()
        try:
            await asyncio.sleep(40.0)
        finally:
            durable.resume()
        await fetch_again(site, workers, time.time())
        # The silence was the server's: nobody's work was taken away for it.
        assert site.stream.counts["recovered"] == 0


@pytest.mark.slow
async def test_workers_fetch_again_when_a_black_hole_between_them_and_the_server_is_gone(
    durable: Running, tmp_path: Path
) -> None:
    async with (
        proxy(path=durable.path) as between,
        two_workers(durable, tmp_path, url=between.url) as (site, workers),
    ):
        connections = between.connections
        between.swallow()
        await until(
            lambda: between.connections >= connections + 2,
            "the workers to try new connections",
            30.0,
        )
        between.heal()
        await fetch_again(site, workers, time.time())


@pytest.mark.slow
async def test_workers_give_up_connections_that_lead_nowhere(
    durable: Running, tmp_path: Path
) -> None:
    between = Holes(durable.path)
    await between.accept()
    try:
        async with two_workers(durable, tmp_path, url=between.url) as (site, workers):
            between.lose()
            # Five seconds without an answer, then a new connection after a pause of at most five.
            await fetch_again(site, workers, time.time(), within=WITHIN + 10.0)
    finally:
        await between.end()
