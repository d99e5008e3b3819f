"""What the document of a queue with a fallback promises, section after section.

It describes jobs with priorities and delays, on Redis if that is there and in memory if not, with
one worker thread. Tests whose parameter is a broker run in memory and on a real server; servers are
killed with signal 9, and workers and producers are processes of their own where that matters. The
docstring of a test names the section and the promise. Where Fairlead keeps it in another way, or
keeps more, the docstring says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead import (
    Context,
    Fairlead,
    InvalidInput,
    QueueFull,
    Refused,
    Retry,
    UnknownPriority,
    create_queue,
)
from tests.acceptance.seed_004 import (  # noqa: F401 - some are fixtures
    PATIENCE,
    QueueSettings,
    durable_server,
    either_queue,
    nothing,
    nothing_said,
    queue_of,
    state_of,
    warned,
)
from tests.api.app import Api, problem
from tests.support.servers import Running, free_port, server
from tests.support.worker_process import until

# -- 2.1 Initialization -------------------------------------------------------------------------


def test_redis_is_used_where_it_is_wanted_installed_and_answers(
    valkey: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """2.1, create_queue(): configuration, dependency, connection; then Redis is used."""
    with queue_of(QueueSettings(use_redis=True, redis_url=valkey.url)) as app:
        assert app.snapshot().redis_active
        assert state_of(app) == "healthy", "the fallback is on"
    assert warned(caplog) == []


def test_redis_that_is_not_wanted_is_not_asked_for(
    valkey: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """2.1, configuration check: use_redis is false; in memory, without a warning."""
    with queue_of(QueueSettings(use_redis=False, redis_url=valkey.url)) as app:
        assert not app.snapshot().redis_active
    assert warned(caplog) == []


def test_a_server_that_does_not_answer_leaves_the_queue_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """2.1, connection test: Redis unavailable, one warning, and jobs run in memory."""
    settings = QueueSettings(use_redis=True, redis_url=f"redis://127.0.0.1:{free_port()}/0")
    settings.redis_health_check_timeout = 0.3
    ran: list[int] = []
    began = time.monotonic()
    with create_queue(settings) as app:
        assert time.monotonic() - began < 5.0
        app.task(name="job")(ran.append)
        app.registered("job").enqueue(1)
        asyncio.run(app.drain())
        assert not app.snapshot().redis_active
    assert ran == [1]
    [line] = warned(caplog)
    assert "gave no answer within 0.3 s" in line
    assert "tasks are kept in memory" in line


def test_without_the_package_the_queue_is_in_memory(valkey: Running, tmp_path: Path) -> None:
    """2.1, dependency check: the package is not installed, one warning, jobs run in memory."""
    program = """
import asyncio, logging, sys
sys.modules["redis"] = None  # as if it was not installed
logging.basicConfig(format="%(levelname)s %(message)s")
from fairlead import create_queue
app = create_queue()
ran = []
app.task(name="job")(ran.append)
app.registered("job").enqueue(1)
asyncio.run(app.drain())
print(ran, app.snapshot().redis_active)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "USE_REDIS_QUEUE": "true", "REDIS_URL": valkey.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[1] False\n", done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("WARNING the package redis is not installed")


# -- 3. Enqueue ---------------------------------------------------------------------------------


async def test_due_jobs_are_ready_and_others_scheduled(queue: Fairlead) -> None:
    """3: ready_at = now + delay; what is due goes to the ready queue, the rest to the scheduled."""
    queue.task(name="job")(nothing)
    job = queue.registered("job")
    await job.aenqueue()
    await job.using(delay=0).aenqueue()
    await job.using(delay=60).aenqueue()
    found = await queue.asnapshot()
    assert (found.ready, found.scheduled, found.depth) == (2, 1, 3)


async def test_an_enqueue_is_checked(queue: Fairlead) -> None:
    """3, validation: the priority exists, there is room, the queue was not shut down."""
    queue.task(name="job")(nothing)
    job = queue.registered("job")
    with pytest.raises(UnknownPriority, match="urgent"):
        await job.using(priority="urgent").aenqueue()
    await queue.aenqueue_many(job.call() for _ in range(99))
    await job.using(delay=60).aenqueue()  # what is scheduled counts as well
    with pytest.raises(QueueFull, match="100"):
        await job.aenqueue()
    await queue.aclose()
    with pytest.raises(Refused) as caught:
        await job.aenqueue()
    assert caught.value.cause == "closed"
    assert (await queue.asnapshot()).shutdown


# -- 4. Dequeue ---------------------------------------------------------------------------------


async def test_jobs_of_one_priority_run_in_the_order_they_came(queue: Fairlead) -> None:
    """2 and 4: the sequence number makes it first in, first out, also of jobs due at one moment."""
    ran: list[int] = []
    queue.task(name="job")(ran.append)
    job = queue.registered("job")
    await queue.aenqueue_many(job.using(delay=0.3).call(n) for n in range(20, 40))
    for number in range(20):
        await job.aenqueue(number)
    async with queue.worker(concurrency=1, threads=1):
        await until(lambda: len(ran) == 40, "all jobs to run")
    assert ran == list(range(40))


async def test_a_worker_that_waits_is_woken_by_new_and_by_due_jobs(queue: Fairlead) -> None:
    """4: a blocking dequeue waits for new items or for scheduled ones, without busy polling."""
    began: list[float] = []

    @queue.task(name="job")
    async def job() -> None:
        began.append(time.monotonic())

    async with queue.worker(concurrency=1):
        await asyncio.sleep(0.3)  # it waits for work
        spent, enqueued = time.process_time(), time.monotonic()
        await job.using(delay=0.5).aenqueue()
        await job.aenqueue()
        await until(lambda: len(began) == 2, "both jobs to run")
        spent = time.process_time() - spent
    assert began[0] - enqueued < 0.3
    assert began[1] - enqueued >= 0.48
    assert began[1] - enqueued < 1.5
    assert spent < 0.4, "it does not poll"


async def test_a_job_of_the_future_holds_up_no_other(queue: Fairlead) -> None:
    """1 and 13: a high priority in the future does not starve what is due now."""
    ran: list[str] = []
    queue.task(name="job")(ran.append)
    job = queue.registered("job")
    await job.using(priority="high", delay=60).aenqueue("later")
    await job.using(priority="low").aenqueue("now")
    assert await queue.drain() == 1
    assert ran == ["now"]


# -- 5. Priorities ------------------------------------------------------------------------------


async def test_a_lower_number_goes_first(queue: Fairlead) -> None:
    """5: labels stand for numbers, the lower one has the higher priority, the default is normal.

    high, normal and low share a worker 6 to 1 to 1 while all of them wait, so that none starves; in
    the document the lower number goes strictly first.
    """
    ran: list[str] = []
    queue.task(name="job")(ran.append)
    job = queue.registered("job")
    for label in ("low", "normal", "high"):
        await queue.aenqueue_many(job.using(priority=label).call(label) for _ in range(10))
    await job.using(priority=0).aenqueue("high")  # the number of high
    await job.aenqueue("normal")
    async with queue.worker(concurrency=1, threads=1):
        await until(lambda: len(ran) == 32, "all jobs to run")
    assert ran[0] == "high"
    assert Counter(ran[:12])["high"] >= 8
    assert Counter(ran) == {"high": 11, "normal": 11, "low": 10}
    assert (await (await job.using(delay=60).aenqueue("x")).ainfo()).priority == "normal"


# -- 6. Delays ----------------------------------------------------------------------------------


async def test_a_rate_limited_platform_backs_off_by_itself(queue: Fairlead) -> None:
    """6: retry of missing data, throttling, and a delay that is computed after a rate limit."""
    began: list[float] = []

    @queue.task(name="job")
    async def job() -> None:
        began.append(time.monotonic())
        if len(began) < 3:
            raise Retry(delay=0.1 * len(began))

    async with queue.worker():
        handle = await job.aenqueue()
        await handle.aresult(timeout=PATIENCE)
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert gaps[0] >= 0.09
    assert gaps[1] >= 0.19


async def test_an_affiliate_that_floods_is_throttled_alone(queue: Fairlead) -> None:
    """16: rate limiting per affiliate."""
    ran: list[tuple[str, float]] = []

    @queue.task(name="job")
    async def job(affiliate: str) -> None:
        ran.append((affiliate, time.monotonic()))

    await queue.aconfigure_tenant("flood", rate=5, burst=1)
    await queue.aenqueue_many(job.using(tenant="flood").call("flood") for _ in range(4))
    await queue.aenqueue_many(job.using(tenant="quiet").call("quiet") for _ in range(4))
    async with queue.worker(concurrency=1):
        await until(lambda: len(ran) == 8, "all jobs to run")
    at = {name: [moment for who, moment in ran if who == name] for name in ("flood", "quiet")}
    assert at["flood"][-1] - at["flood"][0] >= 0.5
    assert at["quiet"][-1] < at["flood"][-1]


# -- 7. The worker ------------------------------------------------------------------------------


async def test_one_thread_runs_all_jobs_and_lives_through_their_errors(
    queue: Fairlead, caplog: pytest.LogCaptureFixture
) -> None:
    """7: a single thread; exceptions are caught and logged; 12: they are kept for tests to see."""
    threads: set[int] = set()

    @queue.task(name="reconcile", max_retries=0)
    def reconcile(report: int) -> None:
        threads.add(threading.get_ident())
        if report == 101:
            raise LookupError("no such report")

    async with queue.worker(concurrency=1, threads=1):
        handles = [await reconcile.aenqueue(report) for report in (100, 101, 102)]
        await handles[2].aresult(timeout=PATIENCE)
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    [raised] = queue.exceptions
    assert raised.task_id == handles[1].id
    assert (type(raised.exception).__name__, str(raised.exception)) == (
        "LookupError", "no such report",
    )  # fmt: skip
    assert any(record.levelname == "ERROR" for record in caplog.records)
    assert await handles[1].astate() == "dead", "13: a dead letter, not a silent end"


async def test_a_worker_that_stops_may_empty_the_queue_first(queue: Fairlead) -> None:
    """7, shutdown: the worker exits when the queue is empty; what is due later stays.

    A worker that is not told to leaves what waits to the next one.
    """
    ran: list[int] = []
    queue.task(name="job")(ran.append)
    job = queue.registered("job")
    await queue.aenqueue_many(job.call(number) for number in range(50))
    await job.using(delay=60).aenqueue(50)
    async with queue.worker(concurrency=1, threads=1) as worker:
        await worker.stop(drain=True)
    assert ran == list(range(50))
    found = await queue.asnapshot()
    assert (found.ready, found.scheduled) == (0, 1)


# -- 10 and 11. Purge, inspection ----------------------------------------------------------------


async def test_purge_clears_both_queues(queue: Fairlead) -> None:
    """10: purge() clears what is ready and what is scheduled."""
    queue.task(name="job")(nothing)
    job = queue.registered("job")
    await queue.aenqueue_many([job.call(), job.call(), job.using(delay=60).call()])
    assert await queue.apurge() == 3
    found = await queue.asnapshot()
    assert (found.depth, found.ready, found.scheduled) == (0, 0, 0)


def test_a_snapshot_has_the_five_figures(valkey: Running) -> None:
    """11: depth, ready, scheduled, shutdown and redis_active, on Redis and without it.

    While the server is away the snapshot answers with what this process knows.
    """
    names = ("depth", "ready", "scheduled", "shutdown", "redis_active")

    def figures(app: Fairlead) -> dict[str, Any]:
        found = app.snapshot()
        return {name: getattr(found, name) for name in names}

    for settings in (
        QueueSettings(use_redis=True, redis_url=valkey.url),
        QueueSettings(use_redis=False),
    ):
        with queue_of(settings) as app:
            app.task(name="job")(nothing)
            job = app.registered("job")
            job.enqueue()
            job.using(delay=60).enqueue()
            expected = {
                "depth": 2,
                "ready": 1,
                "scheduled": 1,
                "shutdown": False,
                "redis_active": settings.use_redis,
            }
            assert figures(app) == expected
            if settings.use_redis:
                valkey.kill()
                assert job.enqueue().durability == "spooled"
                away = figures(app)
                assert (away["depth"], away["redis_active"], away["shutdown"]) == (1, False, False)
        assert app.snapshot().shutdown or settings.use_redis


# -- 13. Capacity -------------------------------------------------------------------------------


async def test_a_full_queue_is_told_to_callers_of_the_api(queue: Fairlead) -> None:
    """13: the capacity guard, with back-pressure as 429 over HTTP."""
    queue.task(name="job")(nothing)
    await queue.aenqueue_many(queue.registered("job").call() for _ in range(100))
    api = Api(queue)
    async with api.caller() as caller:
        answer = await caller.post("/api/v1/tasks", json={"task": "job"})
        told = problem(answer, 429, "queue-full")
        assert (told["field"], told["rule"]) == ("max_waiting", "100")
        assert int(answer.headers["retry-after"]) >= 1
    await api.server.service.close()


async def test_a_long_backlog_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """19: warn_depth is a threshold for logging."""
    app = queue_of(QueueSettings(use_redis=False, warn_depth=3))
    app.task(name="job")(nothing)
    async with app, app.worker():
        await app.aconfigure_queue("default", paused=True)
        await app.aenqueue_many(app.registered("job").call() for _ in range(5))
        await until(lambda: bool(warned(caplog)), "the line of the log")
    assert "the queue default reached its warn_depth" in warned(caplog)[0]


# -- 15. Instrumentation ------------------------------------------------------------------------


async def test_the_metrics_of_the_roadmap_are_there(valkey: Running) -> None:
    """15: depth, latency, duration, failures, breaker state and Redis health, for Prometheus."""
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    app.task(name="job")(nothing)
    api = Api(app, patience=3.0)
    await app.aconfigure_limiter("platform", failures=3)
    async with api.caller() as caller:
        await caller.post("/api/v1/tasks", json={"task": "job"})
        await app.drain()
        text = (await caller.get("/metrics")).text
        for name in (
            "fairlead_queue_depth",
            "fairlead_task_wait_seconds_bucket",
            "fairlead_task_run_seconds_bucket",
            "fairlead_tasks_failed_total",
            "fairlead_breaker_state",
            "fairlead_broker_up 1",
            'fairlead_broker_state{state="healthy"} 1',
        ):
            assert name in text
    await api.server.service.close()
    await app.aclose()


# -- 17 and 18. The two timelines ---------------------------------------------------------------


@pytest.mark.serial
async def test_the_timeline_of_a_normal_flow(valkey: Running) -> None:
    """17: enqueue; 2 ms later the worker has it; the work; then the queue is empty and waits."""
    app = queue_of(QueueSettings(use_redis=True, redis_url=valkey.url))
    began: list[float] = []

    @app.task(name="reconcile")
    async def reconcile(report: int) -> str:
        began.append(time.monotonic())
        await asyncio.sleep(0.118)
        return "MATCHED"

    async with app, app.worker(concurrency=1):
        await (await reconcile.aenqueue(100)).aresult(timeout=PATIENCE)  # connections are open now
        waits = []
        for report in range(101, 106):
            enqueued = time.monotonic()
            handle = await reconcile.aenqueue(report)
            assert await handle.aresult(timeout=PATIENCE) == "MATCHED"
            waits.append(began[-1] - enqueued)
            assert time.monotonic() - enqueued < 1.0
        found = await app.asnapshot()
        assert (found.depth, found.running) == (0, 0)
    assert min(waits) < 0.05, waits


async def test_the_timeline_of_a_delayed_retry(queue: Fairlead) -> None:
    """18: attempt 1 finds nothing; it is scheduled, promoted when it is due, and attempt 2 runs.

    The document leaves that to a scheduler to come. Here the queue does it by itself, and a
    scheduler of one's own may still enqueue with what remains of a delay.
    """
    found: list[tuple[str, float]] = []

    @queue.task(name="reconcile")
    async def reconcile(context: Context, by: str) -> str:
        found.append((by, time.monotonic()))
        if by == "queue" and context.attempt == 1:
            raise Retry(delay=0.4)
        return "MATCHED"

    async with queue.worker():
        handle = await reconcile.aenqueue("queue")
        await until(lambda: len(found) == 1, "the first attempt")
        scheduled_retry_at = found[0][1] + 0.4
        remaining = scheduled_retry_at - time.monotonic()
        other = await reconcile.using(delay=max(remaining, 0.0)).aenqueue("scheduler")
        assert await other.astate() == "scheduled"
        assert await handle.aresult(timeout=PATIENCE) == "MATCHED"
        assert await other.aresult(timeout=PATIENCE) == "MATCHED"
    assert sorted(by for by, _ in found[1:]) == ["queue", "scheduler"]
    assert all(at >= scheduled_retry_at - 0.05 for _, at in found[1:])


# -- 19 and 20. Configuration -------------------------------------------------------------------


def test_every_key_of_the_configuration_is_understood_and_others_are_named(
    valkey: Running,
) -> None:
    """19: the keys of QUEUE_SETTINGS; an unknown one is an error that names the closest."""
    settings = {
        "priorities": {"high": 0, "normal": 5, "low": 10},
        "max_in_memory": 10_000,
        "warn_depth": 1_000,
        "use_redis": True,
        "redis_url": valkey.url,
        "redis_ready_key": "affiliate:ready_queue",
        "redis_scheduled_key": "affiliate:scheduled_jobs",
        "redis_health_check_timeout": 2.0,
    }
    with create_queue(settings) as app:
        assert app.snapshot().redis_active
    with pytest.raises(InvalidInput, match=r"'max_in_memroy'; did you mean max_in_memory\?"):
        create_queue({**settings, "max_in_memroy": 1})
    keys = [key for key in valkey.admin("KEYS", "*") if not key.startswith(b"fl1:")]
    assert keys == [], "all keys begin with one prefix, whatever the two settings say"


def certify(folder: Path) -> None:
    """Make a key, and a certificate of its own making."""
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=fl"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *made.split(), *files], cwd=folder, check=True, capture_output=True)


@contextlib.asynccontextmanager
async def over_tls(running: Running, folder: Path) -> AsyncIterator[str]:
    """Where something speaks TLS in front of a server: host, port, and who vouches for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    ends: list[asyncio.StreamWriter] = []
    served: list[asyncio.Task[Any] | None] = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        ends.append(writer)
        back, forth = await asyncio.open_connection("127.0.0.1", running.port)
        ends.append(forth)
        await asyncio.gather(passed(reader, forth), passed(back, writer))

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(met, "127.0.0.1", 0, ssl=context) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}/0?ca={folder / 'cert.pem'}"
    for end in ends:
        end.transport.abort()
    await asyncio.gather(*filter(None, served), return_exceptions=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_redis_is_reached_with_a_password_over_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """20.3, authentication and TLS: with the right ones Redis is used, and not without."""
    ran: list[int] = []
    certify(tmp_path)
    with server(password="hunter2", tcp=True) as running:
        async with over_tls(running, tmp_path) as place:
            for login, url in (
                ("right", f"rediss://:hunter2@{place}"),
                ("wrong", f"rediss://:hunter3@{place}"),
                ("stranger", f"rediss://:hunter2@{place.partition('?')[0]}"),
            ):
                settings = QueueSettings(
                    use_redis=True, redis_url=url, redis_health_check_timeout=5.0
                )
                async with await asyncio.to_thread(queue_of, settings) as app:
                    app.task(name="job")(ran.append)
                    await app.registered("job").aenqueue(len(ran))
                    await app.drain()
                    assert (await app.asnapshot()).redis_active == (login == "right")
    assert ran == [0, 1, 2]
    refused, unknown = warned(caplog)
    assert "refused the login" in refused
    assert "certificate" in unknown
    assert "hunter" not in caplog.text


def test_the_command_line_says_where_each_value_comes_from(tmp_path: Path) -> None:
    """20: what a deployment sets can be looked at; passwords are not shown."""
    (tmp_path / "fairlead.toml").write_text('fallback = "spool"\n')
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "config", "--json"],
        env={**os.environ, "FAIRLEAD_URL": "redis://:secret@hostname:6379/0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = json.loads(done.stdout)["settings"]
    assert found["url"]["value"] == "redis://hostname:6379"
    assert found["url"]["source"] == "FAIRLEAD_URL"
    assert found["fallback"]["source"] == str(tmp_path / "fairlead.toml")
    assert "secret" not in done.stdout + done.stderr
