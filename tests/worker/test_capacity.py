"""A worker leases what it can begin: slots, threads and slot processes are counted by kind."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from fairlead.broker.requests import Call, Fetch
from fairlead.model.lifecycle import State
from fairlead.model.options import Options
from fairlead.model.registry import TaskSpec
from fairlead.worker.capacity import Ask
from fairlead.worker.process.ipc import SlotPlan
from fairlead.worker.run.context import Context
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

    async def all_threads_are_busy(self, count: int) -> None:
        """Mostly sync tasks came, the last of them run on, and the queue is empty."""

        @self.task(queue="quick")
        def quick() -> None: ...

        for _ in range(12):
            await self.finished(await self.enqueue("quick"))
        for _ in range(count):
            await self.enqueue("slow")
        await until(lambda: len(self.begun) == count)

    def exchanges(self) -> Callable[[], int]:
        """Count the exchanges from now on."""
        calls, exchange = 0, self.broker.exchange

        async def counted(*args: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            return await exchange(*args, **named)  # type: ignore[arg-type]

        self.broker.exchange = counted  # type: ignore[method-assign,assignment]
        return lambda: calls

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


async def test_a_look_that_falls_due_while_a_worker_decides_to_rest_is_not_missed(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.mixed()
    for _ in range(10):
        await site.enqueue("slow")
    async with site.worker(concurrency=10, threads=2) as worker:
        await until(lambda: len(site.begun) == 2 and not worker.inflight.held)
        runner, capacity = worker.processor._runner, worker.processor._capacity
        now, ask, late = runner.now, capacity.ask, 0.0

        def asked(order: Sequence[str], at: float) -> Ask | None:
            """Let time pass while the worker decides to rest: it has looked at the clock by now."""
            nonlocal late
            if sys._getframe(2).f_code.co_name == "_wait_once":
                late += 2.0
            return ask(order, at)

        monkeypatch.setattr(runner, "now", lambda: now() + late)
        monkeypatch.setattr(capacity, "ask", asked)
        async with asyncio.timeout(5):  # without the look it is fifteen seconds
            for _ in range(3):
                await site.finished(await site.enqueue("ping"))
                await until(lambda: not worker.inflight.held)
        assert late > 0
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
    async with (
        site.worker("w1", concurrency=30, threads=2),
        site.worker("w2", concurrency=30, threads=2),
    ):
        await until(lambda: len(site.begun) == 4)
        exchanges = site.exchanges()
        await asyncio.sleep(1.0)
        # A few looks of two or three exchanges each in the first second, less afterwards.
        assert exchanges() < 40
        site.go.set()


async def test_queues_of_one_kind_are_left_almost_alone_while_there_is_no_room_for_it(
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
        assert await site.released() <= before + 16  # a look behind them is rare: one in a second
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
            await until(lambda: not worker.inflight.held)
            wanted = {State.RUNNING: 2, State.QUEUED: 8}
            async with asyncio.timeout(5):  # what is held no more is on its way back
                while Counter([await site.state(id) for id in heavy_ids]) != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_an_empty_queue_is_not_looked_into_again_and_again(site: _Site) -> None:
    site.mixed()
    async with site.worker(concurrency=10, threads=2):
        await site.all_threads_are_busy(2)
        await site.finished(await site.enqueue("ping"))
        exchanges = site.exchanges()
        await asyncio.sleep(0.5)
        assert exchanges() < 20
        site.go.set()


async def test_all_queues_are_heard_while_threads_are_busy(site: _Site) -> None:
    site.mixed()

    @site.task(queue="other")
    async def elsewhere() -> None: ...

    async with site.worker(concurrency=10, threads=2, queues=["default", "other"], strict=True):
        await site.all_threads_are_busy(2)
        await asyncio.sleep(0.3)  # it has begun to wait
        async with asyncio.timeout(5):
            await site.finished(await site.enqueue("elsewhere", queue="other"))
        assert len(site.begun) == 2
        site.go.set()


async def test_an_async_task_is_found_in_a_queue_that_only_sync_ones_name(site: _Site) -> None:
    site.task(name="slow", queue="slow")(site.slow)

    @site.task(queue="other")
    async def ping() -> str:
        return "pong"

    for _ in range(10):
        await site.enqueue("slow", queue="slow")
    async with site.worker(concurrency=10, threads=2, queues=["slow"]):
        await until(lambda: len(site.begun) == 2)
        async with asyncio.timeout(8):
            await site.finished(await site.enqueue("ping", tenant="b", queue="slow"))
        assert len(site.begun) == 2
        site.go.set()


async def test_sync_tasks_are_not_held_by_one_whose_async_ones_are_fast(site: _Site) -> None:
    site.mixed()
    stop = asyncio.Event()

    async def feed() -> None:
        while not stop.is_set():
            for _ in range(50):
                await site.enqueue("ping", tenant="b")
            await asyncio.sleep(0.01)

    async with site.worker("w1", concurrency=20, threads=2) as busy:
        feeding = asyncio.create_task(feed())
        await until(lambda: busy.processor._capacity.paces["loop"].rate > 200)
        for _ in range(8):
            await site.enqueue("slow")
        await until(lambda: len(site.begun) == 2)
        async with site.worker("w2", concurrency=20, threads=20):
            await until(lambda: len(site.begun) == 8)
            stop.set()
            await feeding
            site.go.set()


async def test_what_must_run_alone_does_so_however_often_it_went_back(site: _Site) -> None:
    @site.task()
    async def bad() -> None: ...

    @site.task()
    async def good() -> str:
        return "done"

    ids = [await site.enqueue("bad") for _ in range(8)]
    fetch = Fetch(queues=("default",), max=8)
    leased = (await site.broker.exchange(Call("gone", 1), fetch=fetch)).leased
    assert len(leased) == 8
    await site.broker.give_back("gone", ids, blocked=ids)  # each of them has to run alone

    import fairlead.worker.worker as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLOT", ("/bin/sleep", "20"))
        plan = SlotPlan(app="nobody:app", path=[])
        worker = site.worker(concurrency=10, slots=2, slot_plan=lambda: plan, grace=0.0)
        async with worker:
            await until(lambda: worker.inflight.kinds["process"] == 2)
            await site.finished(await site.enqueue("good"))
            exchanges = site.exchanges()
            await asyncio.sleep(1.0)
            assert exchanges() < 40  # they do not go to and fro
            assert worker.inflight.kinds == {"loop": 0, "thread": 0, "process": 2}
            assert {(await site.find(id)).crashes for id in ids} == {2}
