"""Which broker a worker takes, and that it says so: in its log, to probes, and when it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.broker import connect
from tests.cli.running import answered
from tests.embedded import processes
from tests.support.servers import Running, server
from tests.support.worker_process import PATIENCE, WorkerProcess, until

COMMAND = [sys.executable, "-m", "fairlead"]

APP = """
from fairlead import Fairlead

app = Fairlead()

@app.task
async def hello() -> str:
    return "hello"

@app.task(queue="far")
async def afar() -> str:
    return "hello from afar"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("FAIRLEAD_URL", "FAIRLEAD_REQUIRE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRLEAD_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "jobs.py").write_text(APP)
    yield tmp_path
    processes.sweep(tmp_path)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server("valkey", password="hunter2", tcp=True) as running:
        yield running


def refused(folder: Path, app: str = "jobs:app", code: int = 2, **environment: str) -> str:
    done = subprocess.run(
        [*COMMAND, "worker", app],
        cwd=folder, env={**os.environ, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr.splitlines()[-1]


def test_a_worker_without_a_terminal_takes_no_broker_that_nobody_named(folder: Path) -> None:
    error = refused(folder)
    assert error.startswith("error: nobody named a broker for 'jobs:app'")
    assert "set FAIRLEAD_URL" in error
    assert str(folder / "fairlead.toml") in error
    assert not (folder / ".fairlead").exists()
    assert "FAIRLEAD_REQUIRE_URL is set" in refused(folder, code=1, FAIRLEAD_REQUIRE_URL="1")


def test_an_app_with_an_open_store_is_refused_with_the_right_reason(folder: Path) -> None:
    (folder / "opened.py").write_text(
        "from fairlead import Fairlead\n"
        "from fairlead.broker import connect\n"
        "app = Fairlead(store=connect('redis://host'))\n"
    )
    error = refused(folder, "opened:app")
    assert "was given a store that is open, which other processes cannot open" in error


def test_with_a_terminal_it_takes_one_and_warns(folder: Path) -> None:
    ours, theirs = pty.openpty()
    log = folder / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*COMMAND, "worker", "jobs:app", "--log-format", "json"],
            cwd=folder, stdin=theirs, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        processes.until(lambda: "worker started" in log.read_text())
    finally:
        worker.terminate()
        worker.wait(30)
        os.close(theirs)
        os.close(ours)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    (warning,) = [each for each in entries if each["level"] == "warning"]
    assert f"a private server in {folder}/.fairlead" in warning["event"]
    (started,) = [each for each in entries if each["event"] == "worker started"]
    assert started["broker"] == f"embedded://{folder}/.fairlead"


async def test_the_broker_is_named_in_the_log_and_to_probes(folder: Path, valkey: Running) -> None:
    url = f"{valkey.url}?timeout=5"  # an option of every broker, not of its address
    worker = WorkerProcess(folder, environment={"FAIRLEAD_URL": url}).start()
    try:
        shown = (await worker.logged("worker started"))["broker"]
        assert shown == f"redis://127.0.0.1:{valkey.port}"

        def checked() -> bool:
            done = answered("check")
            assert "hunter2" not in done.stdout
            return f"jobs:app  {shown}  1 of 1" in done.stdout

        await until(checked, "fairlead check to name the broker")
        assert "hunter2" not in worker.text()
    finally:
        worker.close()


async def test_a_worker_serves_queues_of_several_shards(folder: Path, valkey: Running) -> None:
    (folder / "fairlead.toml").write_text('[shards]\nfar = "other"\n')
    worker = WorkerProcess(folder, environment={"FAIRLEAD_URL": valkey.url}).start()
    try:
        started = await worker.logged("worker started")
        assert started["broker"].endswith("(shards: far=other)")
        async with Fairlead(valkey.url, shards={"far": "other"}) as app:

            @app.task(name="jobs.hello")
            async def hello() -> str:
                return ""

            @app.task(name="jobs.afar", queue="far")
            async def afar() -> str:
                return ""

            handles = await app.aenqueue_many([hello.call(), afar.call()])
            results = [await each.aresult(timeout=20) for each in handles]
            assert results == ["hello", "hello from afar"]
        await _registered(f"{valkey.url}?shards=far=other")
    finally:
        worker.close()
    assert any(b"{other}" in key for key in valkey.admin("KEYS", "fl1:*"))


async def _registered(url: str) -> None:
    """Wait until one worker has told of itself, which may be after its first tasks."""
    store = connect(url)
    deadline = time.monotonic() + PATIENCE
    try:
        while len(await store.workers()) != 1:
            assert time.monotonic() < deadline, "no worker told of itself"
            await asyncio.sleep(0.02)
    finally:
        await store.close()
