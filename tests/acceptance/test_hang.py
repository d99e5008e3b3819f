"""Handlers that do not come back: who notices, who pays for it, and what becomes of the others."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from fairlead import State
from tests.acceptance.harness import Site
from tests.support.worker_process import is_alive, until

TASKS = """
if os.path.exists("broken"):
    raise RuntimeError("this app cannot be imported now")


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


def look_for_the_first(ctx):
    with open(os.environ["TEST_RECORDS"]) as lines:
        for line in map(json.loads, lines):
            if line["what"] == "begin" and line["attempt"] == 1 and line["id"] == ctx.id:
                if os.path.exists(f"/proc/{line['pid']}"):
                    record("beside", ctx)


@app.task(name="deaf", timeout=1)
async def deaf(ctx: Context) -> None:
    record("begin", ctx)
    if ctx.attempt > 1:
        return look_for_the_first(ctx)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


@app.task(name="stuck", timeout=1)
def stuck(ctx: Context) -> None:
    record("begin", ctx)
    if ctx.attempt > 1:
        return look_for_the_first(ctx)
    time.sleep(600)


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


@app.task(name="outlives", isolation="process")
async def outlives_its_worker(ctx: Context) -> None:
    import ctypes
    import subprocess

    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # as where the kernel does not end it: PDEATHSIG
    subprocess.Popen(["sleep", "300"])
    record("begin", ctx)
    time.sleep(600)


@app.task(name="process", isolation="process")
def in_a_process(ctx: Context) -> None:
    record("begin", ctx)
    while True:
        time.sleep(0.02)
"""


@pytest.mark.slow
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
    assert child in worker.children()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deaf", "stuck"])
async def test_a_handler_that_ignores_its_time_limit_has_its_process_replaced(
    site: Site, kind: str
) -> None:
    worker = site.worker("-c", "1", "-p", "1", "--stall-timeout", "1", "--grace", "0.5")
    [child] = await worker.ready()
    [stubborn] = await site.enqueue(kind)
    await site.recorded("begin", 1)
    [next_one] = await site.enqueue("nap", 1, 0.1)

    await site.stream.ended([stubborn, next_one])

    # Its attempt has crashed: it was over its time, and its process had to end.
    reasons = [event.reason for event in site.stream.of([stubborn], "recovered")]
    assert reasons.count("crash") == 1  # what a starved machine does to the next is not charged
    [record] = await site.found([stubborn])
    assert (record.state, record.attempts) == (State.COMPLETED, 2)
    assert await worker.logged("handler goes on: it keeps its slot and its lease")
    assert await worker.logged("child retires", pid=child)
    # And there was no other attempt before it had ended.
    assert [each for each in site.records() if each.what == "beside"] == []


@pytest.mark.slow
async def test_a_child_that_could_not_be_replaced_is_tried_again(site: Site) -> None:
    impatient = (
        "from fairlead.worker.process import supervisor; supervisor._AGAIN = 0.5\n"
        "import sys; from fairlead.cli.main import main; del sys.argv[1]; main()"
    )
    worker = site.worker(
        *("-c", "5", "-p", "1", "--grace", "0.5", "--stall-timeout", "1"),
        wrapper=(sys.executable, "-c", impatient),
    )
    [child] = await worker.ready()
    (site.folder / "broken").touch()
    [stubborn] = await site.enqueue("stuck")
    await worker.logged("child retires", pid=child)
    await until(
        lambda: len([e for e in worker.log(pid=child) if "not replaced" in e["event"]]) > 1,
        lambda: f"a second try\n{worker.tail()}",
    )
    assert child in worker.children()

    (site.folder / "broken").unlink()

    await site.stream.ended([stubborn])
    await worker.ready(but=[child])
    assert not is_alive(child)


@pytest.mark.slow
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
    assert child in worker.children()
    if kind == "process":
        await until(lambda: not is_alive(begun.pid), f"the slot {begun.pid} to be killed", 5.0)
    # Its place is free again.
    [again] = await site.handles("nap", 1, 0.05)
    await again.aresult(timeout=10)
    [other] = await site.handles(kind)
    await site.recorded("begin", 3)
    assert await other.acancel()
    await site.stream.ended([other.id], seconds=15.0)


@pytest.mark.slow
async def test_a_slot_process_that_hangs_ends_with_its_worker_without_help_of_the_kernel(
    site: Site,
) -> None:
    worker = site.worker("-c", "1", "-p", "1", "--slots", "1")
    [child] = await worker.ready()
    await site.enqueue("outlives")
    [slot] = await site.recorded("begin", 1)
    left = worker.below(slot.pid)
    assert len(left) == 2  # and the program of the handler

    both = [worker.pid, child]  # or one would end what the other left behind
    worker.stop(both)
    for pid in both:
        os.kill(pid, signal.SIGKILL)

    await until(lambda: not any(map(is_alive, left)), f"{left} to end", 10.0)
