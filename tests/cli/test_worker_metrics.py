"""``fairlead worker --metrics-port``: figures of all children, whatever becomes of one of them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from fairlead import Fairlead, Handle
from tests.support.servers import server
from tests.support.worker_process import WorkerProcess, until
from tests.telemetry.exposed import Samples, check_histograms, samples

APP = """
import os
from fairlead import Fairlead, Reject

app = Fairlead(os.environ["FAIRLEAD_TEST_URL"])

@app.task(name="well")
async def well() -> None:
    ...

@app.task(name="badly")
async def badly() -> None:
    await well.using(priority="high").aenqueue()
    raise Reject("no")
"""


def row(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("valkey") as running:
        yield running.url


@pytest.fixture
async def worker(tmp_path: Path, url: str) -> AsyncIterator[WorkerProcess]:
    (tmp_path / "jobs.py").write_text(APP)
    environment = {"FAIRLEAD_TEST_URL": url, "FAIRLEAD_RUN_DIR": str(tmp_path / "run")}
    made = WorkerProcess(tmp_path, "-p", "2", "--metrics-port", "0", environment=environment)
    try:
        yield made.start()
    finally:
        made.close()


class Scraper:
    """Reads the metrics of a worker."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.text = ""
        self.found: Samples = {}

    def look(self) -> Samples:
        self.text = httpx.get(self._url).raise_for_status().text
        self.found = samples(self.text)
        return self.found

    async def until(self, name: str, value: float, **labels: str) -> None:
        key = row(name, **labels)
        await until(
            lambda: self.look().get(key) == value,
            lambda: f"{key} to be {value}, it is {self.found.get(key)}",
        )


@pytest.mark.slow
async def test_children_are_added_up_and_a_dead_one_is_not_forgotten(
    worker: WorkerProcess, url: str
) -> None:
    port = (await worker.logged("metrics served"))["port"]
    children = await worker.ready()
    scraper, app = Scraper(port), Fairlead(url)

    @app.task(name="well")
    async def well() -> None: ...

    @app.task(name="badly")
    async def badly() -> None: ...

    handles: list[Handle[None]] = await app.aenqueue_many([well.call() for _ in range(40)])
    handles.append(await badly.aenqueue())
    done = "taskqueue_tasks_completed_total"
    await scraper.until(done, 41, type="well", status="completed")
    await scraper.until(done, 1, type="badly", status="dead_letter")
    await scraper.until("fairlead_worker_settled_total", 42)
    found = scraper.found
    assert found[row("taskqueue_tasks_submitted_total", type="well", priority="high")] == 1
    assert found[row("fairlead_worker_children", state="working")] == 2
    assert found[row("fairlead_worker_children_wanted")] == 2
    assert found[row("fairlead_worker_child_starts_total")] == 2
    assert found[row("fairlead_worker_running")] == 0
    assert check_histograms(scraper.text) == 2
    assert "jobs" not in sys.modules

    worker.kill_child(children[0])
    await worker.ready(but=[children[0]])
    await scraper.until("fairlead_worker_child_starts_total", 3)
    found = scraper.look()
    assert found[row(done, type="well", status="completed")] == 41
    assert found[row("fairlead_worker_settled_total")] == 42
    await app.aclose()


@pytest.mark.slow
async def test_a_child_that_is_replaced_says_all_that_it_counted(tmp_path: Path, url: str) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    environment = {"FAIRLEAD_TEST_URL": url, "FAIRLEAD_RUN_DIR": str(tmp_path / "run")}
    options = ("--max-tasks", "5", "--metrics-port", "0")
    worker = WorkerProcess(tmp_path, *options, environment=environment).start()
    try:
        port = (await worker.logged("metrics served"))["port"]
        first = await worker.ready()
        app, scraper = Fairlead(url), Scraper(port)

        @app.task(name="well")
        async def well() -> None: ...

        await app.aenqueue_many([well.call() for _ in range(10)])
        await worker.ready(but=first)
        await scraper.until("taskqueue_tasks_completed_total", 10, type="well", status="completed")
        await app.aclose()
    finally:
        worker.close()


def test_a_port_that_is_taken_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", "worker", "jobs:app", "--metrics-port", port],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"error: cannot serve metrics on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr
