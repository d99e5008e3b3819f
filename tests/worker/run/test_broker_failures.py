"""What a broker that is away or full costs an attempt: time perhaps, but never a retry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Context, Fairlead
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import Call, Receipt, Settled
from fairlead.model.errors import BrokerError, Refused, Unreachable
from fairlead.model.lifecycle import State
from fairlead.model.spool_errors import SpoolFull
from fairlead.runtime.component import within
from tests.support.servers import Running, server
from tests.worker.harness import Rig, until


class Mute(MemoryBroker):
    """Takes no writes, or answers them only once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BrokerError] = []
        self.enqueue_error: BrokerError | None = None
        self.silent = False
        self.speaks = asyncio.Event()
        self.tries = 0

    async def write(self, call: Call, writes: Any, *, now: float | None = None) -> list[Settled]:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        if self.silent:
            await self.speaks.wait()
        return await super().write(call, writes, now=now)

    async def enqueue(
        self, call: Call, submissions: Any, *, now: float | None = None
    ) -> list[Receipt]:
        if self.enqueue_error is not None:
            raise self.enqueue_error
        return await super().enqueue(call, submissions, now=now)


@pytest.fixture
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_of_several_calls_that_fail_together_none_is_charged_to_the_task(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(
        "fairlead.worker.run.progress_writer.ProgressWriter.write.__defaults__", (0.15,)
    )
    broker = Mute()
    rig = Rig(broker)
    runs = 0

    @rig.task()
    async def pushes(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        broker.errors = [Unreachable("x")] * 1_000 if runs == 1 else []
        calls = [ctx.xcom.apush(f"k{i}", i) for i in range(3)]
        if how == "gather":
            await asyncio.gather(*calls)
        else:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(call)

    id = await rig.enqueue("pushes", max_retries=1)
    assert await rig.worker().drain() == 2
    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.COMPLETED, 1)


async def test_what_a_handler_makes_of_an_outage_beside_an_error_of_its_own_is_charged() -> None:
    rig = Rig()

    @rig.task()
    async def fails(ctx: Context) -> None:
        error = Unreachable("x")
        ctx._watched().note(error)
        raise ExceptionGroup("both", [error, ValueError("its own")])

    id = await rig.enqueue("fails", max_retries=0)
    assert await rig.worker().drain() == 1
    assert (await rig.find(id)).state is State.DEAD


@pytest.mark.parametrize("sync", [False, True])
async def test_an_attempt_that_is_out_of_time_because_it_waits_for_the_broker_is_not_charged(
    sync: bool,
) -> None:
    broker = Mute()
    rig = Rig(broker)
    runs: list[int] = []

    def plain(ctx: Context) -> None:
        runs.append(ctx.attempt)
        broker.silent = len(runs) == 1
        ctx.xcom.push("k", 1)

    async def awaiting(ctx: Context) -> None:
        runs.append(ctx.attempt)
        broker.silent = len(runs) == 1
        await ctx.xcom.apush("k", 1)

    rig.task(name="pushes")(plain if sync else awaiting)
    id = await rig.enqueue("pushes", max_retries=1, timeout=0.8)
    async with rig.worker():
        await until(lambda: len(runs) == 1)
        await asyncio.sleep(1.0)
        broker.silent = False
        broker.speaks.set()
        await rig.finished(id)
    assert runs in ([1], [1, 1])  # a sync handler may have come to its end after all
    assert (await rig.find(id)).attempts == 1


async def test_an_attempt_that_is_out_of_time_by_itself_is_charged() -> None:
    rig = Rig()

    @rig.task()
    async def slow(ctx: Context) -> None:
        await ctx.xcom.apush("k", 1)
        await asyncio.Event().wait()

    id = await rig.enqueue("slow", max_retries=0, timeout=0.1)
    async with rig.worker():
        await rig.finished(id, State.DEAD)


async def test_progress_takes_a_handler_no_time_once_the_broker_is_known_to_be_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.worker.run.progress_writer._SOON", 0.3)
    broker = Mute()
    rig = Rig(broker)
    took: list[float] = []

    @rig.task()
    async def reports(ctx: Context) -> None:
        broker.errors = [Unreachable("x")] * 100_000
        await ctx.aprogress(0)
        began = time.monotonic()
        for i in range(10):
            await ctx.aprogress(i)
        took.append(time.monotonic() - began)
        broker.errors = []
        await ctx.aprogress("done")

    id = await rig.enqueue("reports", max_retries=0)
    await rig.worker().drain()
    assert took[0] < 10 * 0.3
    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.COMPLETED, 1)
    assert record.progress is not None


@pytest.mark.parametrize("error", [Refused("oom", "x"), SpoolFull(1, "max_count")])
async def test_a_handler_that_finds_the_server_full_comes_again_later_without_a_charge(
    error: BrokerError,
) -> None:
    broker = Mute()
    app = Fairlead(store=broker)

    @app.task
    async def child() -> None: ...

    @app.task(max_retries=1)
    async def parent(ctx: Context) -> None:
        broker.enqueue_error = error
        await ctx.aenqueue(child.call())

    handle = await parent.aenqueue()
    assert await app.drain() == 1
    info = await handle.ainfo()
    assert (info.state, info.attempts) == (State.SCHEDULED, 0)
    assert info.due_at is not None
    assert info.due_at > time.time() + 1.0  # not at once: it would find it full again


async def test_a_full_server_that_keeps_a_handler_from_enqueueing_costs_no_retry(
    valkey: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.worker.run.broker_failures._FULL_PAUSE", 0.2)
    app = Fairlead(valkey.url)
    runs: list[int] = []
    again = asyncio.Event()

    @app.task
    async def child() -> None: ...

    @app.task(max_retries=1)
    async def parent(ctx: Context) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            valkey.admin("CONFIG", "SET", "maxmemory", "1")
        else:
            valkey.admin("CONFIG", "SET", "maxmemory", "0")
            again.set()
        await ctx.aenqueue(child.call())

    handle = await parent.aenqueue()
    async with app.worker():
        assert await within(10.0, again)
        await handle.aresult(timeout=10)
    assert runs == [1, 1]
    assert (await handle.ainfo()).attempts == 1
    await app.aclose()


async def test_what_an_attempt_enqueues_under_its_lease_is_not_spooled(tmp_path: Path) -> None:
    broker = Mute()
    app = Fairlead(store=broker, fallback="spool", spool=tmp_path, timeout="300ms")
    runs: list[int] = []

    @app.task
    async def child() -> None: ...

    @app.task(max_retries=1)
    async def parent(ctx: Context) -> str:
        runs.append(ctx.attempt)
        broker.enqueue_error = Unreachable("x") if len(runs) == 1 else None
        return (await ctx.aenqueue(child.call())).durability

    handle = await parent.aenqueue()
    fallback = app._clients.fallback
    assert fallback is not None
    async with app.worker():
        assert await handle.aresult(timeout=20) == "committed"
        assert fallback.spool.depth == 0
    assert set(runs) == {1}
    assert len(runs) < 10  # not in a circle, though the spool is left later than the outage is over
    await app.aclose()
