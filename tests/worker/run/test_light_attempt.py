"""Light attempts: what comes of them is what comes of full ones, whatever the handler does.

Each test is run with them and without.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from fairlead.model import custom_types
from fairlead.model.backoff import RetryPolicy
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.signals import Retry, Snooze
from fairlead.worker.app_services import AppServices
from fairlead.worker.run.context import Context
from fairlead.worker.run.light_attempt import LightAttempt, LightAttempts
from fairlead.worker.worker import Worker
from tests.worker.harness import AT_ONCE, Rig, until

LEARNS = 3  # attempts that end at once, before the one that a test is about
NONE_LEFT = RetryPolicy(max_retries=0, backoff=AT_ONCE)


class Last:
    """Made of the last of some parts."""


mine: ContextVar[str] = ContextVar("mine", default="nothing")


@pytest.fixture(params=["light", "full"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count what is run light, or have nothing be."""
    ran: list[int] = []
    run = LightAttempt.run

    def counted(self: LightAttempt) -> Any:
        ran.append(1)
        return run(self)

    monkeypatch.setattr(LightAttempt, "run", counted)
    if request.param == "full":
        monkeypatch.setattr(LightAttempts, "attempt", lambda _self, _lease: None)
    yield ran
    assert bool(ran) is (request.param == "light")


@asynccontextmanager
async def learned(rig: Rig, task: str, **options: Any) -> AsyncIterator[Worker]:
    """A worker that has seen the handler end at once, with numbers below zero."""
    options.setdefault("concurrency", 20)
    async with rig.worker(**options) as worker:
        for number in range(-LEARNS, 0):
            await rig.finished(await rig.enqueue(task, number))
        yield worker


# -- it waits after all ------------------------------------------------------------------------


async def test_one_that_waits_after_all_goes_on_where_it_is(rig: Rig) -> None:
    begun: list[int] = []
    seen: list[tuple[Any, ...]] = []
    lock, go = asyncio.Lock(), asyncio.Event()

    @rig.task()
    async def work(ctx: Context, number: int) -> str:
        if number < 0:
            return "at once"
        begun.append(number)
        mine.set(f"{number}")
        before = asyncio.current_task()
        await asyncio.sleep(0)
        async with lock:
            await go.wait()
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
        seen.append((mine.get(), before is asyncio.current_task(), ctx.id))
        return f"waited {number}"

    async with learned(rig, "work") as worker:
        ids = [await rig.enqueue("work", n) for n in range(10)]
        await until(lambda: len(begun) == 10)  # a lease is in flight before its handler begins
        assert len(worker.inflight) == 10
        assert [task.get_name() for task in asyncio.all_tasks()].count("work") == 10
        go.set()
        for n, id in enumerate(ids):
            await rig.finished(id)
            assert await rig.result(id) == f"waited {n}"
    assert sorted(seen) == sorted((str(n), True, id) for n, id in enumerate(ids))


async def test_those_behind_one_that_waits_run_at_once(rig: Rig) -> None:
    go, ran = asyncio.Event(), []

    @rig.task()
    async def work(number: int) -> None:
        ran.append(number)
        if number == 5:
            await go.wait()

    async with learned(rig, "work") as worker:
        for n in range(10):
            await rig.enqueue("work", n)
        await until(lambda: worker.syncer.settled == LEARNS + 9)
        assert sorted(ran[LEARNS:]) == list(range(10))
        go.set()
        await until(lambda: worker.syncer.settled == LEARNS + 10)


async def test_where_it_waits_is_told(rig: Rig) -> None:
    go = asyncio.Event()

    async def inner() -> None:
        await go.wait()  # here

    @rig.task()
    async def work(number: int) -> None:
        if number >= 0:
            await inner()

    async with learned(rig, "work") as worker:
        id = await rig.enqueue("work", 1)
        await until(lambda: len(worker.inflight) == 1)
        await asyncio.sleep(0)
        (attempt,) = worker.inflight
        told = attempt.where()
        assert f"work {id}" in told
        assert "await go.wait()  # here" in told
        assert "fairlead/worker" not in told
        go.set()
        await rig.finished(id)


# -- it raises ---------------------------------------------------------------------------------


async def test_what_it_raises_is_told_as_ever(rig: Rig) -> None:
    @rig.task(policy=NONE_LEFT)
    async def work(number: int, how: str = "") -> None:
        if number >= 0:
            if how == "later":
                await asyncio.sleep(0)
            raise LookupError(f"no {number}")

    async with learned(rig, "work") as worker:
        texts = []
        for how in ("", "later", ""):  # by the third time it is expected to wait
            id = await rig.enqueue("work", 7, how)
            record = await rig.finished(id, State.DEAD)
            assert record.reason == "exhausted"
            assert record.error is not None
            assert (record.error.type, record.error.message) == ("LookupError", "no 7")
            texts.append(record.error.traceback)
        assert len(set(texts)) == 1
        assert "fairlead/worker" not in texts[0]
        assert texts[0].count("File ") == 1
        assert len(worker.runner.exceptions) == 3
        assert worker.runner.exceptions[0].exception.__traceback__ is None


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (Snooze(100), State.SCHEDULED),
        (Retry(delay=100), State.RETRYING),
        (asyncio.CancelledError(), State.DEAD),
        (SystemExit(1), State.DEAD),
        (StopAsyncIteration(), State.DEAD),
    ],
    ids=repr,
)
async def test_whatever_it_raises_becomes_its_outcome(
    rig: Rig, raised: BaseException, state: State
) -> None:
    policy = RetryPolicy(backoff=AT_ONCE) if isinstance(raised, Retry) else NONE_LEFT

    @rig.task(policy=policy)
    async def work(number: int) -> None:
        if number >= 0:
            raise raised

    async with learned(rig, "work"):
        await rig.finished(await rig.enqueue("work", 1), state)


async def test_arguments_that_do_not_fit_are_rejected(rig: Rig) -> None:
    @rig.task()
    async def work(number: int) -> None: ...

    async with learned(rig, "work"):
        record = await rig.finished(await rig.enqueue("work", "text"), State.DEAD)
        assert record.error is not None
        assert (record.error.type, record.reason) == ("InvalidArgument", "rejected")


@pytest.mark.parametrize("named_at", [None, 0, 2], ids=repr)
async def test_arguments_arrive_as_the_handler_wants_them(rig: Rig, named_at: int | None) -> None:
    seen: list[tuple[Any, ...]] = []

    @rig.task()
    async def work(number: int, share: float, text: str) -> None:
        if number >= 0:
            seen.append((number, share, type(share), text))

    async with rig.worker() as worker:
        for number in range(-LEARNS, 0):
            await rig.finished(await rig.enqueue("work", number, 0.5, ""))
        for number in range(4):  # a whole number is read as a share
            if number == named_at:
                id = await rig.enqueue("work", number, share=number, text="named")
            else:
                id = await rig.enqueue("work", number, number, "placed")
            await rig.finished(id)
        wrong = await rig.enqueue("work", 4, "half", "placed")
        record = await rig.finished(wrong, State.DEAD)
        assert record.error is not None
        assert record.error.type == "InvalidArgument"
        await rig.finished(await rig.enqueue("work", 5, 0.25, "placed"))
        assert not worker.inflight
    named = [number == named_at for number in range(4)]
    expected = [(n, float(n), float, "named" if named[n] else "placed") for n in range(4)]
    assert seen == [*expected, (5, 0.25, float, "placed")]


async def test_a_type_whose_loader_ends_an_iteration_has_not_returned(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_types, "_registered", dict(custom_types._registered))
    custom_types.register_type(Last, dump=lambda _: [], load=lambda parts: next(iter(parts)))
    ran: list[int] = []

    @rig.task(policy=NONE_LEFT)
    async def work(number: int, last: Last | None = None) -> None:
        ran.append(number)

    async with learned(rig, "work"):
        await rig.finished(await rig.enqueue("work", 1, []), State.DEAD)
    assert 1 not in ran


# -- it is told to stop ------------------------------------------------------------------------


async def test_a_cancel_reaches_one_that_waits(rig: Rig) -> None:
    heard: list[str] = []

    @rig.task()
    async def work(ctx: Context, number: int) -> None:
        if number < 0:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(f"{ctx.cancelled}")
            raise

    async with learned(rig, "work") as worker:
        id = await rig.enqueue("work", 1)
        await until(lambda: len(worker.inflight) == 1)
        await asyncio.sleep(0)
        await rig.cancel(id)
        await worker.subscriber.receive()
        await rig.finished(id, State.CANCELLED)
    assert heard == ["True"]


@pytest.mark.parametrize("order", ["cancel", "withdraw", "lost"])
async def test_those_that_have_not_begun_are_taken_back(rig: Rig, order: str) -> None:
    ran: list[int] = []
    workers: list[Worker] = []

    @rig.task()
    async def work(number: int) -> None:
        ran.append(number)
        if number == 0:  # the others are in the same lane, behind it
            for attempt in list(workers[0].inflight):
                if order == "withdraw":
                    attempt.withdraw()
                elif attempt.lease.message.id != ids[0]:
                    attempt.stop(order)  # type: ignore[arg-type]

    async with learned(rig, "work", concurrency=5) as worker:
        workers.append(worker)
        worker.processor.be_quiet()
        ids = [await rig.enqueue("work", n) for n in range(5)]
        worker.processor.be_quiet(False)
        if order == "withdraw":  # they come again
            for id in ids:
                await rig.finished(id)
            assert sorted(ran[LEARNS:]) == list(range(5))
            return
        if order == "cancel":
            for id in ids[1:]:
                await rig.finished(id, State.CANCELLED)
        await rig.finished(ids[0])
        assert ran[LEARNS:] == [0]


@pytest.mark.parametrize("waits", [False, True])
async def test_one_may_be_told_to_stop_by_its_own_first_step(rig: Rig, waits: bool) -> None:
    workers: list[Worker] = []
    reached: list[str] = []

    @rig.task()
    async def work(ctx: Context, number: int) -> str:
        if number < 0:
            return ""
        assert workers[0].inflight.stop(ctx.id, ctx.token, "cancel")
        assert ctx.cancelled
        if waits:
            await asyncio.Event().wait()
            reached.append("the end")
        return "done"

    async with learned(rig, "work") as worker:
        workers.append(worker)
        id = await rig.enqueue("work", 1)
        await rig.finished(id, State.CANCELLED if waits else State.COMPLETED)
    assert reached == []


async def test_nothing_of_one_that_is_over_is_kept(rig: Rig) -> None:
    @rig.task()
    async def work(ctx: Context, number: int, text: str = "") -> str:
        return text

    async with learned(rig, "work") as worker:
        await rig.finished(await rig.enqueue("work", 1, "what it was given"))
        lights = worker.runner._lights
        frame = lights.stepper.__self__.gi_frame  # type: ignore[attr-defined]
        assert {name for name, value in frame.f_locals.items() if value is not None} == {"lights"}
        assert (lights.running, lights.seen, lights.steps, lights.returned) == (None,) * 4


async def test_one_that_begins_within_the_first_step_of_another_is_a_full_one(
    rig: Rig, way: list[int]
) -> None:
    """As where a handler runs the loop itself, with ``nest_asyncio``."""
    workers: list[Worker] = []
    ran: list[int] = []
    within: list[int] = []

    @rig.task()
    async def work(ctx: Context, number: int) -> int:
        ran.append(number)
        for other in [*workers[0].inflight.running.values()] if number == 1 else ():
            if isinstance(other, LightAttempt) and other.lease.message.id != ctx.id:
                full = other.run()
                assert full is not None
                workers[0].runner.executor.submit(full)
                within.append(len(ran))
        return number

    async with learned(rig, "work") as worker:
        workers.append(worker)
        ids = [await rig.enqueue("work", number) for number in (1, 2)]
        for id in ids:
            await rig.finished(id)
    assert ran[LEARNS:] == [1, 2]
    assert within == ([LEARNS + 1] if way else [])


async def test_a_stop_while_its_result_is_written_settles_once(rig: Rig) -> None:
    workers: list[Worker] = []
    told: list[bool] = []

    @dataclasses.dataclass
    class Result:
        id: str
        token: int

        def __getattribute__(self, name: str) -> Any:
            if name == "id" and not told:
                own = object.__getattribute__(self, "id"), object.__getattribute__(self, "token")
                told.append(workers[0].inflight.stop(*own, "release"))
            return object.__getattribute__(self, name)

    @rig.task()
    async def work(ctx: Context, number: int) -> Result | None:
        return None if number < 0 else Result(ctx.id, ctx.token)

    async with learned(rig, "work") as worker:
        workers.append(worker)
        before = worker.syncer.settled
        await rig.finished(await rig.enqueue("work", 1))
        assert told == [True]
        assert (worker.syncer.settled - before, worker.syncer.fenced) == (1, 0)


async def test_a_lost_lease_settles_nothing(rig: Rig) -> None:
    workers: list[Worker] = []

    @rig.task()
    async def work(ctx: Context, number: int) -> None:
        if number >= 0:
            workers[0].inflight.stop(ctx.id, ctx.token, "lost")

    async with learned(rig, "work") as worker:
        workers.append(worker)
        id = await rig.enqueue("work", 1)
        await until(lambda: worker.syncer.fenced == 1)
        assert await rig.state(id) is State.RUNNING
        assert not worker.inflight.leases()


async def test_its_time_counts_from_its_first_step(rig: Rig) -> None:
    deadlines: list[float] = []

    @rig.task(policy=NONE_LEFT, timeout=1.0)
    async def work(ctx: Context, number: int) -> None:
        assert ctx.deadline is not None
        deadlines.append(ctx.deadline - time.time())
        if number >= 0:
            time.sleep(0.8)  # noqa: ASYNC251 - its time passes
            began.append(time.monotonic())
            await asyncio.Event().wait()

    began: list[float] = []
    async with learned(rig, "work"):
        record = await rig.finished(await rig.enqueue("work", 1), State.DEAD)
        assert time.monotonic() - began[0] < 0.9
        assert record.error is not None
        assert record.error.type == "TimeoutError"
    assert all(0.9 < left <= 1.0 for left in deadlines)


# -- what else belongs to an attempt -----------------------------------------------------------


async def test_cleanups_come_before_the_outcome(rig: Rig) -> None:
    done: list[str] = []

    @rig.task()
    async def work(ctx: Context, number: int) -> int:
        if number >= 0:

            async def later() -> None:
                await asyncio.sleep(0)
                done.append("awaited")

            ctx.on_cleanup(done.append, "called")
            ctx.on_cleanup(later)
        return number

    async with learned(rig, "work"):
        id = await rig.enqueue("work", 1)
        await rig.finished(id)
        assert done == ["awaited", "called"]
        assert await rig.result(id) == 1


async def test_results_are_stored_or_refused(rig: Rig) -> None:
    @rig.task()
    async def work(number: int) -> Any:
        return object() if number == 1 else {"number": number}

    async with learned(rig, "work") as worker:
        good, bad = await rig.enqueue("work", 0), await rig.enqueue("work", 1)
        await rig.finished(good)
        assert await rig.result(good) == {"number": 0}
        record = await rig.finished(bad, State.DEAD)
        assert record.reason == "rejected"
        assert [each.task_id for each in worker.runner.exceptions] == [bad]


async def test_middleware_that_comes_later_is_around_every_attempt(
    rig: Rig, way: list[int]
) -> None:
    around: list[Any] = []
    seen: list[str] = []

    @rig.task()
    async def work(number: int) -> None: ...

    @asynccontextmanager
    async def watch(ctx: Context) -> AsyncIterator[None]:
        seen.append(ctx.id)
        yield

    async with learned(rig, "work", services=AppServices(around=around)):
        light = len(way)
        around.append(watch)
        ids = [await rig.enqueue("work", n) for n in range(5)]
        for id in ids:
            await rig.finished(id)
    assert sorted(seen) == sorted(ids)
    assert len(way) == light


async def test_attempts_are_counted(rig: Rig) -> None:
    services = AppServices()
    services.counters.begin()

    @rig.task()
    async def work(number: int) -> None:
        if number > 0:
            await asyncio.sleep(0)

    async with learned(rig, "work", services=services):
        for n in range(3):
            await rig.finished(await rig.enqueue("work", n))
    counted = services.counters.counted()
    assert counted.attempts == {("default", "work", "completed"): LEARNS + 3}


async def test_what_is_retained_and_where_it_came_from(rig: Rig) -> None:
    origins: list[tuple[str, str]] = []
    kept: dict[str, float | None] = {}

    @rig.task(retention=50)
    async def work(ctx: Context, number: int) -> None:
        origins.append((ctx.correlation_id, ctx.task))

    async with learned(rig, "work") as worker:
        add = worker.syncer.add

        def noted(settlement: Settlement) -> None:
            kept[settlement.id] = settlement.keep
            add(settlement)

        worker.syncer.add = noted
        ids = [
            await rig.enqueue("work", 1),
            await rig.enqueue("work", 2, retention=70.0, correlation="origin"),
        ]
        for id in ids:
            await rig.finished(id)
    assert kept == {ids[0]: 50.0, ids[1]: 70.0}
    assert sorted(origins[LEARNS:]) == sorted([(ids[0], "work"), ("origin", "work")])
