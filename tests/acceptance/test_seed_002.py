"""What the document of a task queue with an HTTP API and a worker pool promises, in its order.

It describes submission over HTTP, four levels of priority, records apart from queues, a registry of
workers, dead letters, recovery of what a dead worker had, retries with backoff, and events. Tests
whose parameter is a broker run in memory and on a real server; the worker that is killed is a
process. Sockets and metrics in full are in ``tests/api``. Where Fairlead keeps a promise in another
way, the docstring says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from fairlead import Backoff, Context, EventInfo, Fairlead, State, TooLarge
from tests.acceptance.harness import Site
from tests.api.app import Api
from tests.support.servers import shared
from tests.support.worker_process import is_alive

API = "/api/v1"


@pytest.fixture(params=["memory", "valkey"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[Fairlead]:
    """A queue in memory and on a server, with the jitter of the document for all tasks."""
    defaults = Backoff(jitter="plus_minus")
    if request.param == "memory":
        async with Fairlead("memory://", backoff=defaults) as app:
            yield app
        return
    with shared() as running:
        async with Fairlead(running.url, backoff=defaults) as app:
            yield app


# -- Overview: the API server -------------------------------------------------------------------


async def test_tasks_are_submitted_looked_at_and_put_back_over_http(queue: Fairlead) -> None:
    """API server: submission, and admin endpoints for dead letters."""
    works = False

    @queue.task(name="email", max_retries=0)
    async def email(to: str) -> str:
        if not works:
            raise ConnectionError("no server")
        return to

    api = Api(queue)
    async with api.caller() as client:
        new = {"task": "email", "args": ["a@x"], "priority": "high"}
        answer = await client.post(f"{API}/tasks", json=new)
        assert answer.status_code == 201
        id = answer.json()["id"]
        await queue.drain()
        shown = (await client.get(f"{API}/tasks/{id}")).json()
        assert (shown["state"], shown["priority"], shown["attempts"]) == ("dead", "high", 1)
        assert shown["error"]["message"] == "no server"
        works = True
        assert (await client.post(f"{API}/tasks/{id}/retry")).status_code == 200
        await queue.drain()
        assert (await client.get(f"{API}/tasks/{id}")).json()["state"] == "completed"
        text = (await client.get("/metrics")).text
        assert "fairlead_" in text
    await api.server.service.close()


# -- Redis data model ---------------------------------------------------------------------------


async def test_critical_tasks_go_first_of_four_levels(queue: Fairlead) -> None:
    """Priority streams. Below critical the levels share, 6:1:1, so that none starves."""
    order: list[str] = []

    @queue.task(name="work")
    async def work(level: str) -> None:
        order.append(level)

    levels = ("low", "normal", "high", "critical")
    calls = [work.using(priority=level).call(level) for level in levels for _ in range(8)]
    handles = await queue.aenqueue_many(calls)
    async with queue.worker(concurrency=1):
        for handle in handles:
            await handle.aresult(timeout=30)
    assert order[:8] == ["critical"] * 8
    assert Counter(order[8:16]) == {"high": 6, "normal": 1, "low": 1}


async def test_each_task_goes_to_one_worker(queue: Fairlead) -> None:
    """Consumer groups: of several workers one gets a message."""
    ran: Counter[str] = Counter()

    @queue.task(name="work")
    async def work(ctx: Context) -> None:
        ran[ctx.id] += 1

    handles = await queue.aenqueue_many(work.call() for _ in range(100))
    async with queue.worker(), queue.worker():
        for handle in handles:
            await handle.aresult(timeout=30)
    assert ran == {handle.id: 1 for handle in handles}


async def test_the_record_of_a_task_shows_what_it_was_called_with(queue: Fairlead) -> None:
    """Task data: id, type, payload, priority, state, attempts, error, worker, times."""
    began, go = asyncio.Event(), asyncio.Event()

    @queue.task(name="email", max_retries=3)
    async def email(to: str, subject: str = "") -> None:
        began.set()
        await go.wait()
        raise ValueError("no mailbox")

    handle = await email.using(priority="critical").aenqueue("a@x", subject="hi")
    async with queue.worker() as serving:
        await began.wait()
        await serving.heartbeater.beat()
        info = await handle.ainfo(arguments=True)
        (worker,) = await queue.aworkers()
        assert (info.state, info.worker) == (State.RUNNING, worker.incarnation)
        assert info.started_at is not None
        go.set()
    info = await handle.ainfo(arguments=True)
    assert (info.id, info.task, info.priority) == (handle.id, "email", "critical")
    assert (info.args, info.kwargs) == (("a@x",), {"subject": "hi"})
    assert (info.state, info.attempts, info.max_retries) == (State.RETRYING, 1, 3)
    assert info.error is not None
    assert (info.error.type, info.error.message) == ("ValueError", "no mailbox")


async def test_large_payloads_are_stored_and_larger_ones_refused(queue: Fairlead) -> None:
    """Task data: queue entries are ids, so payloads may be large; up to 1 MiB."""
    work = queue.task(name="work")(len)
    handle = await work.aenqueue("x" * 1_000_000)
    await queue.drain()
    assert await handle.aresult(timeout=10) == 1_000_000
    with pytest.raises(TooLarge):
        await work.aenqueue("x" * 1_100_000)


async def test_what_is_queued_are_ids_whatever_the_size_of_the_payload() -> None:
    """Priority streams: messages stay small; the data of a task stand under its id, once."""
    with shared() as running:
        async with Fairlead(running.url) as app:
            work = app.task(name="work")(len)
            for priority in ("critical", "high", "normal", "low"):
                await work.using(priority=priority).aenqueue("x" * 500_000)
        lines = running.admin("KEYS", "fl1:{0}:line:*")
        entries = [entry for line in lines for entry in running.admin("LRANGE", line, 0, -1)]
        assert len(lines) == len(entries) == 4
        assert max(len(entry) for entry in entries) <= 50
        assert len(running.admin("HGETALL", "fl1:{0}:tasks")) == 4


async def test_workers_are_registered_while_they_live(queue: Fairlead) -> None:
    """Worker registry: who is there, since when, on which queues."""
    queue.task(name="work", queue="mail")(lambda: None)
    assert await queue.aworkers() == []
    async with queue.worker(concurrency=3) as serving:
        await serving.heartbeater.beat()
        (worker,) = await queue.aworkers()
        assert set(worker.queues) == {"default", "mail"}
        assert (worker.concurrency, worker.started_at > 0) == (3, True)
    assert await queue.aworkers() == []


async def test_dead_letters_are_listed_found_and_put_back(queue: Fairlead) -> None:
    """Dead letter queue: a listing, a lookup by id, and a manual retry."""
    works = False

    @queue.task(name="work", max_retries=0)
    def work(n: int) -> int:
        if not works:
            raise ValueError(f"number {n}")
        return n

    handles = [await work.aenqueue(n) for n in range(3)]
    await queue.drain()
    page = await queue.apage(state="dead", arguments=True)
    told = {task.id: (task.task, task.args, task.reason) for task in page.tasks}
    assert told == {h.id: ("work", (n,), "exhausted") for n, h in enumerate(handles)}
    assert await queue.handle(handles[1].id).astate() is State.DEAD
    works = True
    assert await queue.handle(handles[1].id).arequeue()
    await queue.drain()
    assert await handles[1].aresult(timeout=10) == 1
    assert (await queue.asnapshot()).dead == 2


# -- Task lifecycle -----------------------------------------------------------------------------


async def test_a_task_goes_through_the_states_of_the_document(queue: Fairlead) -> None:
    """Lifecycle. What fails is retrying or dead in one step; ``failed`` is an event."""
    seen: list[State] = []

    @queue.task(name="work", max_retries=1)
    async def work(ctx: Context, ok: bool) -> None:
        seen.append(State(await queue.handle(ctx.id).astate()))
        if not ok:
            raise ValueError

    later = await work.using(delay=60).aenqueue(True)
    cancelled = await work.aenqueue(True)
    assert [await later.astate(), await cancelled.astate()] == [State.SCHEDULED, State.QUEUED]
    assert await cancelled.acancel()
    good, bad = await work.aenqueue(True), await work.aenqueue(False)
    await queue.drain()
    assert seen == [State.RUNNING] * 2
    assert [await h.astate() for h in (good, bad, cancelled)] == [
        State.COMPLETED, State.RETRYING, State.CANCELLED,
    ]  # fmt: skip
    for waits in (later, bad):  # in the document only what is pending
        assert await waits.acancel()
        assert await waits.astate() is State.CANCELLED


@pytest.mark.slow
async def test_what_a_killed_worker_had_is_run_by_another(site: Site) -> None:
    """Orphan recovery. A new worker on the same host need not wait for the lease to end."""
    worker = site.worker()
    (id,) = await site.enqueue("nap", 1, 60.0)
    (begun,) = await site.recorded("begin", 1)
    worker.kill_tree()
    site.worker()
    await site.stream.ended([id])
    assert [record.id for record in site.records("begin")] == [id, id]
    assert not is_alive(begun.pid)


# -- Retry strategy -----------------------------------------------------------------------------


async def test_the_backoff_of_all_tasks_is_set_once(queue: Fairlead) -> None:
    """Retry strategy: 1 s, doubled, at most 5 minutes, 10 % to either side."""

    @queue.task(name="fail")
    def fail() -> None:
        raise ValueError

    handles = await queue.aenqueue_many(fail.call() for _ in range(10))
    before = time.time()
    await queue.drain()
    for handle in handles:
        due = (await handle.ainfo()).due_at
        assert due is not None
        assert 0.9 <= due - before <= 60.0  # a second, and what the machine took
    usual = Backoff(jitter="plus_minus")
    assert [usual.delay(n, 0.5) for n in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert (usual.delay(0, 0.0), round(usual.delay(0, 0.999999), 3)) == (0.9, 1.1)


# -- Events -------------------------------------------------------------------------------------


async def test_events_tell_the_type_and_the_duration(queue: Fairlead) -> None:
    """Events: submitted, started, completed, failed, with the name of the task and milliseconds."""

    @queue.task(name="email", max_retries=0)
    async def email(ok: bool) -> None:
        if not ok:
            raise ValueError

    async with queue.events("task.*") as stream:
        good, bad = await email.aenqueue(True), await email.aenqueue(False)
        await queue.drain()
        found: list[EventInfo] = []
        async with asyncio.timeout(30):
            while len(found) < 7:
                found.append(await anext(stream))
    types = {id: [event.type for event in found if event.task_id == id] for id in (good.id, bad.id)}
    assert types[good.id] == ["task.submitted", "task.started", "task.completed"]
    assert types[bad.id] == ["task.submitted", "task.started", "task.failed", "task.dead"]
    ends = [event for event in found if event.type in ("task.completed", "task.failed")]
    assert all(e.task == "email" and e.duration_ms is not None for e in ends)
