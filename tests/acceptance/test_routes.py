"""High and low tasks on servers of their own, as operators run them: real workers, real outages."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead import Ambiguous, Fairlead, Unreachable
from fairlead.client.task import AsyncTask
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.slow

JOBS = """
import asyncio
from fairlead import Fairlead

app = Fairlead()

@app.task(priority="high")
async def otp(n: int) -> int:
    return n

@app.task
async def work(n: int) -> int:
    await asyncio.sleep(0.05)
    return n

@app.task(priority="low")
async def bulk(n: int) -> int:
    await asyncio.sleep(0.005)
    return n
"""
BACKLOG = 20_000


@pytest.fixture(scope="module")
def main() -> Iterator[Running]:
    with server(password="hunter2", tcp=True) as running:
        yield running


@pytest.fixture
def low() -> Iterator[Running]:
    with server(password="hunter3", tcp=True, aof=True) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, main: Running, low: Running, monkeypatch: pytest.MonkeyPatch) -> Path:
    main.admin("FLUSHALL")
    for name in ("FAIRLEAD_URL", "FAIRLEAD_ROUTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRLEAD_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "fairlead.toml").write_text(
        f'url = "{main.url}"\n[routes]\n"priority:low" = "{low.url}?shard=low"\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Tasks:
    """The tasks as a client has them."""

    def __init__(self, app: Fairlead) -> None:
        async def body(n: int) -> int:
            return n

        self.app = app
        self.otp: AsyncTask[[int], int] = app.task(name="jobs.otp", priority="high")(body)
        self.work: AsyncTask[[int], int] = app.task(name="jobs.work")(body)
        self.bulk: AsyncTask[[int], int] = app.task(name="jobs.bulk", priority="low")(body)

    async def latency(self, count: int = 20) -> float:
        """The median of what high tasks take from the call to the result, one after the other."""
        found = []
        for n in range(count):
            began = time.monotonic()
            assert await (await self.otp.aenqueue(n)).aresult(timeout=30) == n
            found.append(time.monotonic() - began)
        return statistics.median(found)

    async def rate(self, count: int = 300) -> float:
        """Tasks of the first server in a second, if a worker that is free waits for nothing."""
        began = time.monotonic()
        handles = await self.app.aenqueue_many([self.work.call(n) for n in range(count)])
        await asyncio.gather(*(handle.aresult(timeout=60) for handle in handles))
        return count / (time.monotonic() - began)


@contextlib.asynccontextmanager
async def working(folder: Path) -> AsyncIterator[tuple[Tasks, WorkerProcess]]:
    worker = WorkerProcess(folder, "-c", "20").start()
    try:
        async with Fairlead(timeout="2s") as app:
            yield Tasks(app), worker
        assert "hunter" not in worker.text()
    finally:
        worker.close()


async def depth(app: Fairlead) -> int:
    return (await app.asnapshot()).depth


async def test_a_backlog_of_low_tasks_does_not_hold_up_a_high_one(
    folder: Path, main: Running, low: Running
) -> None:
    async with working(folder) as (tasks, worker):
        started = await worker.logged("worker started")
        shown = f"redis://127.0.0.1:{main.port} (routes: priority:low=redis://127.0.0.1:{low.port})"
        assert started["broker"] == shown
        app = tasks.app
        await app.aconfigure_queue("default", paused=True)
        calls = [tasks.bulk.call(n) for n in range(BACKLOG)]
        handles = await app.aenqueue_many(calls, timeout=60)
        assert low.admin("DBSIZE") > 0
        assert await depth(app) == BACKLOG
        await app.aconfigure_queue("default", paused=False)
        await handles[0].aresult(timeout=30)
        assert await tasks.latency() < 0.5  # seconds; all of the backlog takes more than five
        assert await depth(app) > BACKLOG / 10

        said = ""
        for command in ("check", "doctor"):
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fairlead", command, cwd=folder, stdout=PIPE, stderr=STDOUT
            )
            async with asyncio.timeout(60):
                said = (await done.communicate())[0].decode()
            assert shown in said
            assert "hunter" not in said
        assert f"redis://127.0.0.1:{low.port}: Valkey" in said
        assert await app.apurge("default") > 0
        back = await tasks.bulk.aenqueue(3)  # what waits for it is on the other server
        assert await (await tasks.otp.using(depends_on=[back]).aenqueue(4)).aresult(timeout=30) == 4


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_a_low_server_that_is_away_does_not_disturb_high_ones(
    folder: Path, main: Running, low: Running, how: str
) -> None:
    if how == "killed":  # and a worker starts without it
        low.kill()
    async with working(folder) as (tasks, worker):
        await worker.ready()
        await tasks.latency(5)
        if how == "killed":
            low.start()
        latency, rate = await tasks.latency(), await tasks.rate()
        handle = await tasks.bulk.aenqueue(0)
        await handle.aresult(timeout=20)
        (low.pause if how == "frozen" else low.kill)()
        began = time.monotonic()
        with pytest.raises((Ambiguous, Unreachable), match=f"127.0.0.1:{low.port}"):
            await tasks.bulk.aenqueue(1)
        assert time.monotonic() - began < 3.5
        await tasks.latency(5)  # finding out takes two seconds, once
        assert await tasks.latency() < max(3 * latency, 0.2)
        assert max([await tasks.rate(), await tasks.rate()]) > 0.8 * rate
        (low.resume if how == "frozen" else low.start)()
        began = time.monotonic()
        assert await (await tasks.bulk.aenqueue(2)).aresult(timeout=20) == 2
        assert time.monotonic() - began < 8
