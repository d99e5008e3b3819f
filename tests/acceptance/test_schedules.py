"""Schedules with real processes: some stand still, some die, and every slot is run once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.acceptance.harness import Site
from tests.support.worker_process import until

TASKS = """
@app.schedule(every=1, name="tick", missed="all")
@app.task(name="tick")
async def tick(ctx: Context) -> None:
    record(f"slot {ctx.slot.timestamp():.0f}", ctx)
"""

STOPPED = 8.0  # seconds: longer than a claim lasts


def slots(site: Site) -> Counter[int]:
    return Counter(
        int(record.what.split()[1]) for record in site.records() if record.what.startswith("slot ")
    )


@pytest.mark.long(15)
@pytest.mark.slow
@pytest.mark.serial
async def test_a_worker_that_stood_still_does_no_harm(site: Site) -> None:
    one, two = site.worker(), site.worker()
    for worker in (one, two):
        await worker.ready()
    await until(lambda: len(slots(site)) >= 2, "the first slots")

    one.stop()
    began = time.time()
    await asyncio.sleep(STOPPED)
    one.cont()
    woken = time.time()
    two.stop()  # now the other one has to go on alone, with what it knows
    await until(lambda: max(slots(site)) > woken + 2, "slots by the one that stood still")
    two.cont()
    await until(lambda: max(slots(site)) > woken + 5, "slots by both")

    found = slots(site)
    assert set(found.values()) == {1}, [slot for slot, runs in found.items() if runs > 1]
    first, last = min(found), max(found)
    assert sorted(found) == list(range(first, last + 1))  # and none is missing
    during = [slot for slot in found if began + 1 < slot < woken - 1]
    assert len(during) >= STOPPED - 4


@pytest.mark.slow
@pytest.mark.serial
async def test_no_slot_is_lost_or_run_twice_when_workers_are_killed(site: Site) -> None:
    one, two = site.worker(), site.worker()
    for worker in (one, two):
        await worker.ready()
    await until(lambda: len(slots(site)) >= 2, "the first slots")
    one.kill_tree()
    await until(lambda: len(slots(site)) >= 5, "slots by the other one")
    two.kill_tree()
    down = time.time()
    await asyncio.sleep(3.0)
    one.start()
    await one.ready()
    await until(lambda: max(slots(site)) > down + 5, "slots after both were down")
    found = slots(site)
    assert sorted(found) == list(range(min(found), max(found) + 1))
    ids = Counter(record.id for record in site.records() if record.what.startswith("slot "))
    assert len(ids) == len(found)  # a task for each slot; one that was killed ran again
