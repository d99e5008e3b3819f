"""A worker leases what it can begin: slots, threads and slot processes are counted by kind."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from fairlead.model.lifecycle import State
from fairlead.model.options import Options
from fairlead.model.registry import TaskSpec
from fairlead.worker import Context
from fairlead.worker.channel import SlotPlan
from tests.worker.harness import Rig, until


class _Site(Rig):
    """Handlers that wait until they are told to go on, and what began in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.begun: list[str] = []

        def slow(ctx: Context) -> None:
            self.begun.append(ctx.id)
            self.go.wait(20)

        self.slow = slow

    def mixed(self) -> None:
        """Sync and async tasks in one queue."""
        self.task(name="slow")(self.slow)

        @self.task()
        async def ping() -> str:
            return "pong"

    async def released(self) -> int:
        """How many tasks went back."""
        page = await self.broker.events(limit=500)
        return sum(event.kind == "released" for event in page.events)


@pytest.fixture
def site() -> Iterator[_Site]:
    made = _Site()
    yield made
    made.go.set()


async def test_two_workers_share_what_neither_has_threads_for_alone(site: _Site) -> None:
    site.task(name="slow")(site.slow)
    ids = [await site.enqueue("slow") for _ in range(30)]

    async with (
        site.worker("w1", concurrency=30, threads=3) as one,
        site.worker("w2", concurrency=30, threads=3) as other,
    ):
        await until(lambda: len(site.begun) == 6)
        assert (len(one.inflight), len(other.inflight)) == (3, 3)
        states = Counter([await site.state(id) for id in ids])
        assert states == {State.RUNNING: 6, State.QUEUED: 24}
        # An app of one kind asks for what it can begin: nothing goes back.
        assert await site.released() == 0
        site.go.set()
        await until(lambda: len(site.begun) == 30)


async def test_a_mixed_app_shares_sync_tasks_as_well(site: _Site) -> None:
    site.mixed()
    ids = [await site.enqueue("slow") for _ in range(30)]

    async with (
        site.worker("w1", concurrency=30, threads=3) as one,
        site.worker("w2", concurrency=30, threads=3) as other,
    ):
        await until(lambda: len(site.begun) == 6)
        assert (len(one.inflight), len(other.inflight)) == (3, 3)
        await until(lambda: not one.inflight.held and not other.inflight.held)
        records = [await site.find(id) for id in ids]
        assert sum(record.started_at is not None for record in records) == 6
        site.go.set()
        await until(lambda: len(site.begun) == 30)
    assert {(await site.find(id)).attempts for id in ids} == {1}
    assert {await site.state(id) for id in ids} == {State.COMPLETED}


async def test_an_async_task_runs_at_once_behind_sync_ones_without_a_thread(site: _Site) -> None:
    site.mixed()
    for _ in range(10):
        await site.enqueue("slow")
    first = await site.enqueue("ping")

    async with site.worker(concurrency=10, threads=2):
        await until(lambda: len(site.begun) == 2)
        await site.finished(first)
        later = await site.enqueue("ping")  # by now the others stand before it in the line
        await site.finished(later)
        assert len(site.begun) == 2
        site.go.set()


async def test_what_has_no_thread_begins_in_the_order_of_its_line(site: _Site) -> None:
    site.mixed()
    ids = [await site.enqueue("slow") for _ in range(12)]

    async with site.worker(concurrency=10, threads=1) as worker:
        await until(lambda: len(site.begun) == 1)
        await until(lambda: not worker.inflight.held)  # looked at, and given back
        site.go.set()
        await until(lambda: len(site.begun) == 12)
    assert site.begun == ids


async def test_a_quiet_tenant_waits_for_the_next_thread_and_no_longer(site: _Site) -> None:
    site.mixed()
    release = threading.Semaphore(0)

    @site.task()
    def step(ctx: Context) -> None:
        site.begun.append(ctx.id)
        release.acquire(timeout=20)

    for _ in range(60):
        await site.enqueue("step", tenant="loud")
    async with site.worker(concurrency=50, threads=2):
        await until(lambda: len(site.begun) == 2)
        quiet = await site.enqueue("step", tenant="quiet")
        assert await site.state(quiet) is State.QUEUED
        for turn in range(3):
            release.release()
            await until(lambda turn=turn: len(site.begun) == 3 + turn)  # type: ignore[misc]
        assert quiet in site.begun
        release.release(100)
        site.go.set()


async def test_a_worker_without_room_asks_for_little_and_seldom(site: _Site) -> None:
    site.mixed()
    for _ in range(40):
        await site.enqueue("slow")
    calls = 0
    exchange = site.broker.exchange

    async def counted(*args: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        return await exchange(*args, **named)  # type: ignore[arg-type]

    async with (
        site.worker("w1", concurrency=30, threads=2),
        site.worker("w2", concurrency=30, threads=2),
    ):
        await until(lambda: len(site.begun) == 4)
        site.broker.exchange = counted  # type: ignore[method-assign,assignment]
        await asyncio.sleep(1.0)
        # A few looks of two or three exchanges each in the first second, less afterwards.
        assert calls < 40
        site.go.set()


async def test_queues_of_one_kind_are_left_alone_while_there_is_no_room_for_it(
    site: _Site,
) -> None:
    site.task(name="slow", queue="slow")(site.slow)

    @site.task()
    async def ping() -> str:
        return "pong"

    for _ in range(20):
        await site.enqueue("slow", queue="slow")
    async with site.worker(concurrency=10, threads=2, queues=["slow", "default"], strict=True):
        await until(lambda: len(site.begun) == 2)
        await site.finished(await site.enqueue("ping"))
        before = await site.released()
        await asyncio.sleep(0.5)
        assert await site.released() == before  # nobody looks behind them
        site.go.set()


async def test_isolated_tasks_leave_the_slots_to_others(site: _Site) -> None:
    @site.task()
    async def ping() -> str:
        return "pong"

    def heavy() -> None: ...

    spec = TaskSpec("heavy", heavy, options=Options(), isolation="process", context_type=Context)
    site.registry.add(spec)
    heavy_ids = [await site.enqueue("heavy") for _ in range(10)]
    ping_id = await site.enqueue("ping")

    # A process that never says that it is ready: whoever has it keeps it.
    import fairlead.worker.worker as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLOT", ("/bin/sleep", "20"))
        plan = SlotPlan(app="nobody:app", path=[])
        worker = site.worker(concurrency=10, slots=2, slot_plan=lambda: plan, grace=0.0)
        async with worker:
            await site.finished(ping_id)
            assert worker.inflight.kinds["process"] == 2
            states = Counter([await site.state(id) for id in heavy_ids])
            assert states[State.RUNNING] <= 10
            await until(lambda: not worker.inflight.held)
            states = Counter([await site.state(id) for id in heavy_ids])
            assert states == {State.RUNNING: 2, State.QUEUED: 8}
