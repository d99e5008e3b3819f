"""What jobs are and what they meet: threads, sessions, breakers, priorities, correlation ids.

Sections 2, 5, 7, 8, 9 and 14 of the document that ``test_seed_004.py`` is about.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead import Backoff, Breaker, Context, Fairlead, Retry, correlation
from tests.acceptance.seed_004 import (  # noqa: F401 - some are fixtures
    PATIENCE,
    either_queue,
    nothing,
    nothing_said,
)
from tests.support.worker_process import until

# -- 2 and 9. Threads and items -----------------------------------------------------------------


async def test_many_threads_may_enqueue(queue: Fairlead) -> None:
    """2, threading: all may share the queue; nothing is lost, and each one's jobs keep their order.

    They call the plain forms, which need no event loop.
    """
    ran: list[tuple[int, int]] = []
    together = threading.Barrier(8)
    await queue.aconfigure_queue("default", max_waiting=None)

    @queue.task(name="job")
    async def job(thread: int, number: int) -> None:
        ran.append((thread, number))

    def enqueue(thread: int) -> None:
        together.wait(PATIENCE)
        for number in range(100):
            job.enqueue(thread, number)

    with ThreadPoolExecutor(8) as threads:
        done = [threads.submit(enqueue, thread) for thread in range(8)]
        await asyncio.gather(*map(asyncio.wrap_future, done))
    assert await queue.drain() == 800
    assert sorted(ran) == [(thread, number) for thread in range(8) for number in range(100)]
    for thread in range(8):
        assert [number for who, number in ran if who == thread] == list(range(100))


async def test_an_item_tells_when_it_was_enqueued_and_when_it_is_due(queue: Fairlead) -> None:
    """9, queue item: the job, its priority, enqueued_at and ready_at."""
    queue.task(name="job")(nothing)
    before = time.time()
    handle = await queue.registered("job").using(priority="low", delay=60).aenqueue()
    info = await handle.ainfo(arguments=True)
    assert (info.task, info.args, info.priority, info.state) == ("job", (), "low", "scheduled")
    assert info.due_at is not None
    assert abs(info.enqueued_at - before) < 10.0
    assert info.due_at - info.enqueued_at == pytest.approx(60, abs=0.1)


async def test_a_correlation_id_follows_the_job(queue: Fairlead) -> None:
    """9: correlation_id enables tracing across queue operations."""
    seen: list[str | None] = []

    @queue.task(name="job")
    async def job(context: Context) -> None:
        seen.append(context.correlation_id)

    with correlation("request-7"):
        await job.aenqueue()
    await job.using(correlation_id="request-8").aenqueue()
    await queue.drain()
    assert seen == ["request-7", "request-8"]


# -- 7. Sessions --------------------------------------------------------------------------------


async def test_each_job_has_a_session_of_its_own_which_is_closed(queue: Fairlead) -> None:
    """7, session management: a fresh session for each job, closed whatever happens."""
    sessions: list[str] = []

    @queue.around_run
    async def session(context: Context) -> AsyncIterator[None]:
        sessions.append("opened")
        try:
            yield
        finally:
            sessions.append("closed")

    @queue.task(name="job", max_retries=0)
    async def job(fails: bool) -> None:
        assert sessions[-1] == "opened"
        if fails:
            raise ValueError

    for fails in (False, True, False):
        await job.aenqueue(fails)
    await queue.drain()
    assert sessions == ["opened", "closed"] * 3


# -- 8. The breaker -----------------------------------------------------------------------------


async def test_an_open_breaker_preempts_the_call(queue: Fairlead) -> None:
    """8: CLOSED, OPEN for the cooldown, HALF_OPEN with probes; success resets, failures count.

    A job whose platform is down waits; it uses up no attempt.
    """
    breaker = Breaker(failures=2, cooldown=0.4, probes=1)
    is_up = False
    fetched: list[float] = []

    @queue.task(name="fetch", breaker=breaker, max_retries=5)
    async def fetch() -> str:
        fetched.append(time.monotonic())
        if not is_up:
            raise Retry(delay=0)
        return "matched"

    assert breaker.state == "closed"
    async with queue.worker(concurrency=1):
        handle = await fetch.aenqueue()
        await until(lambda: breaker.state == "open", "the breaker to open")
        assert len(fetched) == 2, "failures count"
        is_up = True
        assert await handle.aresult(timeout=PATIENCE) == "matched"
    assert len(fetched) == 3, "one probe"
    assert fetched[2] - fetched[1] >= 0.35, "denied until the cooldown was over"
    assert breaker.state == "closed", "success resets"


async def test_a_breaker_may_be_shared_by_all_workers(queue: Fairlead) -> None:
    """14, distributed breaker: its state is in the broker; what one worker learns holds for all."""
    fetched: list[str] = []
    is_up = False

    @queue.task(name="fetch", limiters=["platform"], backoff=Backoff(initial=0))
    async def fetch() -> None:
        fetched.append("up" if is_up else "down")
        if not is_up:
            raise ConnectionError("no answer")

    await queue.aconfigure_limiter(
        "platform", concurrency=1, failures=2, cooldown="300ms", probes=1
    )
    async with queue.worker(concurrency=2), queue.worker(concurrency=2):
        handles = await queue.aenqueue_many(fetch.call() for _ in range(6))
        await until(lambda: len(fetched) >= 2, "the first failures")
        assert (await queue.asnapshot()).limiters["platform"].state == "open"
        is_up = True
        for handle in handles:
            await handle.aresult(timeout=PATIENCE)
    assert fetched == ["down"] * 2 + ["up"] * 6
    assert (await queue.asnapshot()).limiters["platform"].state == "closed"


async def test_a_priority_may_be_worked_out_from_the_job(queue: Fairlead) -> None:
    """5 and 14, dynamic priority: a score of the job says how urgent it is."""
    ran: list[int] = []

    @queue.task(name="job", priority=lambda clicks: "high" if clicks > 1_000 else "low")
    async def job(clicks: int) -> None:
        ran.append(clicks)

    handles = [await job.aenqueue(clicks) for clicks in (10, 20, 5_000)]
    assert [(await handle.ainfo()).priority for handle in handles] == ["low", "low", "high"]
    await queue.drain()
    assert ran == [5_000, 10, 20]
