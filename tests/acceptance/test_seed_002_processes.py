"""What the document of a task queue with an HTTP API promises of its processes, in its order.

One server, one worker and one API run for all tests of this module, each in a process of its own.
Clients know addresses and names of tasks, nothing else. ``test_seed_002`` has the rest. Where
Fairlead keeps a promise in another way, the docstring says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.api.live.process import serving
from tests.support.servers import Running, server
from tests.support.worker_process import PATIENCE, WorkerProcess, until
from tests.telemetry.exposed import samples

pytestmark = pytest.mark.slow  # processes of their own

APP = """
import os
from fairlead import Fairlead

app = Fairlead(os.environ["TEST_URL"])


@app.task(name="email", max_retries=0)
async def email(to: str) -> str:
    if not to:
        raise ValueError("nobody")
    return to


@app.task(name="webhook", queue="hooks")
async def webhook() -> None: ...
"""


class Stack(NamedTuple):
    """Where the processes are."""

    valkey: Running
    api: str  # host and port
    worker: WorkerProcess
    folder: Path

    def another_worker(self, name: str) -> WorkerProcess:
        return _worker(self.valkey, self.folder, name)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(base_url=f"http://{self.api}/api/v1", timeout=30) as client:
            yield client

    @asynccontextmanager
    async def socket(self, *types: str) -> AsyncIterator[Any]:
        """A WebSocket at /ws that wants these events; its snapshot was read."""
        async with connect(f"ws://{self.api}/ws", proxy=None) as socket:
            await socket.send(json.dumps({"type": "subscribe", "types": types}))
            await heard(socket, lambda event: event["type"] == "snapshot")
            yield socket


def _worker(valkey: Running, folder: Path, name: str) -> WorkerProcess:
    environment = {"TEST_URL": valkey.url, "FAIRLEAD_RUN_DIR": str(folder / name)}
    # A lease of 3 s: a heartbeat each second, with which orders are heard.
    options = ("--lease", "3", "--metrics-port", "0")
    return WorkerProcess(folder, *options, name=name, environment=environment)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    (folder / "jobs.py").write_text(APP)
    with server() as valkey, serving(valkey.url) as served:
        worker = _worker(valkey, folder, "worker").start()
        try:
            yield Stack(valkey, f"127.0.0.1:{served.port}", worker, folder)
        finally:
            worker.close()


async def heard(socket: Any, wanted: Callable[[Any], bool]) -> Any:
    """The next event of this kind; others are passed over."""
    async with asyncio.timeout(PATIENCE):
        while True:
            event = json.loads(await socket.recv())
            if wanted(event):
                return event


def of_type(type: str) -> Callable[[Any], bool]:
    return lambda event: bool(event["type"] == type)


async def scraped(address: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Samples of /metrics by name and labels as Prometheus writes them, once they are so."""
    found: dict[str, Any] = {}

    def look() -> bool:
        text = httpx.get(f"http://{address}/metrics", timeout=30).raise_for_status().text
        found.clear()
        for (name, labels), value in samples(text).items():
            told = ",".join(f"{label}={text}" for label, text in sorted(labels))
            found[f"{name}{{{told}}}" if told else name] = value
        return wanted(found)

    await until(look, lambda: f"the metrics to be right, they are {found}")
    return found


async def ended(client: httpx.AsyncClient, id: str, state: str) -> None:
    """Wait for the end of a task by a long poll."""
    deadline = time.monotonic() + PATIENCE
    while (await client.get(f"/tasks/{id}/result", params={"wait": 20})).status_code == 202:
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for {id}"
    assert (await client.get(f"/tasks/{id}")).json()["state"] == state


async def listed(client: httpx.AsyncClient) -> dict[str, Any]:
    """Wait for the only worker to be listed: its first task may end before its first heartbeat."""
    deadline = time.monotonic() + PATIENCE
    while not (workers := (await client.get("/workers")).json()["workers"]):
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for a worker to be listed"
        await asyncio.sleep(0.05)
    (worker,) = workers
    return dict(worker)


async def submitted(client: httpx.AsyncClient, **task: Any) -> str:
    answer = await client.post("/tasks", json=task)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def pause_hooks(client: httpx.AsyncClient) -> None:
    """Pause the queue of webhooks, which there is once a task was sent to it."""
    deadline = time.monotonic() + PATIENCE
    while "webhook" not in (await client.get("/task-types")).text:  # else it goes to the usual one
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for the tasks of the worker"
        await asyncio.sleep(0.05)
    await ended(client, await submitted(client, task="webhook"), "completed")
    assert (await client.post("/queues/hooks/pause")).status_code == 200


async def test_a_task_goes_from_a_client_over_the_api_to_a_worker(stack: Stack) -> None:
    """Overview: ``POST /api/v1/tasks``; API and worker speak to the broker, not to each other."""
    async with stack.client() as client:
        id = await submitted(client, task="email", args=["a@x"], priority="critical")
        await ended(client, id, "completed")
        shown = (await client.get(f"/tasks/{id}")).json()
        worker = await listed(client)
    assert (shown["task"], shown["priority"], shown["attempts"]) == ("email", "critical", 1)
    assert worker["pid"] in stack.worker.children()


async def test_events_reach_the_clients_of_the_socket_as_json(stack: Stack) -> None:
    """WebSocket events: each of several clients hears type, timestamp and data of the example."""
    async with stack.client() as client, stack.socket("task.*") as a, stack.socket("task.*") as b:
        good = await submitted(client, task="email", args=["a@x"])
        bad = await submitted(client, task="email", args=[""])
        for socket in (a, b):
            told: dict[str, list[str]] = {good: [], bad: []}
            while told[good][-1:] != ["task.completed"] or told[bad][-1:] != ["task.dead"]:
                event = await heard(socket, lambda e: e["data"].get("task_id") in (good, bad))
                told[event["data"]["task_id"]].append(event["type"])
                assert event["data"]["type"] == "email"
                assert datetime.fromisoformat(event["timestamp"]).tzinfo is not None
                if event["type"] in ("task.completed", "task.failed"):
                    assert event["data"]["duration_ms"] >= 0
            assert told[good] == ["task.submitted", "task.started", "task.completed"]
            assert told[bad] == ["task.submitted", "task.started", "task.failed", "task.dead"]


async def test_workers_that_join_rest_and_leave_are_told_on_the_socket(stack: Stack) -> None:
    """WebSocket events: worker.joined, worker.paused, worker.left."""
    async with stack.client() as client, stack.socket("worker.*") as socket:
        worker = stack.another_worker("second").start()
        try:
            joined = await heard(socket, of_type("worker.joined"))
            id = joined["data"]["worker"]
            answer = await client.post(f"/workers/{id}/pause")
            assert answer.status_code == 202, answer.text
            paused = await heard(socket, of_type("worker.paused"))
            await client.post(f"/workers/{id}/resume")
            resumed = await heard(socket, of_type("worker.resumed"))
            await client.post(f"/workers/{id}/stop")
            left = await heard(socket, of_type("worker.left"))
            assert {each["data"]["worker"] for each in (paused, resumed, left)} == {id}
            assert await worker.wait() == 0
        finally:
            worker.close()


async def test_depths_and_figures_of_the_system_are_told_on_the_socket(stack: Stack) -> None:
    """WebSocket events: queue.depth and system.metrics."""
    async with stack.client() as client, stack.socket("queue.depth", "system.metrics") as socket:
        await pause_hooks(client)
        for _ in range(3):
            await submitted(client, task="webhook")
        told = await heard(
            socket,
            lambda event: event["data"].get("queue") == "hooks" and event["data"]["depth"] == 3,
        )
        assert (told["type"], told["data"]["ready"]) == ("queue.depth", 3)
        figures = (await heard(socket, of_type("system.metrics")))["data"]
        assert figures["workers"] == 1
        assert {"enqueued_per_second", "completed_per_second"} <= figures.keys()
        await client.post("/queues/hooks/resume")


async def test_the_six_metrics_have_the_names_and_labels_of_the_document(stack: Stack) -> None:
    """Metrics. Those of attempts are counted by the worker that runs them, the others by the API.

    Both count what they do themselves from their start, so the tests before this one show too.
    """
    async with stack.client() as client:
        ids = [await submitted(client, task="email", args=[to]) for to in ("a@x", "")]
        await ended(client, ids[0], "completed")
        await ended(client, ids[1], "dead")
        await pause_hooks(client)
        for _ in range(2):
            await submitted(client, task="webhook", priority="high")
        dead = (await client.get("/tasks", params={"state": "dead_letter"})).json()["tasks"]
        queue = await scraped(stack.api, lambda f: f["taskqueue_queue_depth{priority=high}"] == 2)
        await client.post("/queues/hooks/resume")
    assert queue["taskqueue_tasks_submitted_total{priority=normal,type=email}"] >= 2
    assert queue["taskqueue_tasks_submitted_total{priority=high,type=webhook}"] == 2
    assert queue["taskqueue_active_workers"] == 1
    assert queue["taskqueue_dlq_size"] == len(dead) >= 1
    port = (await stack.worker.logged("metrics served"))["port"]
    failed = "taskqueue_tasks_completed_total{status=dead_letter,type=email}"
    work = await scraped(f"127.0.0.1:{port}", lambda f: f.get(failed) == len(dead))
    assert work["taskqueue_tasks_completed_total{status=completed,type=email}"] >= 1
    assert work["taskqueue_task_duration_seconds_count{type=email}"] >= 2


async def test_dead_letters_go_back_by_the_admin_api(stack: Stack) -> None:
    """Lifecycle: from the dead letters to pending, by hand. Attempts are counted anew."""
    async with stack.client() as client, stack.socket("task.*") as socket:
        id = await submitted(client, task="email", args=[""])
        await ended(client, id, "dead")
        assert (await client.post(f"/tasks/{id}/retry")).status_code == 200

        def again(event: Any) -> bool:
            return bool(event["data"].get("task_id") == id and event["type"] == "task.requeued")

        assert (await heard(socket, again))["data"]["state"] == "queued"
        await ended(client, id, "dead")
        assert (await client.get(f"/tasks/{id}")).json()["attempts"] == 1


async def test_another_server_of_the_api_knows_the_same(stack: Stack) -> None:
    """Scaling: servers of the API keep nothing, so there may be several behind a balancer."""
    with serving(stack.valkey.url) as other:
        second = stack._replace(api=f"127.0.0.1:{other.port}")
        async with stack.client() as client, second.client() as elsewhere:
            async with second.socket("task.completed") as socket:
                id = await submitted(client, task="email", args=["b@x"])
                event = await heard(socket, of_type("task.completed"))
            assert event["data"]["task_id"] == id
            assert (await elsewhere.get(f"/tasks/{id}")).json()["state"] == "completed"
