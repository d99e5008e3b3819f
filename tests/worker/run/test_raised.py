"""What handlers may raise: anything. Each attempt ends, and nothing else does."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.model.backoff import RetryPolicy
from fairlead.model.lifecycle import State
from fairlead.model.signals import Retry, Snooze
from tests.worker.harness import AT_ONCE, NOW, Rig


@pytest.mark.parametrize(("signal", "to"), [(Retry, State.RETRYING), (Snooze, State.SCHEDULED)])
async def test_a_delay_that_was_set_later_is_read_like_any_other(
    slow: Rig, signal: Callable[[int], Any], to: State
) -> None:
    @slow.task()
    async def later() -> None:
        error = signal(1)
        error.delay = "5m"
        raise error

    id = await slow.enqueue("later")

    assert await slow.worker().drain() == 1
    record = await slow.find(id)
    assert (record.state, record.due_at) == (to, NOW + 300)


@pytest.mark.parametrize(
    ("signal", "delay"),
    [(Retry, -1.0), (Retry, float("nan")), (Snooze, 1e12), (Snooze, None), (Retry, "soon")],
)
async def test_a_delay_out_of_range_is_an_error_of_the_handler(
    rig: Rig, signal: Callable[[int], Any], delay: object
) -> None:
    @rig.task(policy=RetryPolicy(max_retries=0))
    async def wrong() -> None:
        error = signal(1)
        error.delay = delay
        raise error

    @rig.task()
    async def right() -> None: ...

    id, bystander = await rig.enqueue("wrong"), await rig.enqueue("right")

    assert await rig.worker().drain() == 2
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert record.error is not None
    assert record.error.type == "InvalidOption"
    assert await rig.state(bystander) is State.COMPLETED


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_exits_ends_its_attempt_only(rig: Rig, is_async: bool) -> None:
    async def on_the_loop() -> None:
        sys.exit(3)

    def in_a_thread() -> None:
        sys.exit(3)

    rig.task(name="leave")(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("leave", max_retries=1)

    assert await rig.worker().drain() == 2  # a failure like any other
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert record.error is not None
    assert record.error.message == "the handler ended with SystemExit: 3"


async def test_a_handler_that_cancels_itself_has_failed(rig: Rig) -> None:
    @rig.task(policy=RetryPolicy(max_retries=1, backoff=AT_ONCE))
    async def odd() -> None:
        raise asyncio.CancelledError

    id = await rig.enqueue("odd")

    assert await rig.worker().drain() == 2
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert record.error is not None
    assert "CancelledError" in record.error.message


class Abort(BaseException):
    """An error that is no Exception, as pytest.fail and some cancel scopes raise."""


@pytest.mark.parametrize(
    "error",
    [
        Abort("stop"),
        BaseExceptionGroup("several", [Abort()]),
        GeneratorExit(),
        asyncio.CancelledError(),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_handler_raises_its_attempt_ends_and_its_slot_is_free(
    rig: Rig, error: BaseException, is_async: bool
) -> None:
    def in_a_thread() -> None:
        raise error

    async def on_the_loop() -> None:
        raise error

    rig.task(name="abort", max_retries=0)(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("abort")
    worker = rig.worker(concurrency=1, threads=1)

    async with asyncio.timeout(5):
        assert await worker.drain() == 1
    assert await rig.state(id) is State.DEAD
    assert len(worker.inflight) == 0


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_that_cannot_even_be_read_ends_its_attempt_only(
    rig: Rig, is_async: bool
) -> None:
    class Unset(Retry):
        def __init__(self) -> None:  # without the delay that a Retry has
            pass

    class Exits(Exception):
        def __str__(self) -> str:
            raise SystemExit

    def in_a_thread(delay: bool) -> None:
        raise Unset if delay else Exits

    async def on_the_loop(delay: bool) -> None:
        in_a_thread(delay)

    rig.task(name="odd", max_retries=0)(on_the_loop if is_async else in_a_thread)
    ids = [await rig.enqueue("odd", True), await rig.enqueue("odd", False)]

    async with asyncio.timeout(5):
        assert await rig.worker(concurrency=1, threads=1).drain() == 2
    for id in ids:
        record = await rig.find(id)
        assert (record.state, record.reason) == (State.DEAD, "exhausted")


def test_an_interrupt_on_the_loop_ends_the_program_and_the_task_is_handed_back() -> None:
    rig = Rig()

    @rig.task(max_retries=1)
    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def program() -> None:
        await rig.enqueue("interrupted", id="x")
        async with rig.worker(grace=0.0):
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(program())
    record = asyncio.run(rig.find("x"))
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_an_attempt_that_is_cancelled_from_outside_is_handed_back(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task(max_retries=1)
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("long")

    async def program() -> None:
        async with rig.worker(grace=0.5):
            await asyncio.Event().wait()

    me = asyncio.current_task()
    running = asyncio.create_task(program())
    await begun.wait()
    for task in asyncio.all_tasks():  # as some programs do when they end
        if task is not me:
            task.cancel()
    await asyncio.wait([running])

    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_kept_exception_keeps_no_variables_alive(rig: Rig, is_async: bool) -> None:
    kept: list[weakref.ref[set[int]]] = []

    def fails() -> None:
        data = {1}
        kept.append(weakref.ref(data))
        try:
            raise KeyError
        except KeyError as cause:
            group = ExceptionGroup("two", [ValueError(), raised_inside(kept)])
            raise group from cause

    async def on_the_loop() -> None:
        fails()

    rig.task(name="fails", max_retries=0)(on_the_loop if is_async else fails)
    await rig.enqueue("fails")
    worker = rig.worker()
    await worker.drain()
    gc.collect()

    (raised,) = worker.exceptions
    assert isinstance(raised.exception, ExceptionGroup)
    assert [ref() for ref in kept] == [None, None]
    error = (await rig.find(raised.task_id)).error
    assert error is not None
    assert "raise group from cause" in error.traceback


def raised_inside(kept: list[weakref.ref[set[int]]]) -> Exception:
    data = {2}
    kept.append(weakref.ref(data))
    try:
        raise ValueError
    except ValueError as error:
        return error


async def test_whoever_passed_an_error_on_to_a_handler_lives_on(rig: Rig) -> None:
    asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def serve() -> None:
        while True:
            answer = await asked.get()
            try:
                raise ValueError
            except ValueError as error:
                answer.set_exception(error)  # whose traceback has the frame of this coroutine

    @rig.task(max_retries=0)
    async def asks() -> None:
        answer = asyncio.get_running_loop().create_future()
        asked.put_nowait(answer)
        await answer

    server = asyncio.create_task(serve())
    worker = rig.worker()
    for _ in range(2):
        await rig.enqueue("asks")
        async with asyncio.timeout(5):
            assert await worker.drain() == 1
    assert not server.done()
    server.cancel()
