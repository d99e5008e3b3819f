"""Handlers that do not come back: who notices, who pays for it, and what becomes of the others."""

from __future__ import annotations

import time

import pytest

from fairlead import State
from tests.acceptance.harness import Site
from tests.support.worker_process import is_alive, until

TASKS = """
@app.task(name="hang")
async def a_handler_that_hangs(ctx: Context) -> str:
    record("hang", ctx)
    if ctx.attempt == 1:
        time.sleep(600)
    return "back"


@app.task(name="block")
async def blocks_the_loop(ctx: Context, seconds: float) -> None:
    record("hang", ctx)
    time.sleep(seconds)


@app.task(name="deaf", timeout=1, max_retries=0)
async def deaf(ctx: Context) -> None:
    record("begin", ctx)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


@app.task(name="async")
async def asynchronous(ctx: Context) -> None:
    record("begin", ctx)
    await asyncio.sleep(600)


@app.task(name="thread")
def in_a_thread(ctx: Context) -> None:
    record("begin", ctx)
    while True:
        ctx.raise_if_cancelled()
        time.sleep(0.02)


@app.task(name="process", isolation="process")
def in_a_process(ctx: Context) -> None:
    record("begin", ctx)
    while True:
        time.sleep(0.02)
"""


async def test_a_handler_that_blocks_the_loop_is_named_and_pays_for_it_alone(site: Site) -> None:
    worker = site.worker("-c", "20", "-p", "1", "--stall-timeout", "2")
    [child] = await worker.ready()
    bystanders = await site.enqueue("nap", 10, 1.0, 0.2)
    await site.recorded("begin", 10)
    [hanging] = await site.enqueue("hang")

    stalled = await worker.logged("child stalled", pid=child)
    await until(lambda: not is_alive(child), f"{child} to be killed", 5.0)
    await site.stream.ended([hanging, *bystanders])

    assert (stalled["task"], stalled["task_id"]) == ("hang", hanging)
    assert "a_handler_that_hangs" in str(stalled["stack"])
    # It alone is charged with the crash.
    assert site.stream.kinds(hanging) == [
        "enqueued", "started", "recovered", "started", "completed",
    ]  # fmt: skip
    assert [event.reason for event in site.stream.of([hanging], "recovered")] == ["crash"]
    assert {event.reason for event in site.stream.of(bystanders, "recovered")} <= {""}
    assert {event.attempt for event in site.stream.of(bystanders, "completed")} == {1}
    burnt = {record.message.id: record.attempts for record in await site.found(bystanders)}
    assert set(burnt.values()) == {1}
    [record] = await site.found([hanging])
    assert record.attempts == 2


@pytest.mark.slow
async def test_a_loop_that_hangs_longer_than_the_lease_and_goes_on_loses_nothing(
    site: Site,
) -> None:
    worker = site.worker("-c", "20", "-p", "1", "--lease", "2", "--stall-timeout", "60")
    [child] = await worker.ready()
    ids = await site.enqueue("nap", 5, 6.0)
    await site.recorded("begin", 5)
    ids += await site.enqueue("block", 1, 4.0)

    await site.stream.ended(ids)

    assert {event.kind for event in site.stream.of(ids, "dead", "fenced", "cancelled")} == set()
    assert worker.children() == [child]


async def test_a_handler_that_ignores_its_time_limit_does_not_keep_its_slot(site: Site) -> None:
    worker = site.worker("-c", "1", "-p", "1")
    await worker.ready()
    [deaf] = await site.enqueue("deaf")
    await site.recorded("begin", 1)
    begun = time.time()
    [next_one] = await site.enqueue("nap", 1, 0.1)

    await site.stream.ended([deaf, next_one])

    [record] = await site.found([deaf])
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert record.error is not None
    assert "Timeout" in record.error.type
    [started] = site.stream.of([next_one], "started")
    assert started.at <= begun + 6.0  # a second of time limit, two of patience
    assert await worker.logged("handler abandoned")
    assert worker.log("child died") == []


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_running_work_of_every_kind_can_be_cancelled(site: Site, kind: str) -> None:
    worker = site.worker("-c", "5", "-p", "1", "--threads", "2", "--slots", "1")
    [child] = await worker.ready()
    [handle] = await site.handles(kind)
    [begun] = await site.recorded("begin", 1)
    assert (begun.pid == child) == (kind != "process")

    asked = time.time()
    assert await handle.acancel()
    await site.stream.ended([handle.id], seconds=15.0)

    assert site.stream.kinds(handle.id) == ["enqueued", "started", "cancelling", "cancelled"]
    [cancelled] = site.stream.of([handle.id], "cancelled")
    assert cancelled.at <= asked + 5.0
    assert worker.children() == [child]
    if kind == "process":
        await until(lambda: not is_alive(begun.pid), f"the slot {begun.pid} to be killed", 5.0)
    # Its place is free again.
    [again] = await site.handles("nap", 1, 0.05)
    await again.aresult(timeout=10)
    [other] = await site.handles(kind)
    await site.recorded("begin", 3)
    assert await other.acancel()
    await site.stream.ended([other.id], seconds=15.0)
