"""Secrets planted in tokens, arguments and the broker's address: nowhere to be found again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.serving import new_token
from tests.support.servers import Running, server

PASSWORD = "planted-dsn-password"
ARGUMENT = "planted-argument"
RESULT = "planted-result"
TASKS = "/api/v1/tasks"

JOBS = f"""
import os
from fairlead import Backoff, Fairlead

app = Fairlead(os.environ["FAIRLEAD_URL"])


@app.task(name="works")
async def works(secret: str, card: dict | None = None) -> dict:
    return {{"result": "{RESULT}", "was": secret}}


@app.task(name="fails", max_retries=1, backoff=Backoff(initial=0))
async def fails(secret: str) -> None:
    local = secret + " in a local variable"
    raise RuntimeError("it did not work")


@app.task(name="crashes", max_retries=0)
def crashes(secret: str) -> None:
    {{}}[len(secret)]
"""

pytestmark = pytest.mark.slow


@contextmanager
def logged(folder: Path, url: str, name: str, *command: str) -> Iterator[Path]:
    """A command of Fairlead whose words go to a file, until the end of the block."""
    path = folder / f"{name}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *command, "--log-level", "debug"],
            cwd=folder,
            env={**os.environ, "FAIRLEAD_URL": url, "PYTHONASYNCIODEBUG": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def address(log: Path) -> str:
    began = time.monotonic()
    while not (found := re.search(r"listening on (http://\S+)", log.read_text())):
        assert time.monotonic() - began < 30, log.read_text()
        time.sleep(0.05)
    return found[1].rstrip('",}')


class Session:
    """Calls, and all that was answered."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=30)
        self.said: list[str] = []

    def __call__(self, method: str, path: str, **more: object) -> httpx.Response:
        answer = self._client.request(method, path, **more)  # type: ignore[arg-type]
        self.said.append(f"{method}: {answer.status_code} {answer.headers} {answer.text}")
        return answer

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def listen(self) -> threading.Thread:
        """Write down the events until the server ends; returns once the first has come."""
        begun = threading.Event()

        def hear() -> None:
            client = httpx.Client(base_url=self._client.base_url, headers=self._client.headers)
            with (
                contextlib.suppress(httpx.TransportError),
                client,
                client.stream("GET", "/events", timeout=60) as answer,
            ):
                for line in answer.iter_lines():
                    self.said.append(f"event {line}")
                    begun.set()

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        assert begun.wait(30)
        return thread


def successes_and_failures(ask: Session) -> None:
    made = {}
    for task in ("works", "fails", "crashes"):
        answer = ask("POST", TASKS, json={"task": task, "args": [ARGUMENT]})
        assert answer.status_code == 201, answer.text
        made[task] = answer.json()["id"]
    ask("POST", TASKS, json={"task": "works", "kwargs": {"secret": ARGUMENT, "extra": ARGUMENT}})
    ask("POST", TASKS, json={"task": "works", "kwargs": {"secret": {"a": [ARGUMENT]}}})
    ask("POST", TASKS, json={"task": "works", "args": [ARGUMENT, {"n": 2**70}]})
    ask("POST", TASKS, json={"task": "works", "args": {"no": ARGUMENT}})
    ask("POST", TASKS, json={"task": "nobody", "args": [ARGUMENT]})
    ask("POST", TASKS, json={"task": "works", "args": [ARGUMENT], "queue": "a b"})
    ask("POST", TASKS, json={"task": "works", "args": [ARGUMENT], "delay": "soon"})
    data = f'{{"task":"works","args":["{ARGUMENT}",'.encode()
    ask("POST", TASKS, content=data, headers={"content-type": "application/json"})
    ask("POST", f"{TASKS}/batch", json=[{"task": "works", "args": [ARGUMENT], "id": "?"}])
    lines = f'{{"task":"works","args":["{ARGUMENT}"]}}\n{{"task":1,"args":["{ARGUMENT}"]}}\n'
    ndjson = {"content-type": "application/x-ndjson"}
    ask("POST", f"{TASKS}/batch", content=lines.encode(), headers=ndjson)
    body = {"task": "works", "args": [ARGUMENT], "cron": "0 2 * * *"}
    ask("PUT", "/api/v1/schedules/nightly", json=body)
    ask("PUT", "/api/v1/schedules/wrong", json={**body, "cron": "nonsense"})
    for task in ("fails", "crashes"):
        began = time.monotonic()
        while ask("GET", f"{TASKS}/{made[task]}").json()["state"] != "dead":
            assert time.monotonic() - began < 30
            time.sleep(0.1)
    ask("POST", f"{TASKS}/{made['fails']}/retry")
    ask("POST", f"{TASKS}/{made['works']}/cancel")
    ask("PATCH", "/api/v1/queues/default", json={"max_waiting": 10_000})


def looked_over(ask: Session) -> None:
    """All that can be read, at once: without a broker each answer takes its time."""
    paths = (
        "/metrics",
        "/openapi.json",
        "/",
        "/readyz",
        *(
            f"/api/v1/{each}"
            for each in (
                "audit",
                "health",
                "tasks",
                "dead-letters",
                "dead-letters/groups",
                "schedules",
                "workers",
                "stats",
                "task-types",
                "limiters",
                "tenants",
                "queues",
                "autoscale",
            )
        ),
    )
    with ThreadPoolExecutor(len(paths)) as threads:
        for _ in threads.map(lambda path: ask("GET", path), paths):
            pass


@pytest.mark.long(15)
@pytest.mark.timeout(240)
def test_planted_secrets_are_nowhere(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with server(password=PASSWORD, tcp=True) as broker:
        url = broker.url
        assert PASSWORD in url
        # One that may not see payloads: whatever it is shown is for everybody.
        token = new_token(url, "--scopes", "read,submit,manage", "--name", "tests")
        wrong = token[:-6] + "wrong1"
        api_command = ("api", "--url", url, "--port", "0", "--drain-delay", "0.1")
        with (
            logged(tmp_path, url, "worker", "worker", "jobs:app", "--metrics-port", "0") as worker,
            logged(tmp_path, url, "api", *api_command) as api,
        ):
            ask = Session(address(api), token)
            wait_for_tasks(ask)
            hearing = ask.listen()
            successes_and_failures(ask)
            looked_over(ask)
            ask("GET", f"{TASKS}?token={token}")
            ask("GET", TASKS, headers={"authorization": f"Bearer {wrong}"})
            broker_away(ask, broker)
            ask.close()
        hearing.join(30)
        texts = {
            "worker": worker.read_text(),
            "api": api.read_text(),
            "answers and events": "\n".join(ask.said),
        }
    assert "task.dead" in texts["answers and events"]
    secret = token.split("_", 2)[2]
    for where, text in texts.items():
        for planted in (PASSWORD, ARGUMENT, RESULT, secret, wrong[-20:]):
            at = text.find(planted)
            assert at < 0, (where, planted, text[max(0, at - 500) : at + 200])


def wait_for_tasks(ask: Session) -> None:
    """Until the worker has said what it has."""
    began = time.monotonic()
    while not ask("GET", "/api/v1/task-types").json()["task_types"]:
        assert time.monotonic() - began < 30
        time.sleep(0.1)


def broker_away(ask: Session, broker: Running) -> None:
    broker.pause()
    try:
        for _ in range(2):
            assert ask("POST", TASKS, json={"task": "works", "args": [ARGUMENT]}).status_code == 503
            looked_over(ask)
    finally:
        broker.resume()
    broker.restart()
    ask("GET", "/readyz")
