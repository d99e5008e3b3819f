"""A thousand flows while workers are killed: nothing is lost, early, or stuck."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

import pytest

from fairlead import FlowHandle, OutboxState, State, Task, TaskCall
from fairlead.client import Part
from tests.acceptance.harness import Site
from tests.support.worker_process import WorkerProcess

SEED = int(os.environ.get("FAIRLEAD_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
FLOWS = 1_000
TASKS = """
@app.task(name="hop")
async def hop(ctx: Context, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return ctx.token
"""
TORMENT = 20.0  # seconds in which workers are killed
PATIENCE = 120.0  # seconds for all of it
TENANTS = [f"tenant-{n}" for n in range(7)]


class Shape:
    """Ten calls that depend on each other in some way, and on what each of them waits."""

    def __init__(self, task: Task[..., int], dice: random.Random) -> None:
        hop = task.using(tenant=dice.choice(TENANTS))
        self.calls = [hop.call(dice.uniform(0.0, 0.02)) for _ in range(10)]
        self.waits: dict[str, list[str]] = {call.id: [] for call in self.calls}
        self.flow: Part[Any] = self.calls[0]
        getattr(self, dice.choice(["chain", "fan", "layers"]))()

    def chain(self) -> None:
        for call, after in zip(self.calls, self.calls[1:], strict=False):
            self.then([call], [after])

    def fan(self) -> None:
        first, *middle, last = self.calls
        self.then([first], middle)
        self.then(middle, [last])

    def layers(self) -> None:
        for start in range(0, 9, 3):
            self.then(self.calls[start : start + 3], self.calls[start + 3 : start + 6])

    def then(self, before: list[TaskCall[int]], after: list[TaskCall[int]]) -> None:
        for call in after:
            self.waits[call.id] += [each.id for each in before]
            self.flow = self.flow | (before >> call)


async def torment(workers: list[WorkerProcess], dice: random.Random) -> None:
    """Kill a child, or a whole worker, every second or two, for a while."""
    until = time.monotonic() + TORMENT
    while time.monotonic() < until:
        await asyncio.sleep(dice.uniform(0.5, 2.0))
        worker = dice.choice(workers)
        if dice.random() < 0.3:
            await asyncio.to_thread(worker.kill_tree)
            worker.start()
            print(f"killed {worker.name}", flush=True)
        elif children := worker.children():
            print(f"killed {worker.kill_child(dice.choice(children))}", flush=True)


async def ended(handles: list[FlowHandle[Any]]) -> list[State | OutboxState]:
    """The states of all flows; those in which tasks died with their process are retried."""
    until = time.monotonic() + PATIENCE
    waiting = list(handles)
    while waiting:
        assert time.monotonic() < until, f"{len(waiting)} flows do not end"
        states = await asyncio.gather(*(handle.astate() for handle in waiting))
        for handle, state in zip(waiting, states, strict=True):
            if state is State.DEAD:
                reasons = {task.reason for task in await handle.afailed()}
                own = {each for each in reasons if not each.startswith("dependency_failed")}
                assert own == {"poison"}, reasons  # killed three times while it ran: bad luck
                assert await handle.aretry()
        waiting = [h for h, state in zip(waiting, states, strict=True) if state is State.RUNNING]
        await asyncio.sleep(0.2)
    return [await handle.astate() for handle in handles]


@pytest.mark.long(20)
@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_thousand_flows_come_through_the_death_of_workers(site: Site) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    await site.app.aconfigure_queue("default", keep_completed_count=20_000)
    workers = [site.worker("-c", "50", "-p", "2", host=f"host-{n}") for n in range(2)]
    for worker in workers:
        await worker.ready()
    shapes = [Shape(site.task("hop"), dice) for _ in range(FLOWS)]
    tormenting = asyncio.create_task(torment(workers, dice))
    try:
        handles = [await site.app.aenqueue_flow(shape.flow) for shape in shapes]
        states = await ended(handles)
    finally:
        tormenting.cancel()
        await asyncio.gather(tormenting, return_exceptions=True)

    assert states == [State.COMPLETED] * FLOWS
    ids = [call.id for shape in shapes for call in shape.calls]
    await site.stream.ended(ids, seconds=30.0)
    assert {record.state for record in await site.found(ids)} == {State.COMPLETED}
    place = {id(event): number for number, event in enumerate(site.stream.events)}
    first_start: dict[str, int] = {}
    completed: dict[str, int] = {}
    for each in ids:
        for event in site.stream.tasks[each]:
            if event.kind == "started":
                first_start.setdefault(each, place[id(event)])
            elif event.kind == "completed":
                assert each not in completed, f"{each} was completed twice"
                completed[each] = place[id(event)]
    for shape in shapes:
        for each, parents in shape.waits.items():
            for parent in parents:
                assert completed[parent] < first_start[each], f"{each} began before {parent} ended"
    assert (await site.store.snapshot()).depth == 0
