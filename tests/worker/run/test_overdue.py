"""What does not stop when its time is up keeps its place until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from fairlead.broker.requests import LimiterChange
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, Message
from fairlead.model.registry import Registry, TaskSpec
from fairlead.worker.handler_router import Assignment, Router
from fairlead.worker.run.context import Context
from tests.worker.harness import Crowd, Rig, until


async def test_a_thread_that_is_over_its_time_keeps_its_room_in_limits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    crowd, begun = Crowd(1), []
    go = threading.Event()

    @rig.task(timeout=0.05)
    def slow() -> None:
        with crowd:
            begun.append(time.monotonic())
            go.wait(20)
            raise RuntimeError("too late")  # as of a connection that has timed out

    limit = LimiterChange(name="db", concurrency=1)
    await rig._caller.call(lambda call: rig.broker.configure(call, [limit]))
    body = Body(task="slow", arguments=pack_arguments((), {})).encode()
    from fairlead.broker.requests import Submission

    made = [
        Message(id=f"slow{n}", queue="default", tenant="a", limiters=("db",), body=body)
        for n in range(3)
    ]
    await rig.submit(*(Submission(message=message) for message in made))
    async with rig.worker(concurrency=4, threads=4) as worker:
        await until(lambda: worker.runner.overdue[0] == 1)
        await asyncio.sleep(0.3)  # several times its time and its patience
        assert (crowd.most, len(begun), len(worker.inflight)) == (1, 1, 1)
        assert worker.describe().details["overdue"] == 1
        assert [r.message for r in caplog.records if "goes on" in r.message] == [
            "handler goes on: it keeps its slot and its lease"
        ]
        states = [await rig.state(message.id) for message in made]
        assert sorted(states) == [State.QUEUED, State.QUEUED, State.RUNNING]
        go.set()
        await until(lambda: len(begun) >= 3)
        assert worker.runner.overdue[0] == 0
    assert crowd.most == 1


async def test_a_coroutine_that_swallows_its_cancellation_never_runs_beside_its_successor() -> None:
    rig = Rig()
    crowd, attempts = Crowd(1), []

    @rig.task(timeout=0.02)
    async def deaf() -> None:
        with crowd:
            attempts.append(1)
            until_then = asyncio.get_running_loop().time() + 0.2
            while asyncio.get_running_loop().time() < until_then:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
            raise RuntimeError("at last")

    await rig.enqueue("deaf", max_retries=2)
    await rig.worker(concurrency=4).drain()
    assert (len(attempts), crowd.most) == (3, 1)


async def test_what_is_over_its_time_when_the_worker_stops_has_failed() -> None:
    rig = Rig()
    go = threading.Event()

    @rig.task(timeout=0.02)
    def slow() -> None:
        go.wait(20)

    id = await rig.enqueue("slow", max_retries=0)
    async with rig.worker(grace=0.0) as worker:
        await until(lambda: worker.runner.overdue[0] == 1)
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert record.error is not None
    assert record.error.type == "TimeoutError"
    go.set()


def test_a_task_that_says_nothing_has_the_time_limit_of_its_worker() -> None:
    from fairlead.model.message import Leased
    from fairlead.model.options import Options

    registry = Registry()
    for name, options in (
        ("silent", Options()),
        ("own", Options(timeout=5)),
        ("none", Options(timeout=None)),
    ):
        registry.add(TaskSpec(name, lambda: None, options=options))

    def limit(task: str, said: float | None = None) -> float | None:
        body = Body(task=task, arguments=pack_arguments((), {}), timeout=said).encode()
        message = Message(id="t", queue="default", tenant="a", body=body)
        route = Router(registry, timeout=60.0).route(Leased(message=message, token=1, attempt=1))
        assert isinstance(route, Assignment)
        return route.timeout

    assert (limit("silent"), limit("own"), limit("none")) == (60.0, 5.0, None)
    assert (limit("silent", 7.0), limit("none", 7.0)) == (7.0, 7.0)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_handler_that_was_left_behind_gives_its_task_back_when_it_ends_after_all(
    rig: Rig, is_async: bool
) -> None:
    go = threading.Event()
    attempts: list[int] = []

    def plain(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        assert go.wait(20)

    async def awaited(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    rig.task(name="deaf")(awaited if is_async else plain)
    id = await rig.enqueue("deaf", max_retries=1)
    async with rig.worker() as worker:
        await until(lambda: bool(attempts))
        # As in a child whose supervisor was silent for longer than the lease, and is back.
        worker.runner._env.leaves = True
        worker.inflight.stop_all("release")
        await until(lambda: worker.inflight.left == 1)
        assert (len(worker.inflight), len(worker.inflight.leases())) == (0, 1)
        go.set()
        record = await rig.finished(id)
        await until(lambda: (worker.inflight.left, worker.inflight.leases()) == (0, []))
    assert attempts == [1, 1]
    assert record.attempts == 1
