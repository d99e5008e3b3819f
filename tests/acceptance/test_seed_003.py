"""What the document of a producer, a broker and a server of eight components promises.

It describes the states of a task, the components of a server by file, weighted and strict queues,
and what happens to tasks of a crashed worker. Tests whose parameter is a broker run in memory and
on a real server. Outages of the broker, which one component is for, are in ``test_worker_outages``.
Where Fairlead keeps a promise in another way, the docstring says so.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from fairlead import Backoff, Context, Fairlead, ResultGone, State, TaskCancelled, TaskFailed
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import HEARTBEAT, LEASE
from tests.acceptance.harness import Site, opened
from tests.support.servers import server

TASKS = """
@app.task(name="once")
async def once(ctx: Context) -> None:
    record("begin", ctx)
    await asyncio.sleep(60)


app.task(name="sturdy", max_retries=0, max_crashes=2)(nap)
"""


@pytest.fixture
def queue(app: Fairlead) -> Fairlead:
    return app


# -- High-level architecture --------------------------------------------------------------------


async def test_a_producer_needs_the_name_of_a_task_only(queue: Fairlead) -> None:
    """Producer, broker, consumer: the client and the server share the broker, not the code."""
    server = Fairlead(store=queue._clients.store)
    server.task(name="double")(lambda n: 2 * n)
    handle = await queue.asend("double", 4)  # nobody has told of it yet
    await server.drain()
    assert await handle.aresult(timeout=30) == 8


async def test_the_worker_pool_runs_so_many_at_a_time(queue: Fairlead) -> None:
    """Worker pool: never more than its size."""
    now = most = 0

    @queue.task(name="work")
    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    handles = await queue.aenqueue_many(work.call() for _ in range(20))
    async with queue.worker(concurrency=3):
        for handle in handles:
            await handle.aresult(timeout=30)
    assert most == 3


# -- Task lifecycle -----------------------------------------------------------------------------


async def test_a_task_is_taken_and_leased_in_one_step_and_ends_as_drawn(queue: Fairlead) -> None:
    """Lifecycle: pending, active; then completed, retried, or archived when none is left."""
    began, go = asyncio.Event(), asyncio.Event()

    @queue.task(name="work", max_retries=1)
    async def work(outcome: str) -> str:
        began.set()
        await go.wait()
        if outcome != "good":
            raise ValueError(outcome)
        return outcome

    good = await work.aenqueue("good")
    assert await good.astate() is State.QUEUED
    async with queue.worker():
        await began.wait()
        info = await good.ainfo()
        assert (info.state, bool(info.worker)) == (State.RUNNING, True)
        go.set()
        assert await good.aresult(timeout=30) == "good"
    retried = await work.aenqueue("bad")
    archived = await work.using(max_retries=0).aenqueue("bad")
    await queue.drain()
    assert await good.astate() is State.COMPLETED
    assert await retried.astate() is State.RETRYING
    assert (await archived.ainfo()).reason == "exhausted"
    (dead,) = (await queue.apage(state="dead")).tasks
    assert dead.id == archived.id


# -- Server components --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "component",
    [
        "processor", "forwarder", "recoverer", "heartbeater", "syncer", "subscriber", "janitor",
        "healthchecker",
    ],
)  # fmt: skip
def test_each_component_is_a_file_of_its_own(component: str) -> None:
    """Server components: eight, each in the file of its name."""
    module = import_module(f"fairlead.worker.{component}")
    assert component.capitalize() in vars(module)


async def test_the_forwarder_moves_what_is_due(queue: Fairlead) -> None:
    """Forwarder: from scheduled to pending."""
    work = queue.task(name="work")(lambda: "ran")
    handle = await work.using(delay=0.05).aenqueue()
    assert await handle.astate() is State.SCHEDULED
    async with queue.worker():
        assert await handle.aresult(timeout=30) == "ran"


async def test_the_subscriber_stops_a_running_task(queue: Fairlead) -> None:
    """Subscriber: a cancellation reaches the handler."""
    began, stopped = asyncio.Event(), asyncio.Event()

    @queue.task(name="work")
    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    handle = await work.aenqueue()
    async with queue.worker():
        await began.wait()
        assert await handle.acancel()
        async with asyncio.timeout(30):
            await stopped.wait()
        with pytest.raises(TaskCancelled):
            await handle.aresult(timeout=30)
    assert await handle.astate() is State.CANCELLED


async def test_the_janitor_forgets_completed_tasks_after_their_time() -> None:
    """Janitor: completed tasks expire."""
    store = MemoryBroker(test_clock=True)
    app = Fairlead(store=store)
    handle = await app.task(name="work", retention=60)(lambda: 1).aenqueue()
    await app.drain()
    ended = (await handle.ainfo()).finished_at
    assert ended is not None
    await store.promote(now=ended + 59)
    assert await handle.astate() is State.COMPLETED
    await store.promote(now=ended + 61)
    with pytest.raises(ResultGone):
        await handle.astate()


@pytest.mark.slow
@pytest.mark.long(15)
async def test_the_healthchecker_tells_probes_of_the_connection(tmp_path: Path) -> None:
    """Healthchecker: ``fairlead check --ready`` says how the broker is, as the worker sees it."""
    with server(aof=True) as running:
        async with opened(running.url, tmp_path) as site:
            worker = site.worker(FAIRLEAD_RUN_DIR=str(tmp_path / "run"))
            await worker.ready()

            async def probed(*options: str) -> int:
                probe = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "fairlead", "check", *options),
                    env={**os.environ, "FAIRLEAD_RUN_DIR": str(tmp_path / "run")},
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                return await probe.wait()

            async def readiness(code: int) -> None:
                deadline = time.monotonic() + 60
                while await probed("--ready") != code:
                    assert time.monotonic() < deadline, f"--ready never ended with {code}"
                    await asyncio.sleep(0.1)

            await readiness(0)
            running.kill()
            await readiness(3)
            assert await probed() == 0, "a restart of the worker would mend nothing"
            running.start()
            await readiness(0)


# -- Redis data structures ----------------------------------------------------------------------


async def test_queues_and_their_tasks_are_listed_by_state(queue: Fairlead) -> None:
    """Keys: the names of all queues, and of each the tasks in each state."""

    @queue.task(name="work", max_retries=1)
    def work(ok: bool) -> None:
        if not ok:
            raise ValueError

    mail, hooks = work.using(queue="mail"), work.using(queue="hooks")
    ended = {
        "completed": await mail.aenqueue(True),
        "retrying": await mail.aenqueue(False),
        "dead": await mail.using(max_retries=0).aenqueue(False),
    }
    await queue.drain()
    waits = {
        "queued": await mail.aenqueue(True),
        "scheduled": await mail.using(delay=60).aenqueue(True),
    }
    await hooks.aenqueue(True)
    for state, handle in (ended | waits).items():
        assert [t.id for t in (await queue.apage(queue="mail", state=state)).tasks] == [handle.id]
    assert set((await queue.asnapshot()).queues) == {"mail", "hooks"}


async def test_a_task_has_a_timeout_and_a_deadline(queue: Fairlead) -> None:
    """Task data: how long an attempt may take, and by when it must have begun."""

    @queue.task(name="work", timeout=0.05, max_retries=0)
    async def work() -> None:
        await asyncio.sleep(60)

    slow = await work.aenqueue()
    late = await work.using(deadline=0.001, delay=0.05).aenqueue()
    async with queue.worker():
        for handle in (slow, late):
            with pytest.raises(TaskFailed):
                await handle.aresult(timeout=30)
    assert [(await handle.ainfo()).reason for handle in (slow, late)] == ["exhausted", "expired"]


async def test_what_is_to_be_retried_is_forwarded_too(queue: Fairlead) -> None:
    """Forwarder: from retry to pending."""

    @queue.task(name="work", backoff=Backoff(initial=0.01))
    def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError
        return ctx.attempt

    handle = await work.aenqueue()
    async with queue.worker():
        assert await handle.aresult(timeout=30) == 2


async def test_the_heartbeater_extends_leases_and_tells_of_the_worker() -> None:
    """Heartbeater: a task that takes longer than its lease stays with its worker."""
    store = MemoryBroker(test_clock=True)
    app = Fairlead(store=store)
    began, go = asyncio.Event(), asyncio.Event()

    @app.task(name="work")
    async def work(ctx: Context) -> int:
        began.set()
        await go.wait()
        return ctx.attempt

    handle = await work.aenqueue()
    async with app.worker() as serving:
        await began.wait()
        now = (await store.hello()).now
        for _ in range(5):  # longer than a lease
            now += HEARTBEAT
            await store.promote(now=now)
            await serving.heartbeater.beat()
            await store.sweep(now=now)
        assert [each.running for each in await app.aworkers()] == [1]
        assert await handle.astate() is State.RUNNING
        go.set()
        assert await handle.aresult(timeout=30) == 1


# -- Priority queue processing ------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
async def test_queues_are_served_by_weight_or_strictly(queue: Fairlead, strict: bool) -> None:
    """Weighted: 60, 30 and 10 % of what runs, without dice. Strict: higher queues first."""
    order: list[str] = []
    enough = asyncio.Event()

    @queue.task(name="work")
    async def work(name: str) -> None:
        order.append(name)
        if len(order) >= 60:
            enough.set()

    weights = {"critical": 6, "default": 3, "low": 1}
    calls = [work.using(queue=name).call(name) for name in weights for _ in range(60)]
    await queue.aenqueue_many(calls)
    async with queue.worker(queues=weights, strict=strict, concurrency=1), asyncio.timeout(60):
        await enough.wait()
    first = Counter(order[:60])
    if strict:
        assert first == {"critical": 60}
    else:  # by what they took, so tasks this short come close only in the long run
        assert 24 <= first["critical"] <= 50
        assert 7 <= first["default"] <= 30
        assert 1 <= first["low"] <= 15


# -- Crash recovery -----------------------------------------------------------------------------


def test_leases_last_30_seconds_and_are_extended_every_10() -> None:
    """Crash recovery: lease expiry and heartbeater."""
    assert (LEASE, HEARTBEAT) == (30.0, 10.0)


@pytest.mark.slow
async def test_a_crashed_task_is_archived_when_no_retries_are_left(site: Site) -> None:
    """Recovery: expired tasks are moved back to pending, or to the archive.

    How many crashes a task outlives may be said apart from its retries.
    """
    worker = site.worker()
    sturdy = site.app.task(name="sturdy", max_retries=0, max_crashes=2)(lambda *_: None)
    handles = [
        *await site.handles("nap", 1, 60.0),
        await sturdy.aenqueue(60.0),
        *await site.handles("once", 1, max_retries=0),
    ]
    ids = [handle.id for handle in handles]
    await site.recorded("begin", 3)
    worker.kill_tree()
    site.worker()
    await site.stream.ended(ids)
    states = [await handle.astate() for handle in handles]
    assert states == [State.COMPLETED, State.COMPLETED, State.DEAD]
    begun = Counter(record.id for record in site.records("begin"))
    assert [begun[id] for id in ids] == [2, 2, 1]
