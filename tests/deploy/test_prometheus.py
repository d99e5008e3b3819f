"""A Prometheus that scrapes an API and a worker with the files in ``deploy/``."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import Fairlead
from tests.support.servers import free_port, server
from tests.support.worker_process import WorkerProcess, environment_of, until

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMAND = Path(sys.executable).with_name("fairlead")
APP = """
from fairlead import Fairlead

app = Fairlead()

@app.task(name="well")
async def well() -> None: ...
"""


@contextmanager
def process(folder: Path, environment: dict[str, str], *command: str | Path) -> Iterator[None]:
    """A process that ends with the block."""
    with (folder / "output.log").open("ab") as log:
        started = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            started.terminate()
            started.wait(20)


def configuration(folder: Path, api: int, worker: int) -> Path:
    """That of ``deploy/``, for this machine and in a hurry."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for old, new in (
        ("15s", "1s"),
        ("scrape_timeout: 5s", "scrape_timeout: 1s"),
        ("/etc/prometheus/token", str(folder / "token")),
        ('"api:8800"', f'"127.0.0.1:{api}"'),
        ("dns_sd_configs:", "static_configs:"),
        ("{names: [worker], type: A, port: 9800}", f'targets: ["127.0.0.1:{worker}"]'),
        ("[alerts.yml]", f"[{DEPLOY / 'prometheus' / 'alerts.yml'}]"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path


def new_token(environment: dict[str, str]) -> str:
    made = subprocess.run(
        [COMMAND, "token", "create", "--scopes", "read", "--json"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return str(json.loads(made.stdout)["token"])


@pytest.mark.slow
async def test_prometheus_scrapes_an_api_and_a_worker_and_knows_the_rules(tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("there is no prometheus on this machine")
    (tmp_path / "jobs.py").write_text(APP)
    api, web = free_port(), free_port()
    with server("valkey", tcp=True) as valkey:
        extra = {"FAIRLEAD_URL": valkey.url, "FAIRLEAD_RUN_DIR": str(tmp_path / "run")}
        environment = {**os.environ, **extra, **environment_of("prometheus")}
        (tmp_path / "token").write_text(await asyncio.to_thread(new_token, environment))
        worker = WorkerProcess(tmp_path, "--metrics-port", "0", environment=extra).start()
        try:
            port = (await worker.logged("metrics served"))["port"]
            config = f"--config.file={configuration(tmp_path, api, port)}"
            storage, listen = f"--storage.tsdb.path={tmp_path / 'data'}", f"127.0.0.1:{web}"
            with (
                process(tmp_path, environment, COMMAND, "api", "--port", str(api)),
                process(
                    tmp_path, environment, prometheus, config, storage,
                    f"--web.listen-address={listen}",
                ),
            ):  # fmt: skip
                await worker.ready()
                await _look(Server(f"http://{listen}"), valkey.url)
        finally:
            worker.close()


class Server:
    """The HTTP API of a Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.said: Any = None

    def ask(self, path: str, **query: str) -> Any:
        try:
            answer = httpx.get(f"{self._url}/api/v1/{path}", params=query)
            self.said = answer.json()["data"] if answer.status_code == 200 else answer.text
        except httpx.TransportError as error:
            self.said = {"result": [], "groups": [], "error": repr(error)}
        return self.said

    async def until(self, query: str, value: float) -> None:
        def look() -> bool:
            found = self.ask("query", query=query)
            rows = found["result"] if isinstance(found, dict) else []
            return [float(row["value"][1]) for row in rows] == [value]

        await until(look, lambda: f"{query} to be {value}: {self.said}", 40)


async def _look(prometheus: Server, url: str) -> None:
    app = Fairlead(url)

    @app.task(name="well")
    async def well() -> None: ...

    await prometheus.until('sum(up{job=~"fairlead-.*"})', 2)
    await asyncio.gather(*(well.aenqueue() for _ in range(20)))
    await prometheus.until("fairlead_broker_up", 1)
    await prometheus.until("sum(fairlead_tasks_completed_total)", 20)
    await prometheus.until('taskqueue_tasks_completed_total{type="well",status="completed"}', 20)
    await prometheus.until("taskqueue_active_workers", 1)
    groups = prometheus.ask("rules")["groups"]
    assert {group["name"] for group in groups} == {
        "fairlead-rates", "fairlead-broker", "fairlead-queues", "fairlead-workers",
    }  # fmt: skip
    assert all(rule["health"] != "err" for group in groups for rule in group["rules"])
    await app.aclose()
