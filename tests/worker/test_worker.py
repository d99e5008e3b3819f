"""The worker as a whole: starting, running, stopping, draining."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from fairlead.broker.requests import TenantChange
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.queue_order import StrictOrder
from fairlead.worker import prefetch
from fairlead.worker.run.context import Context
from tests.worker.harness import Crowd, Rig, until


async def test_a_running_worker_takes_tasks_as_they_come(rig: Rig) -> None:
    @rig.task()
    async def double(n: int) -> int:
        return 2 * n

    before = await rig.enqueue("double", 1)
    async with rig.worker():
        await rig.finished(before)
        later = await rig.enqueue("double", 2)
        await rig.finished(later)

    assert (await rig.result(before), await rig.result(later)) == (2, 4)


async def test_a_task_that_is_due_later_runs_when_it_is_due(rig: Rig) -> None:
    @rig.task()
    async def when() -> float:
        return time.time()

    async with rig.worker():
        asked = time.time()
        id = await rig.enqueue("when", delay=0.1)
        await rig.finished(id)

    # Who does not know when it is due looks every five seconds.
    assert 0.1 <= await rig.result(id) - asked < 4.0


async def test_never_more_attempts_run_than_there_are_slots(rig: Rig) -> None:
    crowd = Crowd(4)

    @rig.task()
    async def busy() -> None:
        with crowd:
            await asyncio.sleep(0)  # whoever else was started with this one comes in first
            await until(crowd.complete.is_set)

    ids = [await rig.enqueue("busy", tenant=f"t{i % 3}") for i in range(60)]
    async with rig.worker(concurrency=4):
        for id in ids:
            await rig.finished(id)

    assert crowd.most == 4


async def test_sync_and_async_handlers_share_the_slots(rig: Rig) -> None:
    crowd = Crowd(5)  # three in threads and two on the loop

    @rig.task()
    async def on_the_loop() -> None:
        with crowd:
            await asyncio.sleep(0)
            await until(crowd.complete.is_set)

    @rig.task()
    def in_a_thread() -> None:
        with crowd:
            assert crowd.complete.wait(10)

    for i in range(40):
        await rig.enqueue("on_the_loop" if i % 2 else "in_a_thread")

    assert await rig.worker(concurrency=5, threads=3).drain() == 40
    assert crowd.most == 5


@pytest.mark.serial
async def test_an_idle_worker_uses_no_cpu(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    async with rig.worker():
        await rig.finished(await rig.enqueue("nothing"))
        before = time.process_time()
        await asyncio.sleep(1.0)
        used = time.process_time() - before

    assert used < 0.05


# -- queues ------------------------------------------------------------------------------------


async def test_a_worker_serves_the_queues_that_its_tasks_name(rig: Rig) -> None:
    @rig.task(queue="mail")
    async def nothing() -> None: ...

    ids = [await rig.enqueue("nothing", queue=queue) for queue in ("default", "mail", "other")]

    assert await rig.worker().drain() == 2
    states = [await rig.state(id) for id in ids]
    assert states == [State.COMPLETED, State.COMPLETED, State.QUEUED]


@pytest.mark.parametrize(
    ("queues", "strict", "high"),
    [
        (["low", "high"], True, 0),
        ({"low": 1.0, "high": 3.0}, True, 8),
        ({"low": 1.0, "high": 3.0}, False, 6),
        (["low", "high"], False, 4),
    ],
)
async def test_queues_are_served_strictly_or_by_weight(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    queues: Sequence[str] | Mapping[str, float],
    strict: bool,
    high: int,
) -> None:
    # One task at a time: how many more a fetch takes depends on how quick the machine is.
    monkeypatch.setattr(prefetch, "_MOST", 0)
    seen: list[str] = []

    @rig.task()
    async def note(ctx: Context) -> None:
        seen.append(ctx.queue)

    for _ in range(8):
        await rig.enqueue("note", queue="low")
        await rig.enqueue("note", queue="high")
    worker = rig.worker(queues=queues, strict=strict, concurrency=1)

    assert await worker.drain() == 16
    assert seen[:8].count("high") == high


class Noted(StrictOrder):
    """An order that notes what it is told."""

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__(queues)
        self.notes: list[tuple[dict[str, int], list[str]]] = []

    def record(self, got: Mapping[str, int], empty: Collection[str] = ()) -> None:
        super().record(got, empty)
        self.notes.append((dict(got), list(empty)))


async def test_the_order_of_queues_learns_what_each_of_them_gave(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    for queue in ("b", "b", "b", "c"):
        await rig.enqueue("nothing", queue=queue)
    worker = rig.worker(concurrency=2)
    worker.processor.order = order = Noted(["a", "b", "c"])

    await worker.processor.drain()
    assert order.notes == [({"b": 2}, ["a"]), ({"b": 1, "c": 1}, ["a", "b"]), ({}, ["a", "b", "c"])]


async def test_a_tenant_at_its_limit_is_left_for_later(rig: Rig) -> None:
    crowd = Crowd(1)

    @rig.task()
    async def busy() -> None:
        with crowd:
            await asyncio.sleep(0.001)

    change = TenantChange(tenant="a", concurrency=1)
    await rig._caller.call(lambda call: rig.broker.configure(call, [change]))
    for _ in range(5):
        await rig.enqueue("busy")

    assert await rig.worker().drain() == 5
    assert crowd.most == 1


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"threads": 100_000},
        {"grace": -1.0},
        {"grace": float("nan")},
        {"lease": 0.0},
        {"queues": []},
        {"queues": "mail"},
        {"queues": ["mail", "mail"]},
        {"queues": {"mail": 0.0}},
        {"queues": {"mail": 0.0, "default": 1.0}},
    ],
)
async def test_bad_options_are_refused_before_anything_starts(
    rig: Rig, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption):
        rig.worker(**options)
