"""One attempt: how handlers are called, and what becomes of what they return or raise."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.model.argument_packing import pack_arguments
from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.errors import TaskCancelled
from fairlead.model.lifecycle import State
from fairlead.model.signals import Reject, Retry, Snooze
from fairlead.worker.run.context import Context, current_context
from tests.worker.harness import AT_ONCE, NOW, Rig, until


async def test_an_async_handler_runs_on_the_loop_and_its_result_is_stored(rig: Rig) -> None:
    loop = asyncio.get_running_loop()
    seen = []

    @rig.task()
    async def add(a: int, b: int = 1) -> int:
        seen.append(asyncio.get_running_loop() is loop)
        return a + b

    one, two = await rig.enqueue("add", 1), await rig.enqueue("add", 1, b=5)

    assert await rig.worker().drain() == 2
    assert (await rig.result(one), await rig.result(two)) == (2, 6)
    assert seen == [True, True]


async def test_a_sync_handler_runs_in_a_thread_with_the_context_variables(rig: Rig) -> None:
    var: ContextVar[str] = ContextVar("var", default="unset")
    var.set("seen")

    @rig.task()
    def where() -> tuple[bool, str]:
        return threading.current_thread() is threading.main_thread(), var.get()

    id = await rig.enqueue("where")

    assert await rig.worker().drain() == 1
    assert await rig.result(id) == [False, "seen"]


async def test_threads_are_ended_with_the_worker(rig: Rig) -> None:
    @rig.task()
    def nothing() -> None: ...

    for _ in range(20):
        await rig.enqueue("nothing")
    before = threading.active_count()

    assert await rig.worker(threads=3).drain() == 20
    await until(lambda: threading.active_count() == before)  # the last may still have to say so


async def test_arguments_come_back_as_the_handler_declared_them(rig: Rig) -> None:
    @dataclass
    class Point:
        x: int
        y: int

    got: list[Any] = []

    async def handler(point: Point, when: datetime, *rest: uuid.UUID, key: bytes) -> None:
        got.extend([point, when, rest, key])

    handler.__annotations__ = {
        "point": Point,
        "when": datetime,
        "rest": uuid.UUID,
        "key": bytes,
    }
    rig.task(name="typed")(handler)
    when, some = datetime(2026, 1, 2, tzinfo=UTC), uuid.uuid4()
    await rig.enqueue("typed", Point(1, 2), when, some, key=b"\x00")

    await rig.worker().drain()
    assert got == [Point(1, 2), when, (some,), b"\x00"]


async def test_arguments_of_another_kind_are_rejected_without_retries(rig: Rig) -> None:
    @rig.task(policy=RetryPolicy(max_retries=5))
    async def typed(n: int) -> None: ...

    id = await rig.enqueue("typed", "many")

    await rig.worker().drain()
    record = await rig.find(id)
    assert (record.state, record.reason, record.attempts) == (State.DEAD, "rejected", 1)
    assert record.error is not None
    assert record.error.type == "InvalidArgument"
    assert record.error.message == "n (str) does not fit task 'typed': it must be int"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (0, 0),
        ("ü", "ü"),
        ([1, (2, 3)], [1, [2, 3]]),
        ({"a": b"\xff"}, {"a": b"\xff"}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_results_are_stored_as_plain_data(
    rig: Rig, value: Any, stored: Any, is_async: bool
) -> None:
    async def on_the_loop() -> Any:
        return value

    def in_a_thread() -> Any:
        return value

    rig.task(name="give")(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("give")

    await rig.worker().drain()
    assert await rig.result(id) == stored


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (object(), "NotSerializable", "the result cannot be stored"),
        (float("nan"), "NotSerializable", "not a finite number"),
        ({1: 2}, "NotSerializable", "keys must be strings"),
        (b"x" * (1024 * 1024 + 1), "TooLarge", "the limit is 1048576 bytes; store what is large"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_result_that_cannot_be_stored_is_the_end_of_the_task(
    rig: Rig, value: Any, kind: str, text: str, is_async: bool
) -> None:
    async def on_the_loop() -> Any:
        return value

    def in_a_thread() -> Any:
        return value

    rig.task(name="give")(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("give")
    worker = rig.worker()

    assert await worker.drain() == 1
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "rejected")
    assert record.error is not None
    assert record.error.type == kind
    assert text in record.error.message
    assert [raised.task_id for raised in worker.exceptions] == [id]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failing_task_is_retried_and_dead_when_its_attempts_are_used_up(
    rig: Rig, is_async: bool
) -> None:
    attempts = []

    def in_a_thread(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("it did not work")

    async def on_the_loop(ctx: Context) -> None:
        in_a_thread(ctx)

    rig.task(name="fail", policy=RetryPolicy(max_retries=2, backoff=AT_ONCE))(
        on_the_loop if is_async else in_a_thread
    )
    id = await rig.enqueue("fail")
    worker = rig.worker()

    assert await worker.drain() == 3
    record = await rig.find(id)
    assert attempts == [1, 2, 3]
    assert (record.state, record.reason, record.attempts) == (State.DEAD, "exhausted", 3)
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("ValueError", "it did not work")
    assert 'raise ValueError("it did not work")' in record.error.traceback
    assert "worker/run/executors.py" not in record.error.traceback
    assert [(r.task_id, r.task, r.attempt) for r in worker.exceptions] == [
        (id, "fail", 1),
        (id, "fail", 2),
        (id, "fail", 3),
    ]
    assert all(isinstance(r.exception, ValueError) for r in worker.exceptions)


async def test_retries_wait_for_their_backoff(slow: Rig) -> None:
    @slow.task(policy=RetryPolicy(backoff=Backoff(initial=10.0, factor=3.0, jitter="none")))
    async def fail() -> None:
        raise ValueError

    id = await slow.enqueue("fail")
    worker = slow.worker()

    assert await worker.drain() == 1
    record = await slow.find(id)
    assert (record.state, record.due_at) == (State.RETRYING, NOW + 10)
    await slow.broker.promote(now=NOW + 9.9)
    assert await worker.drain() == 0
    await slow.broker.promote(now=NOW + 10)
    assert await worker.drain() == 1
    assert (await slow.find(id)).due_at == NOW + 10 + 30


async def test_the_call_and_the_registration_may_set_the_number_of_retries(rig: Rig) -> None:
    @rig.task(max_retries=1)
    async def fail() -> None:
        raise ValueError

    registered, called = await rig.enqueue("fail"), await rig.enqueue("fail", max_retries=3)

    assert await rig.worker().drain() == 2 + 4
    assert (await rig.find(registered)).attempts == 2
    assert (await rig.find(called)).attempts == 4


async def test_the_backoff_depends_on_the_exception(slow: Rig) -> None:
    policy = RetryPolicy(
        backoff=Backoff(initial=1.0, jitter="none"),
        per_exception=((ConnectionError, Backoff(initial=60.0, jitter="none")),),
        give_up_on=(KeyError,),
    )

    @slow.task(policy=policy)
    async def fail(kind: str) -> None:
        raise {"plain": ValueError, "net": ConnectionResetError, "key": KeyError}[kind]

    plain, net, key = [await slow.enqueue("fail", kind) for kind in ("plain", "net", "key")]

    assert await slow.worker().drain() == 3
    assert (await slow.find(plain)).due_at == NOW + 1
    assert (await slow.find(net)).due_at == NOW + 60
    record = await slow.find(key)
    assert (record.state, record.reason) == (State.DEAD, "rejected")


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_may_ask_for_a_retry_at_a_time_of_its_own(
    slow: Rig, is_async: bool
) -> None:
    async def on_the_loop() -> None:
        raise Retry(delay=7.0)

    def in_a_thread() -> None:
        raise Retry(delay=7.0)

    slow.task(name="again")(on_the_loop if is_async else in_a_thread)
    id = await slow.enqueue("again")
    worker = slow.worker()

    assert await worker.drain() == 1
    record = await slow.find(id)
    assert (record.state, record.due_at, record.attempts) == (State.RETRYING, NOW + 7, 1)
    assert record.error is not None
    assert record.error.type == "Retry"
    assert not worker.exceptions


async def test_a_snoozed_task_comes_back_without_an_attempt_used_up(slow: Rig) -> None:
    seen = []

    @slow.task()
    async def later(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise Snooze(5.0)

    id = await slow.enqueue("later")
    worker = slow.worker()

    for seconds in (0, 5, 10):
        await slow.broker.promote(now=NOW + seconds)
        assert await worker.drain() == 1
    assert seen == [1, 1, 1]
    assert await slow.state(id) is State.COMPLETED


async def test_a_rejected_task_is_dead_at_once(rig: Rig) -> None:
    @rig.task()
    async def never() -> None:
        raise Reject("no such customer")

    id = await rig.enqueue("never")

    assert await rig.worker().drain() == 1
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "rejected")
    assert record.error is not None
    assert record.error.message == "no such customer"


async def test_the_text_of_an_error_is_bounded_and_shows_no_variables(rig: Rig) -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def deep(n: int, secret: str) -> None:
        if n == 0:
            raise ValueError("x" * 100_000 + "\ud800")
        deep(n - 1, secret)

    @rig.task(policy=RetryPolicy(max_retries=0))
    async def long(secret: str) -> None:
        deep(300, secret)

    @rig.task(policy=RetryPolicy(max_retries=0))
    async def hostile() -> None:
        raise Hostile

    one, two = await rig.enqueue("long", "hunter2"), await rig.enqueue("hostile")

    await rig.worker().drain()
    error = (await rig.find(one)).error
    assert error is not None
    assert len(error.message.encode()) <= 2048
    assert len(error.traceback.encode()) <= 16 * 1024
    assert "deep(n - 1, secret)" in error.traceback
    assert "hunter2" not in error.traceback
    error = (await rig.find(two)).error
    assert error is not None
    assert error.type.endswith("Hostile")


# -- unroutable --------------------------------------------------------------------------------


async def test_what_no_handler_here_knows_waits_for_one_that_does(slow: Rig) -> None:
    @slow.task(version=2)
    async def known() -> None: ...

    bad = [
        await slow.enqueue("unknown"),
        await slow.enqueue("known", task_version=3),
        await slow.enqueue("known", version=2),
        await slow.enqueue("known", body=b"\xc1"),
        await slow.enqueue("known", body=pack_arguments((1,), {})),
    ]
    old = await slow.enqueue("known", task_version=1)
    worker = slow.worker()

    assert await worker.drain() == 1
    assert await slow.state(old) is State.COMPLETED
    for id in bad:
        record = await slow.find(id)
        assert (record.state, record.reason, record.attempts) == (State.RETRYING, "unroutable", 0)
        assert record.due_at == NOW + 5
        assert record.error is not None
        assert record.error.message


async def test_an_unroutable_task_runs_once_its_handler_is_registered(slow: Rig) -> None:
    id = await slow.enqueue("late")
    worker = slow.worker()
    assert await worker.drain() == 0

    @slow.task()
    async def late(ctx: Context) -> int:
        return ctx.attempt

    await slow.broker.promote(now=NOW + 5)
    assert await worker.drain() == 1
    assert await slow.result(id) == 1


# -- timeouts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by_call", [True, False])
async def test_an_async_handler_that_is_out_of_time_is_cancelled_and_retried(
    rig: Rig, by_call: bool
) -> None:
    cleaned = []

    @rig.task(policy=RetryPolicy(max_retries=1, backoff=AT_ONCE), timeout=60.0 if by_call else 0.02)
    async def hang(ctx: Context) -> None:
        assert ctx.deadline is not None
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(ctx.cancelled)

    id = await rig.enqueue("hang", timeout=0.02 if by_call else None)

    assert await rig.worker().drain() == 2
    record = await rig.find(id)
    assert (record.state, record.reason, record.attempts) == (State.DEAD, "exhausted", 2)
    assert record.error is not None
    assert record.error.type == "TimeoutError"
    assert "0.02 s" in record.error.message
    assert "asyncio.Event().wait()" in record.error.traceback
    assert cleaned == [True, True]


async def test_a_handler_that_swallows_its_cancellation_keeps_its_slot_until_it_ends(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    @rig.task(policy=RetryPolicy(max_retries=0), timeout=0.02)
    async def stubborn(ctx: Context) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    @rig.task()
    async def other() -> int:
        return 1

    id, next_one = await rig.enqueue("stubborn"), await rig.enqueue("other")

    with caplog.at_level(logging.WARNING, "fairlead.worker"):
        async with rig.worker(concurrency=1) as worker:
            await until(lambda: worker.runner.overdue[0] == 1)
            assert await rig.state(id) is State.RUNNING
            assert await rig.state(next_one) is State.QUEUED
            release.set()
            await rig.finished(next_one)
    assert await rig.result(id) == "late"  # the work was done
    (line,) = [line for line in caplog.records if line.message.startswith("handler goes on")]
    assert vars(line)["task_id"] == id
    assert "release.wait()" in vars(line)["stack"]


async def test_a_sync_handler_that_is_out_of_time_keeps_its_thread_until_it_ends(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    contexts = []

    @rig.task(policy=RetryPolicy(max_retries=0), timeout=0.02)
    def stuck(ctx: Context) -> None:
        contexts.append(ctx)
        release.wait(20)
        ctx.raise_if_cancelled()

    @rig.task()
    def other() -> int:
        return 1

    id, next_one = await rig.enqueue("stuck"), await rig.enqueue("other")

    with caplog.at_level(logging.WARNING, "fairlead.worker"):
        async with rig.worker(concurrency=5, threads=1) as worker:
            await until(lambda: worker.runner.overdue[0] == 1)
            assert contexts[0].cancelled
            assert await rig.state(next_one) is State.QUEUED
            release.set()
            await rig.finished(next_one)
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")
    assert record.error is not None
    assert record.error.type == "TimeoutError"
    (line,) = [line for line in caplog.records if line.message.startswith("handler goes on")]
    assert "release.wait(20)" in vars(line)["stack"]


async def test_a_sync_handler_that_watches_for_it_ends_in_time(rig: Rig) -> None:
    @rig.task(policy=RetryPolicy(max_retries=0), timeout=0.02)
    def polite(ctx: Context) -> None:
        while True:
            ctx.raise_if_cancelled()
            threading.Event().wait(0.001)

    id = await rig.enqueue("polite")

    await rig.worker(patience=10.0).drain()
    record = await rig.find(id)
    assert record.error is not None
    assert (record.reason, record.error.type) == ("exhausted", "TimeoutError")


async def test_the_time_of_a_sync_handler_starts_with_its_thread(rig: Rig) -> None:
    @rig.task(policy=RetryPolicy(max_retries=0), timeout=0.5)
    def short() -> None:
        threading.Event().wait(0.15)

    ids = [await rig.enqueue("short") for _ in range(5)]

    assert await rig.worker(concurrency=5, threads=1).drain() == 5
    assert {await rig.state(id) for id in ids} == {State.COMPLETED}


async def test_a_handler_that_finishes_although_it_was_told_to_stop_has_succeeded(
    rig: Rig,
) -> None:
    @rig.task(timeout=0.02)
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return "never"

    id = await rig.enqueue("late")

    await rig.worker().drain()
    assert await rig.result(id) == "saved"


async def test_the_cancellation_of_another_task_is_an_ordinary_error(rig: Rig) -> None:
    @rig.task(policy=RetryPolicy(max_retries=0))
    async def waits() -> None:
        raise TaskCancelled("another")

    id = await rig.enqueue("waits")

    await rig.worker().drain()
    record = await rig.find(id)
    assert (record.state, record.reason) == (State.DEAD, "exhausted")


async def test_outside_of_handlers_there_is_no_context(rig: Rig) -> None:
    assert current_context() is None
