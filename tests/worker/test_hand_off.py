"""A worker that waits on a server begins what it is handed, and keeps nothing it cannot run."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from fairlead.broker.memory import MemoryBroker
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Taken
from fairlead.model.lifecycle import State
from fairlead.worker.worker import Worker
from tests.support.twins import emptied
from tests.worker.harness import Rig, until

_ids = itertools.count(1)


class ServerRig(Rig):
    """A rig on a server, which counts what its workers ask."""

    def __init__(self) -> None:
        self.server = RedisBroker(emptied("valkey"))
        super().__init__(cast(MemoryBroker, self.server))
        self.exchanges = 0
        self.handed: list[str] = []
        self.lose = 0  # so many tasks that are handed over get lost on their way
        exchange, take = self.server.exchange, self.server.take

        async def counted(*args: Any, **options: Any) -> Any:
            self.exchanges += 1
            return await exchange(*args, **options)

        async def noted(*args: Any, **options: Any) -> Taken:
            taken = await take(*args, **options)
            self.handed += [lease.message.id for lease in taken.leased]
            if taken.leased and self.lose:
                self.lose -= 1
                return Taken()
            return taken

        self.server.exchange = counted  # type: ignore[method-assign]
        self.server.take = noted  # type: ignore[method-assign]

    async def send(self, task: str, *args: Any) -> str:
        return await self.enqueue(task, *args, id=f"{next(_ids):032x}")

    async def waits(self, worker: Worker) -> None:
        """Return when a worker has left an offer, or waits for a wake-up."""
        key = f"{self.server.keys.prefix}offers:default"
        session = await self.server.here()
        name = worker.incarnation

        async def offered() -> bool:
            said = await session.server.command("HGET", self.server.keys.answers, name)
            place = await session.server.command("ZSCORE", key, name)
            return place is not None and b"\x1ftake\x1fo" in (said or b"")

        async with asyncio.timeout(10):
            while not await offered():  # noqa: ASYNC110 - it is the server that knows
                await asyncio.sleep(0.005)


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    rig = ServerRig()
    yield rig
    assert await rig.server.audit() == []
    await rig.server.close()


async def known(rig: ServerRig, worker: Worker, task: str, *args: Any) -> None:
    """Have a first task run, so that queue and tenant are known; the worker waits again."""
    id = await rig.send(task, *args)
    await ended(rig, id)
    await rig.waits(worker)
    rig.handed.clear()


async def ended(rig: ServerRig, *ids: str) -> None:
    async with asyncio.timeout(20):
        while {await rig.state(id) for id in ids} != {State.COMPLETED}:  # noqa: ASYNC110 - it does
            await asyncio.sleep(0.005)


async def test_a_handler_begins_without_a_fetch(rig: ServerRig) -> None:
    begun: list[int] = []

    @rig.task()
    async def note() -> None:
        begun.append(rig.exchanges)

    async with rig.worker() as worker:
        await known(rig, worker, "note")
        before = rig.exchanges
        id = await rig.send("note")
        await until(lambda: len(begun) == 2)
        assert rig.handed == [id]
        assert begun[1] == before
        await ended(rig, id)


async def test_it_is_handed_one_after_the_other_while_it_has_slots(rig: ServerRig) -> None:
    go = asyncio.Event()

    @rig.task()
    async def waits(first: bool = False) -> None:
        if not first:
            await go.wait()

    async with rig.worker(concurrency=3) as worker:
        await known(rig, worker, "waits", True)
        ids = []
        for _ in range(3):
            await rig.waits(worker)
            ids.append(await rig.send("waits"))
            await until(lambda: rig.handed == ids)
        assert len(worker.inflight) == 3
        fourth = await rig.send("waits")  # without a slot it offers nothing
        assert await rig.state(fourth) is State.QUEUED
        go.set()
        await ended(rig, *ids, fourth)
        assert fourth not in rig.handed


@pytest.mark.parametrize("known_to", ["return", "wait"])
async def test_it_begins_in_the_task_that_waited_for_it(rig: ServerRig, known_to: str) -> None:
    """No task is made for it, whatever the handler did the last time; later ones get others."""
    go, tasks = asyncio.Event(), []

    @rig.task()
    async def note(number: int) -> None:
        tasks.append((asyncio.current_task(), asyncio.current_task() in waiting))
        if number or known_to == "wait":
            await asyncio.sleep(0)
        if number:
            await go.wait()

    waiting: list[asyncio.Task[None] | None] = []
    async with rig.worker(concurrency=5) as worker:
        await known(rig, worker, "note", 0)
        tasks.clear()
        for number in (1, 2):
            await rig.waits(worker)
            waiting.append(worker.processor._waiter._task)
            id = await rig.send("note", number)
            await until(lambda: len(tasks) == number)  # noqa: B023 - it is awaited here
            assert rig.handed[-1] == id
        assert [of_the_wait for _, of_the_wait in tasks] == [True, True]
        assert [task for task, _ in tasks] == waiting
        assert len({task for task, _ in tasks}) == 2
        assert len(worker.inflight) == 2
        go.set()
        await until(lambda: not worker.inflight)


async def test_it_takes_its_turn_behind_a_lane_that_is_under_way(rig: ServerRig) -> None:
    ran: list[int] = []

    @rig.task()
    async def note(number: int) -> None:
        ran.append(number)

    async with rig.worker() as worker:
        await known(rig, worker, "note", 0)
        executor = worker.runner.executor
        executor._awake = asyncio.current_task()  # as if it were to run in a moment
        id = await rig.send("note", 1)
        await until(lambda: rig.handed == [id])
        await until(lambda: bool(executor._ready))
        assert ran == [0]
        executor._awake = None
        executor._pass_on(None)
        await ended(rig, id)
        assert ran == [0, 1]


async def test_a_worker_that_rests_is_handed_nothing(rig: ServerRig) -> None:
    @rig.task()
    async def note() -> None: ...

    async with rig.worker() as worker:
        await known(rig, worker, "note")
        worker.processor.be_quiet()
        await until(lambda: not worker.processor._waiter.is_open)
        id = await rig.send("note")
        assert await rig.state(id) is State.QUEUED
        worker.processor.be_quiet(False)
        await ended(rig, id)
        assert rig.handed == []


async def test_nor_is_one_that_stops_while_an_attempt_goes_on(rig: ServerRig) -> None:
    go, inside = asyncio.Event(), asyncio.Event()

    @rig.task()
    async def waits(first: bool = False) -> None:
        if not first:
            inside.set()
            await go.wait()

    worker = rig.worker(grace=20.0)
    async with worker:
        await known(rig, worker, "waits", True)
        first = await rig.send("waits")
        await inside.wait()
        await rig.waits(worker)
        stopping = asyncio.create_task(worker.processor.stop(20.0))
        await until(lambda: worker.processor.halting and not worker.processor._waiter.is_open)
        second = await rig.send("waits", True)
        assert await rig.state(second) is State.QUEUED
        go.set()
        await stopping
    assert await rig.state(first) is State.COMPLETED
    async with rig.worker("w2"):
        await ended(rig, second)


async def test_a_wait_that_is_cancelled_before_its_first_step_is_over(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a program ends all tasks of its loop; the same worker may be entered again."""
    ran: list[int] = []

    @rig.task()
    async def note(number: int) -> None:
        ran.append(number)

    loop = asyncio.get_running_loop()
    own, make = asyncio.current_task(), loop.create_task
    cut: list[asyncio.Task[Any]] = []

    def create(steps: Any, **options: Any) -> asyncio.Task[Any]:
        made = make(steps, **options)
        if ran and not cut and getattr(steps, "__qualname__", "") == "WorkWaiter._take":
            cut.extend(task for task in asyncio.all_tasks() if task is not own)
            for task in cut:
                task.cancel()
        return made

    worker = rig.worker(grace=0.5)
    monkeypatch.setattr(loop, "create_task", create)
    with pytest.raises(BaseException):  # noqa: B017, PT011, PT012 - however the first life ends
        async with worker:
            await rig.send("note", 1)
            await until(lambda: bool(cut))
            raise KeyboardInterrupt
    assert not worker.processor._waiter.is_open
    async with worker:
        await ended(rig, await rig.send("note", 2))
    assert ran == [1, 2]


async def test_what_is_lost_on_its_way_comes_back_with_the_next_beat(rig: ServerRig) -> None:
    @rig.task()
    async def note() -> None: ...

    async with rig.worker() as worker:
        await known(rig, worker, "note")
        rig.lose = 1
        id = await rig.send("note")
        await until(lambda: rig.handed == [id])
        await until(lambda: not worker.inflight.leases())
        assert await rig.state(id) is State.RUNNING  # as the broker believes
        assert (await worker.heartbeater.beat()).unclaimed == 1
        await ended(rig, id)
        (task,) = await rig.server.find([id])
        assert task is not None
        assert (task.attempts, task.crashes) == (1, 0)


async def test_beats_take_nothing_back_that_is_on_its_way(rig: ServerRig) -> None:
    """As many beats as there is time for, and none of them finds what its worker has to come."""
    runs: Counter[str] = Counter()

    @rig.task()
    async def note(number: int) -> None:
        runs[str(number)] += 1
        await asyncio.sleep(0.001 * (number % 3))

    workers = [rig.worker(f"w{n}", concurrency=2) for n in range(2)]
    async with workers[0], workers[1]:
        await known(rig, workers[0], "note", 0)
        unclaimed = 0

        async def beat(worker: Worker) -> None:
            nonlocal unclaimed
            while True:
                unclaimed += (await worker.heartbeater.beat()).unclaimed
                await asyncio.sleep(0)

        beats = [asyncio.create_task(beat(worker)) for worker in workers]
        ids = []
        for number in range(1, 150):
            ids.append(await rig.send("note", number))
            await asyncio.sleep(0.002 * (number % 4))
        await ended(rig, *ids)
        for each in beats:
            each.cancel()
    assert unclaimed == 0
    assert set(runs.values()) == {1}
    assert len(runs) == 150
    assert len(rig.handed) > 20
