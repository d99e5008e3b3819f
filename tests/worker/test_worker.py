"""The worker as a whole: starting, running, stopping, draining."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from fairlead.broker.verbs import TenantChange
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.ordering import StrictOrder
from fairlead.worker import Context
from tests.worker.harness import Rig, until


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

    assert 0.1 <= await rig.result(id) - asked < 0.6


async def test_never_more_attempts_run_than_there_are_slots(rig: Rig) -> None:
    running, most = 0, 0

    @rig.task()
    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    ids = [await rig.enqueue("busy", tenant=f"t{i % 3}") for i in range(60)]
    async with rig.worker(concurrency=4):
        for id in ids:
            await rig.finished(id)

    assert most == 4


async def test_sync_and_async_handlers_share_the_slots(rig: Rig) -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def enter(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    @rig.task()
    async def on_the_loop() -> None:
        enter(1)
        await asyncio.sleep(0.002)
        enter(-1)

    @rig.task()
    def in_a_thread() -> None:
        enter(1)
        time.sleep(0.002)
        enter(-1)

    for i in range(40):
        await rig.enqueue("on_the_loop" if i % 2 else "in_a_thread")

    assert await rig.worker(concurrency=5, threads=2).drain() == 40
    assert 2 < most <= 5


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


# -- stopping ----------------------------------------------------------------------------------


async def test_what_runs_is_finished_before_the_worker_stops(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def takes_a_while() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        return "done"

    @rig.task()
    def in_a_thread() -> str:
        time.sleep(0.05)
        return "done"

    one, two = await rig.enqueue("takes_a_while"), await rig.enqueue("in_a_thread")
    async with rig.worker():
        await begun.wait()

    assert (await rig.result(one), await rig.result(two)) == ("done", "done")


async def test_a_worker_that_stops_fetches_nothing_more(rig: Rig) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @rig.task()
    async def waits() -> None:
        begun.set()
        await go.wait()

    first, second = await rig.enqueue("waits"), await rig.enqueue("waits")
    async with rig.worker(concurrency=1):
        await begun.wait()
        asyncio.get_running_loop().call_later(0.02, go.set)

    assert await rig.state(first) is State.COMPLETED
    assert await rig.state(second) is State.QUEUED


async def test_what_does_not_finish_in_time_is_handed_back_without_an_attempt_used_up(
    rig: Rig,
) -> None:
    begun = [threading.Event() for _ in range(3)]
    release = threading.Event()
    cleaned = []

    @rig.task()
    async def obeys() -> None:
        begun[0].set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("obeys")

    @rig.task()
    async def swallows() -> None:
        begun[1].set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @rig.task()
    def blocks() -> None:
        begun[2].set()
        release.wait(20)

    ids = [await rig.enqueue(name) for name in ("obeys", "swallows", "blocks")]
    worker = rig.worker(grace=0.02)
    try:
        async with worker:
            await until(lambda: all(event.is_set() for event in begun))
        for id in ids:
            record = await rig.find(id)
            assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)
        assert cleaned == ["obeys"]
        assert not worker.exceptions
        assert worker.syncer.fenced == 0
    finally:
        release.set()


async def test_a_task_that_fails_while_it_is_handed_back_is_not_charged(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def breaks() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    id = await rig.enqueue("breaks")
    async with rig.worker(grace=0.0):
        await begun.wait()

    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_a_second_request_to_stop_does_not_wait_for_the_grace(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")

    async def program() -> None:
        async with rig.worker(grace=1000.0):
            await begun.wait()

    running = asyncio.create_task(program())
    await begun.wait()
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5.0)

    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_an_error_in_the_block_comes_out_of_it_after_an_orderly_stop(rig: Rig) -> None:
    @rig.task()
    async def short() -> None:
        await asyncio.sleep(0.01)

    id = await rig.enqueue("short")
    worker = rig.worker()

    async def program() -> None:
        async with worker:
            await until(lambda: len(worker.inflight) == 1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await program()
    assert await rig.state(id) is State.COMPLETED


async def test_a_crash_of_a_component_ends_the_block_loudly(rig: Rig) -> None:
    worker = rig.worker()

    async def broken() -> int:
        raise ZeroDivisionError

    worker.janitor.tidy = broken  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as caught:
        async with worker:
            await asyncio.sleep(10)

    assert caught.value.subgroup(ZeroDivisionError) is not None


async def test_a_worker_can_be_started_again_but_not_twice_at_a_time(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    worker = rig.worker()
    for _ in range(2):
        async with worker:
            await rig.finished(await rig.enqueue("nothing"))
            with pytest.raises(InvalidInput, match="running already"):
                await worker.drain()
            with pytest.raises(InvalidInput, match="running already"):
                await worker.__aenter__()
    await rig.enqueue("nothing")
    assert await worker.drain() == 1


# -- draining ----------------------------------------------------------------------------------


async def test_drain_runs_what_handlers_enqueue_and_retries_that_are_due(rig: Rig) -> None:
    @rig.task()
    async def tree(depth: int) -> None:
        if depth:
            await rig.enqueue("tree", depth - 1)
            await rig.enqueue("tree", depth - 1)

    @rig.task()
    async def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    await rig.enqueue("tree", 3)
    id = await rig.enqueue("second_time")

    assert await rig.worker(concurrency=2).drain() == 15 + 2
    assert await rig.state(id) is State.COMPLETED
    assert (await rig.broker.snapshot()).depth == 0


async def test_drain_leaves_what_is_due_later(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    id = await rig.enqueue("nothing", delay=60.0)

    worker = rig.worker()
    assert await worker.drain() == 0
    assert await worker.drain() == 0
    assert await rig.state(id) is State.SCHEDULED


async def test_a_drain_that_is_cancelled_leaves_nothing_running(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")
    worker = rig.worker()
    draining = asyncio.create_task(worker.drain())
    await begun.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining

    record = await rig.find(id)
    assert (record.state, record.attempts, len(worker.inflight)) == (State.QUEUED, 0, 0)


async def test_a_drain_of_many_tasks_costs_few_exchanges(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    for _ in range(1000):
        await rig.enqueue("nothing")
    calls = 0
    exchange = rig.broker.exchange

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return await exchange(*args, **kwargs)

    rig.broker.exchange = counted  # type: ignore[method-assign]

    assert await rig.worker(concurrency=100).drain() == 1000
    assert calls <= 13


# -- queues ------------------------------------------------------------------------------------


async def test_a_worker_serves_the_queues_that_its_tasks_name(rig: Rig) -> None:
    @rig.task(queue="mail")
    async def nothing() -> None: ...

    ids = [await rig.enqueue("nothing", queue=queue) for queue in ("default", "mail", "other")]

    assert await rig.worker().drain() == 2
    states = [await rig.state(id) for id in ids]
    assert states == [State.COMPLETED, State.COMPLETED, State.QUEUED]


@pytest.mark.parametrize(
    ("queues", "strict", "first"),
    [
        (["low", "high"], True, ["low"] * 8),
        ({"low": 1.0, "high": 3.0}, True, ["high"] * 8),
        ({"low": 1.0, "high": 3.0}, False, ["high"] * 6 + ["low"] * 2),
        (["low", "high"], False, ["high"] * 4 + ["low"] * 4),
    ],
)
async def test_queues_are_served_strictly_or_by_weight(
    rig: Rig, queues: Sequence[str] | Mapping[str, float], strict: bool, first: list[str]
) -> None:
    seen: list[str] = []

    @rig.task()
    async def note(ctx: Context) -> None:
        seen.append(ctx.queue)

    for _ in range(8):
        await rig.enqueue("note", queue="low")
        await rig.enqueue("note", queue="high")
    worker = rig.worker(queues=queues, strict=strict, concurrency=1)

    assert await worker.drain() == 16
    assert sorted(seen[:8]) == sorted(first)


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
    running, most = 0, 0

    @rig.task()
    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    change = TenantChange(tenant="a", concurrency=1)
    await rig._caller.call(lambda call: rig.broker.configure(call, [change]))
    for _ in range(5):
        await rig.enqueue("busy")

    assert await rig.worker().drain() == 5
    assert most == 1


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
