"""Workers in an outage: what came to its end is not lost, and no task ends twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Site
from tests.acceptance.outage_harness import DURABLE, judged, runs, spooling_site, written
from tests.support.proxy import proxy
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess, moment, until

BACK = 30.0  # seconds for everything to end

TASKS = """
@app.task(name="parent")
async def parent(ctx: Context, seconds: float) -> str:
    record("begin", ctx)
    await asyncio.sleep(seconds)
    child = await nap.using(id="child-" + ctx.id.replace(":", "-")).aenqueue(0.0)
    await ctx.aprogress({"made": child.id})
    record("end", ctx)
    return child.durability
"""


@pytest.fixture
def running() -> Iterator[Running]:
    with server(aof=True, config=DURABLE) as made:
        yield made


@pytest.mark.slow
async def test_the_outcome_of_a_worker_that_was_killed_in_the_outage_is_not_lost(
    running: Running, tmp_path: Path
) -> None:
    """It was written down, so that its successor tells it: the task does not run again."""
    async with spooling_site(running, tmp_path, TASKS) as site:
        worker = site.worker("-c", "10", "-p", "1")
        await worker.ready()
        ids = await site.enqueue("nap", 10, 1.0)
        await site.recorded("begin", 10)
        running.kill()
        await site.recorded("end", 10)
        await until(
            lambda: len(written(tmp_path / "worker-spool")) > 10 * 60,
            "ten outcomes to be written down",
        )
        print(f"written {time.time() - max(r.at for r in site.records('end')):.2f} s after the end")
        await asyncio.sleep(0.2)
        worker.kill_tree()
        await asyncio.to_thread(running.start)
        worker.start()
        await site.stream.ended(ids)
        assert [site.stream.kinds(id)[-1] for id in ids] == ["completed"] * 10
        assert {runs(site)[id] for id in ids} == {1}


@pytest.mark.slow
async def test_a_handler_enqueues_and_reports_while_the_broker_is_away(
    running: Running, tmp_path: Path
) -> None:
    async with spooling_site(running, tmp_path, TASKS) as site:
        worker = site.worker("-c", "10", "-p", "1")
        await worker.ready()
        ids = await site.enqueue("parent", 5, 0.7)
        await site.recorded("begin", 5)
        running.kill()
        await site.recorded("end", 5, 15.0)
        await asyncio.to_thread(running.start)
        children = [f"default:child-{id.replace(':', '-')}" for id in ids]
        await site.stream.ended([*ids, *children])
        assert {record.attempts for record in await site.found([*ids, *children])} == {1}
        assert {str(record.state) for record in await site.found(ids)} == {"completed"}
        assert {runs(site)[id] for id in [*ids, *children]} == {1}


@pytest.mark.slow
async def test_an_outage_that_outlives_the_leases_ends_each_task_once(
    running: Running, tmp_path: Path
) -> None:
    async with spooling_site(running, tmp_path, TASKS) as site:
        workers = [
            site.worker("-c", "10", "-p", "1", "--lease", "2", host=host) for host in ("a", "b")
        ]
        for worker in workers:
            await worker.ready()
        short = await site.enqueue("nap", 10, 1.0)
        await site.recorded("begin", 10)
        long = await site.enqueue("nap", 10, 8.0, 0.5)
        await site.recorded("begin", 20)
        running.kill()
        await asyncio.sleep(6.0)
        await asyncio.to_thread(running.start)
        ids = short + long
        await site.stream.ended(ids, BACK)
        assert {site.stream.kinds(id)[-1] for id in ids} == {"completed"}
        _told_once(site, ids)


@pytest.mark.slow
async def test_an_outcome_that_comes_after_another_worker_had_the_task_changes_nothing(
    running: Running, tmp_path: Path
) -> None:
    """One worker is cut off for longer than its lease, while another reaches the broker."""
    async with (
        spooling_site(running, tmp_path, TASKS) as site,
        proxy(path=running.path) as between,
    ):
        await site.store.sweep()
        cut_off = site.worker("-c", "5", "-p", "1", "--lease", "2", host="a", TEST_URL=between.url)
        await cut_off.ready()
        ids = await site.enqueue("nap", 5, 1.2, 0.2)
        await site.recorded("begin", 5)
        await between.refuse()
        between.cut()
        other = site.worker("-c", "5", "-p", "1", "--lease", "2", host="b")
        await other.ready()
        await site.stream.ended(ids, 2 * BACK)
        assert site.stream.count(ids, "completed") == 5
        await between.accept()
        await cut_off.ready()
        after = await site.enqueue("nap", 20, 0.2)
        await site.stream.ended(after)
        await asyncio.sleep(1.0)
        print("fenced", site.stream.count(ids, "fenced"), _logged(cut_off))
        _told_once(site, ids)
        assert min(runs(site)[id] for id in ids) >= 2  # at least once: it was the lease that ended
        assert site.stream.count(ids, "completed") == 5


def _told_once(site: Site, ids: list[str]) -> None:
    verdict = judged(site, [])
    verdict.unexpected.clear()  # nobody kept a book here
    assert verdict.defects == {}
    assert site.stream.count(ids, "completed") == len(ids)


def _logged(worker: WorkerProcess) -> list[tuple[float, str]]:
    return [(moment(line), line["event"]) for line in worker.log() if "event" in line]
