"""Workers of several processes share what one of them has no threads or processes for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.acceptance.harness import Site

TASKS = """
@app.task(name="doze")
def doze(ctx: Context, seconds: float) -> None:
    record("begin", ctx)
    time.sleep(seconds)


@app.task(name="heavy", isolation="process")
def heavy(ctx: Context) -> None:
    record("heavy", ctx)
    time.sleep(600)


@app.task(name="ping")
async def ping(ctx: Context) -> str:
    record("ping", ctx)
    return "pong"


@app.task(name="block")
async def block(ctx: Context) -> None:
    record("block", ctx)
    time.sleep(4.0)
"""

pytestmark = pytest.mark.slow


async def test_two_workers_with_few_threads_share_a_flood_of_sync_tasks(site: Site) -> None:
    workers = [site.worker("-c", "100", "-p", "1", "--threads", "5") for _ in range(2)]
    children = [(await worker.ready())[0] for worker in workers]

    ids = await site.enqueue("doze", 60, 0.3)
    await site.stream.ended(ids)

    shares = Counter(each.pid for each in site.records("begin"))
    assert set(shares) == set(children)
    assert min(shares.values()) >= 15  # of 60; alone it would have been none
    assert {record.attempts for record in await site.found(ids)} == {1}


async def test_an_async_task_does_not_wait_behind_isolated_ones(site: Site) -> None:
    worker = site.worker("-p", "1", "--grace", "0")  # ten slots, two slot processes
    await worker.ready()
    await site.enqueue("heavy", 10)
    await site.recorded("heavy", 2)

    for _ in range(3):
        begun = time.time()
        [ping] = await site.enqueue("ping")
        await site.stream.ended([ping])
        assert time.time() - begun < 5.0
        await asyncio.sleep(0.3)
    # What has no process has not begun.
    assert len(site.records("heavy")) == 2


async def test_what_blocked_the_loop_does_not_drag_its_neighbors_with_it_twice(site: Site) -> None:
    worker = site.worker("-c", "10", "-p", "1", "--stall-timeout", "2")
    [child] = await worker.ready()
    [blocking] = await site.enqueue("block")
    await site.recorded("block", 1)
    [innocent] = await site.enqueue("ping")

    await worker.logged("child stalled", pid=child)
    await site.stream.ended([innocent, blocking])

    # Its next attempt was behind the other, and in a process of its own.
    [_, again] = site.records("block")
    [ping] = site.records("ping")
    assert ping.at < again.at
    assert again.pid not in (child, ping.pid)
    assert [event.attempt for event in site.stream.of([blocking], "completed")] == [2]
    assert len(worker.log("child stalled")) == 1
