"""A rolling deploy: an old and a new release of an app work side by side, as real processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.model.events import Event
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess, until

OLD = """
from fairlead import Fairlead

app = Fairlead()

@app.task(name="steady")
async def steady() -> None: ...
"""

NEW = (
    OLD
    + """
import json, os, time

@app.task(name="fresh")
async def fresh(number: int, sent_at: float) -> None:
    with open("started", "a") as file:
        file.write(json.dumps([number, time.time() - sent_at]) + "\\n")
"""
)
COUNT = 100


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server("valkey") as running:
        yield running


def started(folder: Path) -> dict[int, float]:
    """How many seconds after its enqueue each task began."""
    file = folder / "started"
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(map(json.loads, lines))


@pytest.mark.serial
async def test_tasks_of_the_new_release_start_within_a_second_beside_workers_of_the_old(
    tmp_path: Path, valkey: Running
) -> None:
    folders = {"old": OLD, "new": NEW}
    workers = []
    for name, text in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "jobs.py").write_text(text)
        environment = {"FAIRLEAD_URL": valkey.url, "FAIRLEAD_RUN_DIR": str(tmp_path / "run")}
        processes = ("-p", "2") if name == "old" else ()
        worker = WorkerProcess(
            tmp_path / name, *processes, environment=environment, name=name
        ).start()
        workers.append(worker)
    try:
        for worker in workers:
            await worker.ready()
        async with Fairlead(valkey.url) as app:

            async def all_known() -> bool:
                return len(await app.aworkers()) == 3

            while not await all_known():  # noqa: ASYNC110 - the registry sends no event
                await asyncio.sleep(0.01)
            fresh = app.named("fresh")
            await (await fresh.aenqueue(COUNT, time.time())).aresult(timeout=30)  # all is open
            for burst in range(0, COUNT, 10):
                calls = [fresh.call(burst + n, time.time()) for n in range(10)]
                await app.aenqueue_many(calls)
                await asyncio.sleep(0.05)  # so that those who wait for work are the idle ones
            new = tmp_path / "new"
            await until(lambda: len(started(new)) > COUNT, lambda: str(len(started(new))))
            lent = [event async for event in _starts(app)]
        delays = sorted(list(started(tmp_path / "new").values())[1:])  # not of the first
        p50, p95, worst = delays[COUNT // 2], delays[COUNT * 95 // 100], delays[-1]
        print(f"p50 {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms")
        old = sum(len(worker.log(task="fresh")) for worker in workers[:1])
        print(f"{len(lent) - COUNT - 1} of {COUNT + 1} were lent to the old release first")
        assert len(lent) > COUNT + 1, "no worker of the old release ever had one"
        assert p95 < 1.0
        assert old >= 1  # it said where they go
        assert "unroutable" not in workers[0].text()
    finally:
        for worker in workers:
            worker.close()


async def _starts(app: Fairlead) -> AsyncIterator[Event]:
    store = app._clients.store
    page = await store.events()
    while page.events:
        for event in page.events:
            if event.kind == "started":
                yield event
        page = await store.events(after=page.last)
