"""Callbacks that run when a handler has ended, however it did."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from fairlead.model.backoff import RetryPolicy
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.worker.run.context import Context, current_context
from tests.worker.harness import Rig, until

ONCE = RetryPolicy(max_retries=0)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("fails", [True, False])
async def test_callbacks_run_last_in_first_out_before_the_outcome_is_known(
    rig: Rig, is_async: bool, fails: bool
) -> None:
    seen: list[Any] = []

    def note(what: str) -> None:
        context = current_context()
        assert context is not None
        seen.append((what, context._over))

    async def later(what: str) -> None:
        await asyncio.sleep(0)
        note(what)

    def body(ctx: Context) -> str:
        ctx.on_cleanup(note, "first")
        ctx.on_cleanup(note, "second")
        if is_async:
            ctx.on_cleanup(later, "third")
        seen.append("handler")
        if fails:
            raise ValueError
        return "done"

    async def on_the_loop(ctx: Context) -> str:
        return body(ctx)

    def in_a_thread(ctx: Context) -> str:
        return body(ctx)

    rig.task(name="work", policy=ONCE)(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("work")

    await rig.worker().drain()
    third = [("third", False)] if is_async else []
    assert seen == ["handler", *third, ("second", False), ("first", False)]
    if fails:
        assert await rig.state(id) is State.DEAD
    else:
        assert await rig.result(id) == "done"


async def test_callbacks_of_a_sync_handler_run_in_its_thread_and_awaited_ones_on_the_loop(
    rig: Rig,
) -> None:
    seen: dict[str, int] = {}

    async def awaited() -> None:
        seen["awaited"] = threading.get_ident()

    @rig.task()
    def work(ctx: Context) -> None:
        seen["handler"] = threading.get_ident()
        ctx.on_cleanup(lambda: seen.update(called=threading.get_ident()))
        ctx.on_cleanup(awaited)

    await rig.enqueue("work")
    await rig.worker().drain()
    assert seen["called"] == seen["handler"] != threading.get_ident() == seen["awaited"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_in_one_is_logged_and_changes_nothing_else(
    rig: Rig, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def bad(secret: str) -> None:
        raise ValueError(f"cannot close {secret}")

    def body(ctx: Context) -> int:
        ctx.on_cleanup(seen.append, "still")
        ctx.on_cleanup(bad, "hunter2")
        return 7

    async def on_the_loop(ctx: Context) -> int:
        return body(ctx)

    def in_a_thread(ctx: Context) -> int:
        return body(ctx)

    rig.task(name="work")(on_the_loop if is_async else in_a_thread)
    id = await rig.enqueue("work", tenant="acme")
    with caplog.at_level(logging.ERROR):
        await rig.worker().drain()

    assert await rig.result(id) == 7
    assert seen == ["still"]
    (line,) = [line for line in caplog.records if line.message.startswith("cleanup failed")]
    fields = vars(line)
    assert (fields["task_id"], fields["tenant"], fields["error"]) == (id, "acme", "ValueError")
    assert "test_cleanup.py" in fields["where"]
    assert "hunter2" not in str(fields)


async def test_callbacks_run_when_the_attempt_is_cancelled_or_out_of_time(rig: Rig) -> None:
    seen: list[str] = []

    @rig.task(policy=ONCE)
    async def work(ctx: Context, name: str) -> None:
        ctx.on_cleanup(seen.append, name)
        await asyncio.sleep(60)

    late = await rig.enqueue("work", "late", timeout=0.02)
    cancelled = await rig.enqueue("work", "cancelled")
    async with rig.worker() as worker:
        await until(lambda: len(worker.inflight) > 0)
        await rig.finished(late, State.DEAD)
        await rig.cancel(cancelled)
        await rig.finished(cancelled, State.CANCELLED)
    assert sorted(seen) == ["cancelled", "late"]


async def test_a_callback_may_add_callbacks_and_only_callables_are_taken(rig: Rig) -> None:
    seen: list[str] = []

    @rig.task()
    async def work(ctx: Context) -> None:
        def more() -> None:
            seen.append("more")
            ctx.on_cleanup(seen.append, "and more")

        ctx.on_cleanup(more)
        with pytest.raises(InvalidInput, match="NoneType cannot be called"):
            ctx.on_cleanup(None)  # type: ignore[arg-type]

    id = await rig.enqueue("work")
    await rig.worker().drain()
    assert await rig.state(id) is State.COMPLETED
    assert seen == ["more", "and more"]


async def test_a_callback_that_hangs_is_bounded_by_the_time_of_the_attempt(rig: Rig) -> None:
    async def hangs() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    ended = asyncio.Event()

    @rig.task(policy=ONCE)
    async def work(ctx: Context) -> str:
        ctx.on_cleanup(hangs)
        return "known"

    id = await rig.enqueue("work", timeout=0.05)
    began = time.monotonic()
    await rig.worker().drain()
    assert time.monotonic() - began < 10
    assert ended.is_set()
    assert await rig.result(id) == "known"  # the handler was in time


async def test_a_callback_that_hangs_in_a_thread_keeps_the_attempt_until_it_has_ended(
    rig: Rig,
) -> None:
    stuck = threading.Event()

    @rig.task(policy=ONCE)
    def blocks(ctx: Context) -> None:
        ctx.on_cleanup(stuck.wait, 30)

    id = await rig.enqueue("blocks", timeout=0.05)
    worker = rig.worker()
    draining = asyncio.create_task(worker.drain())
    await until(lambda: worker.runner.overdue[0] == 1)
    assert await rig.state(id) is State.RUNNING
    stuck.set()
    await draining
    assert await rig.state(id) is State.COMPLETED  # the handler was in time
