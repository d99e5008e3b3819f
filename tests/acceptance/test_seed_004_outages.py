"""What the same document promises of an outage: the queue goes on, and nothing is lost.

See ``test_seed_004``. Its queue switches to memory; ours keeps tasks on disk and stays one queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fairlead import Backoff, UnknownTask, create_queue
from tests.acceptance.seed_004 import (  # noqa: F401 - some are fixtures
    PATIENCE,
    QueueSettings,
    durable_server,
    nothing,
    nothing_said,
    queue_of,
    state_of,
    warned,
)
from tests.api.app import Api
from tests.support.servers import Running
from tests.support.worker_process import WorkerProcess, environment_of, until

# -- 2.1 Fallback and recovery at run time ------------------------------------------------------


async def test_the_queue_goes_on_when_redis_goes_away_and_returns_to_it(
    valkey: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """2.1, automatic switching and recovery; 13, connection lost: no job is lost, none runs twice.

    Jobs of the downtime are on disk, not in memory, and are sent when the server is back. There is
    no health check before each operation.
    """
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    ran: Counter[int] = Counter()

    @app.task
    async def job(number: int) -> None:
        ran[number] += 1

    async with app, app.worker(concurrency=2):
        for number in range(10):
            await job.aenqueue(number)
        await until(lambda: len(ran) == 10, "the first jobs")
        valkey.kill()
        times = []
        for number in range(10, 40):
            began = time.monotonic()
            handle = await job.aenqueue(number)
            times.append(time.monotonic() - began)
            assert handle.durability == "spooled"
        assert sorted(times)[len(times) // 2] < 0.5, "callers do not wait for a broker that is away"
        assert not (await app.asnapshot()).redis_active
        valkey.start()
        await until(lambda: state_of(app) == "healthy", "the queue to return to Redis")
        handle = await job.aenqueue(40)
        assert handle.durability == "committed"
        await until(lambda: len(ran) == 41, lambda: f"all jobs to run: {len(ran)}", PATIENCE)
        assert (await app.asnapshot()).redis_active
    assert set(ran.values()) == {1}
    assert [line for line in warned(caplog) if "in memory" in line] == []
    assert len([line for line in warned(caplog) if "broker is away" in line]) == 1


async def test_all_that_redis_had_is_there_when_it_was_killed_and_started_again(
    valkey: Running,
) -> None:
    """1, restart resilience: what waits, is due later, is to be retried, or needs another job."""
    works = False

    async def job_of(name: str) -> str:
        if not works:
            raise ConnectionError
        return name

    async with queue_of(QueueSettings(use_redis=True, redis_url=valkey.url)) as app:
        job = app.task(name="job", backoff=Backoff(initial=0.5, jitter="none"))(job_of)
        handles = [await job.aenqueue("retrying")]
        await app.drain()
        works = True
        handles.append(await job.aenqueue("queued"))
        handles.append(await job.using(delay=0.5).aenqueue("scheduled"))
        handles.append(await job.using(depends_on=[handles[1]]).aenqueue("deferred"))
        names = ["retrying", "queued", "scheduled", "deferred"]
        assert [await handle.astate() for handle in handles] == names
        valkey.kill()
        valkey.start()
    async with queue_of(QueueSettings(use_redis=True, redis_url=valkey.url)) as again:
        again.task(name="job")(job_of)
        async with again.worker():
            found = [await again.handle(h.id).aresult(timeout=PATIENCE) for h in handles]
    assert found == names


async def test_jobs_of_the_downtime_are_processed_normally(
    valkey: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.1, data consistency: "Jobs enqueued during Redis downtime are stored ... and processed
    normally".

    Where the operator names their queue. They run in the process that took them, by their priority,
    and Redis gets to know how they ended when it is back: no worker runs them again. A job whose
    call was under way when Redis went away waits for it: it may have arrived there.
    """
    monkeypatch.setenv("FAIRLEAD_FALLBACK", "local")
    monkeypatch.setenv("FAIRLEAD_LOCAL_QUEUES", "default")
    monkeypatch.setenv("FAIRLEAD_LOCAL_CONCURRENCY", "1")
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    ran: list[str] = []

    @app.task(name="job")
    def job(name: str) -> str:
        ran.append(name)
        return f"{name} is done"

    async with app:
        await job.aenqueue("before")
        await app.drain()
        valkey.kill()
        lost = await job.aenqueue("lost")
        handles = {
            name: await job.using(priority=priority).aenqueue(name)
            for name, priority in (("a", "low"), ("b", "normal"), ("c", "high"), ("d", "normal"))
        }
        assert {each.durability for each in handles.values()} == {"spooled"}
        later = await job.using(delay=0.5, priority="low").aenqueue("later")
        for name, handle in handles.items():
            assert await handle.aresult(timeout=PATIENCE) == f"{name} is done"
        assert await later.aresult(timeout=PATIENCE) == "later is done"
        assert [name for name in ran[1:] if name != "lost"] == ["c", "b", "d", "a", "later"]
        assert state_of(app) == "spooling", "all that while Redis was away"
        valkey.start()
        async with app.worker():
            await until(lambda: state_of(app) == "healthy", "the queue to return to Redis")
            assert await lost.aresult(timeout=PATIENCE) == "lost is done"
            assert await handles["a"].astate() == "completed"
        found = await app.asnapshot()
        assert (found.redis_active, found.completed, found.depth) == (True, 7, 0)
    assert len(ran) == len(set(ran)) == 7


@pytest.mark.slow
async def test_jobs_of_the_downtime_survive_the_program_that_took_them(
    valkey: Running, tmp_path: Path
) -> None:
    """1, restart resilience; 20.6: jobs enqueued during downtime are safely stored.

    In the document they are in memory. Here the program is killed with signal 9 during the outage;
    the next one that uses the spool finds them.
    """
    program = """
import sys, time
from fairlead import create_queue
app = create_queue()
app.task(name="job")(print)
print(app.registered("job").using(durability="committed").enqueue(0).durability, flush=True)
sys.stdin.readline()
print([app.registered("job").enqueue(number).durability for number in (1, 2, 3)], flush=True)
time.sleep(60)
"""
    producer = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here meanwhile
        [sys.executable, "-c", program],
        env={
            **os.environ,
            **environment_of("seed-004"),
            "USE_REDIS_QUEUE": "true",
            "REDIS_URL": valkey.url,
        },
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert producer.stdin is not None
    assert producer.stdout is not None
    try:
        assert producer.stdout.readline() == "committed\n"
        valkey.kill()
        producer.stdin.write("\n")
        producer.stdin.flush()
        assert producer.stdout.readline() == "['spooled', 'spooled', 'spooled']\n"
    finally:
        producer.send_signal(signal.SIGKILL)
        producer.wait()
        producer.stdin.close()
        producer.stdout.close()
    valkey.start()
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    ran: Counter[int] = Counter()

    @app.task(name="job")
    async def job(number: int) -> None:
        ran[number] += 1

    async with app, app.worker():
        await job.aenqueue(4)
        await until(lambda: len(ran) == 5, lambda: f"all five to run: {ran}", PATIENCE)
    assert ran == Counter(range(5))


@pytest.mark.slow
async def test_a_worker_in_another_process_lives_through_the_outage(
    valkey: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14, several processes by the Redis queue; 20.2, the environment variables; 20.6, recovery."""
    (tmp_path / "jobs.py").write_text(
        "from fairlead import create_queue\n"
        "app = create_queue()\n"
        "@app.task(name='job')\n"
        "def job(number: int) -> None:\n"
        "    with open('ran', 'a') as file:\n"
        "        file.write(f'{number}\\n')\n"
    )
    said = {"USE_REDIS_QUEUE": "true", "REDIS_URL": valkey.url, "REDIS_HEALTH_CHECK_TIMEOUT": "2.0"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAIRLEAD_RUN_DIR", str(tmp_path / "run"))
    ran = tmp_path / "ran"
    ran.touch()

    def done() -> list[int]:
        return [int(line) for line in ran.read_text().split()]

    worker = WorkerProcess(tmp_path).start()
    try:
        await worker.ready()
        async with create_queue() as app:
            job = app.named("job", strict=True)
            deadline = time.monotonic() + PATIENCE
            while True:  # a worker is ready before it has told of its tasks
                try:
                    await job.aenqueue(0)
                    break
                except UnknownTask:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
            for number in range(1, 5):
                await job.aenqueue(number)
            await until(lambda: len(done()) == 5, "the jobs before the outage")
            valkey.kill()
            assert [(await job.aenqueue(n)).durability for n in range(5, 10)] == ["spooled"] * 5
            valkey.start()
            await until(lambda: len(done()) == 10, lambda: f"all to run: {done()}", PATIENCE)
        assert sorted(done()) == list(range(10))
        worker.signal(signal.SIGTERM)
        assert await worker.wait() == 0
    finally:
        worker.close()


async def test_the_downtime_has_a_capacity_too(
    valkey: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13, unbounded growth, also while Redis is away: 429 over HTTP, nothing is dropped."""
    monkeypatch.setenv("FAIRLEAD_SPOOL_MAX_COUNT", "3")
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    app.task(name="job")(nothing)
    api = Api(app, patience=3.0)
    async with api.caller() as caller:

        async def submit() -> int:
            return (await caller.post("/api/v1/tasks", json={"task": "job"})).status_code

        assert await submit() == 201
        valkey.kill()
        assert [await submit() for _ in range(4)] == [202, 202, 202, 429]
        valkey.start()
        await until(lambda: state_of(app) == "healthy", "the queue to return to Redis")
        assert await submit() == 201
        assert (await app.asnapshot()).ready == 5
    await api.server.service.close()
    await app.aclose()


async def test_a_delay_counts_from_the_call_also_through_an_outage(valkey: Running) -> None:
    """6 and 2.1: a job that was delayed while Redis was away is due when its caller said."""
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    began: list[float] = []

    @app.task(name="job")
    async def job() -> None:
        began.append(time.time())

    async with app:
        await job.aenqueue()
        await app.drain()
        valkey.kill()
        enqueued = time.time()
        assert (await job.using(delay=1.5).aenqueue()).durability == "spooled"
        valkey.start()
        async with app.worker():
            await until(lambda: len(began) == 2, "the delayed job", PATIENCE)
    assert 1.4 <= began[1] - enqueued < 3.5
