"""A worker that stops when its queues are empty, and not before."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import Fairlead, InvalidInput, ResultTimeout
from tests.worker.harness import until


async def test_stop_with_drain_runs_all_that_is_queued_first() -> None:
    done: list[int] = []
    app = Fairlead("memory://")

    @app.task(name="note")
    async def note(number: int) -> None:
        await asyncio.sleep(0.001)
        done.append(number)
        if number == 49:
            await note.aenqueue(50)  # what comes of it counts as well

    await app.aenqueue_many([note.call(n) for n in range(50)])
    await note.using(delay=3600).aenqueue(99)
    async with app.worker(concurrency=2) as worker:
        await worker.stop(drain=True)
        assert sorted(done) == list(range(51))
        await asyncio.wait_for(worker.stopped(), 5)
        await note.aenqueue(100)
        assert worker.state == "stopped"
    snapshot = await app.asnapshot()
    assert (snapshot.ready, snapshot.scheduled) == (1, 1)


async def test_stop_without_drain_leaves_what_waits() -> None:
    app = Fairlead("memory://")
    go = asyncio.Event()
    begun: list[int] = []

    @app.task(name="wait")
    async def wait(number: int) -> None:
        begun.append(number)
        await go.wait()

    await app.aenqueue_many([wait.call(n) for n in range(10)])
    async with app.worker(concurrency=1) as worker:
        await until(lambda: bool(begun))
        asyncio.get_running_loop().call_later(0.01, go.set)
        await worker.stop()
    assert begun == [0]
    assert (await app.asnapshot()).ready == 9


async def test_a_queue_that_is_paused_is_not_waited_for() -> None:
    app = Fairlead("memory://")

    @app.task(name="note")
    async def note() -> None: ...

    await note.aenqueue()
    await app.aconfigure_queue("default", paused=True)
    async with app.worker() as worker:
        await asyncio.wait_for(worker.stop(drain=True), 10)
    assert (await app.asnapshot()).ready == 1


async def test_leaving_the_block_ends_a_drain_that_is_under_way() -> None:
    app = Fairlead("memory://")

    @app.task(name="forever")
    async def forever() -> None:
        await forever.aenqueue()

    await forever.aenqueue()
    async with app.worker() as worker:
        draining = asyncio.ensure_future(worker.stop(drain=True))
        await asyncio.sleep(0.05)
    await asyncio.wait_for(draining, 5)


async def test_a_worker_that_does_not_run_cannot_be_stopped() -> None:
    with pytest.raises(InvalidInput, match="does not run"):
        await Fairlead("memory://").worker().stop(drain=True)


async def test_a_worker_in_a_program_can_be_paused_and_go_on() -> None:
    app = Fairlead("memory://")

    @app.task(name="note")
    async def note() -> str:
        return "done"

    async with app.worker() as worker:
        worker.pause()
        states: list[str] = [worker.state]
        handle = await note.aenqueue()
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout=0.1)
        worker.resume()
        assert await handle.aresult(timeout=10) == "done"
        states.append(worker.state)
    assert states == ["quiet", "working"]
