"""In which order jobs run: by priority, strictly, and those of one timestamp as they came.

Sections 2 and 5 of the document that ``test_seed_004.py`` is about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead import Fairlead, create_queue
from tests.support.servers import Running, shared
from tests.support.worker_process import until


@pytest.fixture
def valkey() -> Iterator[Running]:
    """A server that is empty."""
    with shared() as running:
        yield running


@pytest.fixture(params=["memory", "valkey"])
async def strict(request: pytest.FixtureRequest, valkey: Running) -> AsyncIterator[Fairlead]:
    """A queue as the document has it, in which no priority but the first has turns of its own."""
    settings = {
        "priorities": {"high": 0, "normal": 5, "low": 10},
        "strict_priorities": True,
        "use_redis": request.param == "valkey",
        "redis_url": valkey.url,
    }
    async with create_queue(settings) as app:
        yield app


async def test_jobs_run_strictly_by_number_and_then_as_they_came(strict: Fairlead) -> None:
    """5: (priority_value, seq); a label and its number are the same."""
    ran: list[str] = []

    @strict.task  # async: threads that begin in this order may run in another
    async def job(text: str) -> None:
        ran.append(text)

    labels = {"low": 10, "normal": 5, "high": 0}
    calls = [job.using(priority=label).call(f"{label}.{n}") for n in range(9) for label in labels]
    await strict.aenqueue_many(calls)
    for label, number in labels.items():
        await job.using(priority=number).aenqueue(f"{label}.9")
    assert await strict.drain() == 30
    assert ran == [f"{label}.{n}" for label in ("high", "normal", "low") for n in range(10)]
    shown = await (await job.using(priority=10, delay=60).aenqueue("x")).ainfo()
    assert shown.priority == "low"


@pytest.mark.parametrize("kind", ["memory", "valkey"])
async def test_jobs_of_one_timestamp_run_in_the_order_they_came(kind: str, valkey: Running) -> None:
    """2: seq orders jobs of the same priority and timestamp; whatever their ids."""
    ran: list[int] = []
    async with Fairlead("memory://" if kind == "memory" else valkey.url) as app:
        app.task(name="job")(ran.append)
        job = app.registered("job")
        await app.aenqueue_many(job.using(id=f"a{n}", delay=0.2).call(n) for n in range(100))
        await app.aenqueue_many(job.using(delay=0.3).call(n) for n in range(100, 200))
        async with app.worker(concurrency=1, threads=1):
            await until(lambda: len(ran) == 200, "all jobs to run")
    assert ran == list(range(200))
