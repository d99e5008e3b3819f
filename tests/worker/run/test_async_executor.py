"""Async handlers share a task while none of them waits; what each of them sees is its own."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from fairlead.model.lifecycle import State
from tests.worker.harness import Rig, until

whose: ContextVar[str] = ContextVar("whose", default="nobody")


async def run(rig: Rig, task: str, count: int) -> list[str]:
    """Let the worker learn how the handler behaves, then run so many more."""
    ids = []
    async with rig.worker(concurrency=20) as worker:
        for number in range(count):
            ids.append(await rig.enqueue(task, number))
            if number < 3:
                await rig.finished(ids[-1])
        await until(lambda: worker.syncer.settled == count)
    return ids


async def test_handlers_that_do_not_wait_share_a_task(rig: Rig) -> None:
    tasks: set[asyncio.Task[object] | None] = set()

    @rig.task()
    async def quick(number: int) -> None:
        tasks.add(asyncio.current_task())

    await run(rig, "quick", 50)
    assert len(tasks) < 20


async def test_one_that_waits_has_a_task_of_its_own_from_its_first_step_to_its_last(
    rig: Rig,
) -> None:
    tasks: list[asyncio.Task[object] | None] = []

    @rig.task()
    async def waits(number: int) -> None:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        assert asyncio.current_task() is before
        tasks.append(before)

    await run(rig, "waits", 30)
    assert len(set(tasks)) == len(tasks) == 30


async def test_variables_of_one_attempt_are_never_seen_by_another(rig: Rig) -> None:
    seen: list[str] = []

    @rig.task()
    async def sets(number: int) -> None:
        seen.append(whose.get())
        whose.set(f"tenant {number}")
        if number % 7 == 0:
            await asyncio.sleep(0)
            assert whose.get() == f"tenant {number}"

    await run(rig, "sets", 60)
    assert seen == ["nobody"] * 60
    assert whose.get() == "nobody"


async def test_time_limits_and_groups_inside_of_a_handler_work_in_any_lane(rig: Rig) -> None:
    ended: list[str] = []

    @rig.task()
    async def mixed(number: int) -> None:
        if number % 3 == 0:
            return
        if number % 3 == 1:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                ended.append("timeout")
            return
        async with asyncio.TaskGroup() as group:
            one = group.create_task(asyncio.sleep(0, "a"))
            two = group.create_task(asyncio.sleep(0, "b"))
        ended.append(one.result() + two.result())

    ids = await run(rig, "mixed", 30)
    assert (ended.count("timeout"), ended.count("ab")) == (10, 10)
    assert [await rig.state(id) for id in ids] == [State.COMPLETED] * 30


async def test_a_cancel_hits_the_attempt_that_it_was_meant_for_and_no_later_one(rig: Rig) -> None:
    reached: list[int] = []
    inside = asyncio.Event()

    @rig.task()
    async def sometimes(number: int) -> None:
        reached.append(number)
        if number == 5:
            inside.set()
            await asyncio.Event().wait()

    async with rig.worker(concurrency=3) as worker:
        ids = []
        for number in range(6):
            ids.append(await rig.enqueue("sometimes", number))
            if number < 5:
                await rig.finished(ids[-1])
        await inside.wait()
        await rig.cancel(ids[5])
        await worker.subscriber.receive()
        await rig.finished(ids[5], State.CANCELLED)
        later = [await rig.enqueue("sometimes", number) for number in range(10, 20)]
        for id in later:
            await rig.finished(id)
    assert reached == [*range(6), *range(10, 20)]


async def test_all_that_wait_begin_in_the_same_turn(rig: Rig) -> None:
    begun, go = 0, asyncio.Event()

    @rig.task()
    async def gathers() -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    for _ in range(20):
        await rig.enqueue("gathers")
    async with rig.worker(concurrency=20) as worker:
        await until(lambda: begun > 0)
        assert begun == 20
        go.set()
        await until(lambda: worker.syncer.settled == 20)


async def test_a_lane_that_is_cancelled_by_others_leaves_the_rest_to_another(rig: Rig) -> None:
    async def cancelled() -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "fairlead-lane":
                task.cancel()

    done: list[int] = []

    @rig.task()
    async def quick(number: int) -> None:
        done.append(number)
        if number == 40:
            await cancelled()

    ids = await run(rig, "quick", 150)
    assert sorted(done) == list(range(150))
    assert [await rig.state(id) for id in ids] == [State.COMPLETED] * 150


@pytest.mark.parametrize("kind", ["quick", "waits", "sync"])
async def test_no_attempt_of_a_backlog_begins_with_the_variables_of_another(
    rig: Rig, kind: str
) -> None:
    seen: list[str] = []

    @rig.task()
    async def quick(number: int) -> None:
        seen.append(whose.get())
        whose.set(str(number))

    @rig.task()
    async def waits(number: int) -> None:
        seen.append(whose.get())
        whose.set(str(number))
        await asyncio.sleep(0)

    @rig.task()
    def sync(number: int) -> None:
        seen.append(whose.get())
        whose.set(str(number))

    whose.set("the program")
    for number in range(400):
        await rig.enqueue(kind, number)
    assert await rig.worker(concurrency=10).drain() == 400
    assert seen == ["the program"] * 400


async def test_a_cancellation_that_a_handler_leaves_behind_hits_nobody_else(rig: Rig) -> None:
    runs: list[int] = []

    @rig.task()
    async def quick(number: int) -> None:
        runs.append(number)
        task = asyncio.current_task()
        if number % 10 == 7 and task is not None:
            task.cancel()

    for number in range(100):
        await rig.enqueue("quick", number)
    await rig.worker(concurrency=5).drain()
    assert sorted(runs) == list(range(100))
