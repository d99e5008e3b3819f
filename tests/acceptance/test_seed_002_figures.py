"""What the document of a task queue with an HTTP API promises of its speed, on a real server.

Submission takes less than 10 ms (P95) and goes at 10,000 a second, a task is with a worker within
5 ms. Each is the best of several rounds: another process may take the processor during any.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator

import pytest

from fairlead import Fairlead
from tests.support.servers import server

pytestmark = [pytest.mark.serial, pytest.mark.slow]

ROUNDS = 5


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    """An app on a server that writes its file, as in production."""
    with server(aof=True) as running:
        async with Fairlead(running.url) as made:
            yield made


def told(what: str, unit: str, found: list[float]) -> None:
    """Show the figures of all rounds, for whoever looks."""
    print(f"{what}: {', '.join(f'{each:,.1f}' for each in found)} {unit}", file=sys.stderr)


async def test_a_submission_takes_less_than_ten_milliseconds(app: Fairlead) -> None:
    """Performance: submission < 10 ms, P95, one after the other."""
    work = app.task(name="work")(lambda n: n)
    rounds: list[float] = []
    for _ in range(ROUNDS):
        took: list[float] = []
        for number in range(200):
            began = time.perf_counter()
            await work.aenqueue(number)
            took.append((time.perf_counter() - began) * 1_000)
        rounds.append(statistics.quantiles(took, n=20)[-1])
    told("submission, P95", "ms", rounds)
    assert min(rounds) < 10.0


async def test_ten_thousand_tasks_are_submitted_in_a_second(app: Fairlead) -> None:
    """Performance: 10,000 submissions a second, in batches and by many callers at once."""
    work = app.task(name="work")(lambda n: n)
    batches: list[float] = []
    callers: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await app.aenqueue_many([work.call(number) for number in range(5_000)])
        batches.append(5_000 / (time.perf_counter() - began))
        began = time.perf_counter()
        await asyncio.gather(*(work.aenqueue(number) for number in range(5_000)))
        callers.append(5_000 / (time.perf_counter() - began))
    told("batches", "a second", batches)
    told("callers", "a second", callers)
    assert max(batches) > 10_000
    assert max(callers) > 10_000


async def test_a_task_is_with_a_worker_within_five_milliseconds(app: Fairlead) -> None:
    """Performance: fetch < 5 ms, from the enqueue to the start of the handler."""
    began: list[float] = []

    @app.task(name="work")
    async def work() -> None:
        began.append(time.perf_counter())

    rounds: list[float] = []
    async with app.worker(concurrency=10):
        await (await work.aenqueue()).aresult(timeout=30)  # connections are open now
        for _ in range(ROUNDS):
            took: list[float] = []
            for _ in range(40):
                enqueued = time.perf_counter()
                handle = await work.aenqueue()
                await handle.aresult(timeout=30)
                took.append((began[-1] - enqueued) * 1_000)
            rounds.append(statistics.median(took))
    told("fetch, median", "ms", rounds)
    assert min(rounds) < 5.0
