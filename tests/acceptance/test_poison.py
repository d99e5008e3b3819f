"""A task that takes its process down: it dies of it, the others do not, and work goes on."""

from __future__ import annotations

import pytest

from fairlead import State
from fairlead.model.events import Event
from tests.acceptance.harness import Site

TASKS = """
import ctypes


@app.task(name="brief")
async def brief(ctx: Context) -> None:
    await asyncio.sleep(0.01)


@app.task(name="patient")
async def patient(ctx: Context) -> None:
    record("begin", ctx)
    while not os.path.exists("go"):
        await asyncio.sleep(0.05)


@app.task(name="segfault")
async def segfault(ctx: Context) -> None:
    record("poison", ctx)
    ctypes.string_at(0)


@app.task(name="apart-segfault", isolation="process", max_retries=0)
def apart_segfault(ctx: Context) -> None:
    record("apart", ctx)
    ctypes.string_at(0)


@app.task(name="apart-exit", isolation="process", max_retries=0)
def apart_exit(ctx: Context) -> None:
    record("apart", ctx)
    os._exit(3)


@app.task(name="apart-memory", isolation="process", max_retries=0, max_memory="64MB")
def apart_memory(ctx: Context) -> None:
    record("apart", ctx)
    kept = []
    while True:
        kept.append(bytearray(8 * 1024 * 1024))


@app.task(name="apart-loop", isolation="process", max_retries=0, timeout=1)
def apart_loop(ctx: Context) -> None:
    record("apart", ctx)
    while True:
        pass


@app.task(name="apart", isolation="process")
def apart(ctx: Context, n: int) -> int:
    record("apart", ctx)
    return n * 2
"""


def per_second(events: list[Event]) -> float:
    """How many completed in a second, from the first start to the last end."""
    starts = [event.at for event in events if event.kind == "started"]
    ends = [event.at for event in events if event.kind == "completed"]
    return len(ends) / (max(ends) - min(starts))


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_a_segfaulting_task_dies_alone_among_five_hundred_in_its_child(site: Site) -> None:
    worker = site.worker("-c", "20", "-p", "1")
    await worker.ready()
    others = await site.enqueue("brief", 250)
    [poison] = await site.enqueue("segfault")
    others += await site.enqueue("brief", 250)

    await site.stream.ended([poison, *others], seconds=60.0)

    [dead] = await site.found([poison])
    assert (dead.state, dead.reason, dead.attempts) == (State.DEAD, "poison", 3)
    assert {record.state for record in await site.found(others)} == {State.COMPLETED}
    # Twice it took its child along, the third time it was alone in a process of its own.
    ran = site.records("poison")
    assert [record.attempt for record in ran] == [1, 2, 3]
    died = {entry["pid"] for entry in worker.log("child died")}
    assert [record.pid in died for record in ran] == [True, True, False]
    assert len(died) == 2


@pytest.mark.long(15)
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(240)
async def test_a_fleet_keeps_four_fifths_of_its_speed_with_a_poisonous_task(site: Site) -> None:
    worker = site.worker("-c", "4", "-p", "2")
    await worker.ready()

    async def speed(poison: bool) -> float:
        ids = await site.enqueue("brief", 500)
        if poison:
            ids += await site.enqueue("segfault")
        for _ in range(9):
            ids += await site.enqueue("brief", 500)
        await site.stream.ended(ids, seconds=90.0)
        assert site.stream.count(ids, "completed") == 5000
        assert site.stream.count(ids, "dead") == poison
        await worker.ready()
        return per_second([event for id in ids for event in site.stream.tasks[id]])

    shares = []
    for _ in range(2):  # one noisy neighbor may spoil one of them
        alone, beside = await speed(poison=False), await speed(poison=True)
        print(f"{alone:.0f} tasks a second without, {beside:.0f} with the poisonous one")
        shares.append(beside / alone)
        if shares[-1] >= 0.8:
            break
    assert max(shares) >= 0.8, shares


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["segfault", "exit", "memory", pytest.param("loop", marks=pytest.mark.serial)]
)
async def test_what_a_task_does_in_its_own_process_is_charged_to_it_alone(
    site: Site, kind: str
) -> None:
    worker = site.worker("-c", "30", "-p", "1", "--slots", "2")
    [child] = await worker.ready()
    others = await site.enqueue("patient", 20)
    await site.recorded("begin", 20)
    [bad] = await site.enqueue(f"apart-{kind}")

    await site.stream.ended([bad], seconds=15.0)
    assert site.stream.count(others, "completed") == 0, "they were to run beside it"
    (site.folder / "go").touch()
    await site.stream.ended(others)

    [record] = await site.found([bad])
    assert record.state is State.DEAD, record
    assert record.error is not None
    assert {r.pid for r in site.records("apart")}.isdisjoint({child, worker.pid})
    # The others noticed nothing.
    assert {tuple(site.stream.kinds(id)) for id in others} == {("enqueued", "started", "completed")}
    assert {event.attempt for event in site.stream.of(others, "completed")} == {1}
    assert worker.children() == [child]
    if kind == "loop":
        # A second for the time limit, two of patience.
        [begun], [ended] = (site.stream.of([bad], k) for k in ("started", "dead"))
        assert 0.9 <= ended.at - begun.at <= 5.0
        assert record.reason == "exhausted"
    # The slot is whole again.
    [handle] = await site.handles("apart", 1, 21)
    assert await handle.aresult(timeout=20) == 42


@pytest.mark.slow
async def test_no_process_is_left_of_an_endless_loop(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "1", "--slots", "1")
    [child] = await worker.ready()
    [bad] = await site.enqueue("apart-loop")
    [slot] = [record.pid for record in await site.recorded("apart", 1)]
    assert slot in worker.below(child)

    await site.stream.ended([bad])

    assert slot not in worker.tree()


async def test_a_neighbor_that_may_run_only_once_does_not_begin_again(site: Site) -> None:
    worker = site.worker("-c", "20", "-p", "1")
    await worker.ready()
    once = await site.enqueue("patient", 5, max_retries=0)
    again = await site.enqueue("patient", 5)
    await site.recorded("begin", 10)
    [poison] = await site.enqueue("segfault", max_retries=0)
    await site.stream.ended([poison, *once])
    assert {(r.state, r.reason) for r in await site.found(once)} == {(State.DEAD, "exhausted")}
    (site.folder / "go").touch()
    await site.stream.ended(again)
    assert {(r.state, r.attempts) for r in await site.found(again)} == {(State.COMPLETED, 1)}
    begun = [record.id for record in site.records("begin")]
    assert [begun.count(id) for id in once] == [1] * 5
