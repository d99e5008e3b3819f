"""``GET /metrics``: what the broker knows, within bounds, and the truth when it is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from fairlead import Backoff, Fairlead, Reject
from fairlead.api import metrics as module
from fairlead.api.auth.token_store import create_token
from fairlead.api.metrics import BrokerMetrics
from fairlead.broker.memory import MemoryBroker
from fairlead.telemetry import counters
from fairlead.telemetry.metrics import text_of
from fairlead.telemetry.metrics_table import METRICS
from tests.api.app import Api, open_api
from tests.support.servers import Running, server
from tests.telemetry.exposed import Samples, check_histograms, samples

NAMES = {metric.name: metric for metric in METRICS}


def row(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def token_of(app: Fairlead, *scopes: str, tenant: str | None = None) -> dict[str, str]:
    """A header with a new token."""
    made = await create_token(app._clients.current(), scopes=scopes, tenant=tenant)
    return {"Authorization": f"Bearer {made.text}"}


@asynccontextmanager
async def api_of(app: Fairlead, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of this machine who needs no token, unless the settings say so."""
    api = Api(app, **{"open_to_loopback": True, **settings})
    async with api.caller({}) as client:
        yield client
    await api.server.service.close()


async def scraped(client: httpx.AsyncClient) -> tuple[str, Samples]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return answer.text, samples(answer.text)


async def busy_app() -> Fairlead:
    """An app with tasks in most states, of several tenants."""
    app = Fairlead("memory://")
    await app.aconfigure_limiter("service", concurrency=2, failures=1, cooldown=60)

    @app.task(name="well", queue="mail")
    async def well() -> None: ...

    @app.task(name="badly", max_retries=1, backoff=Backoff(initial=60), limiters=["service"])
    async def badly(fatal: bool) -> None:
        raise Reject("no") if fatal else ValueError("again")

    for tenant in ("a", "b", "b"):
        await well.using(tenant=tenant).aenqueue()
    await badly.aenqueue(True)
    await app.drain()
    await badly.aenqueue(False)
    await app.drain()
    for tenant in ("a", "b", "b"):
        await well.using(tenant=tenant).aenqueue()
    await app.aconfigure_queue("mail", paused=True)
    return app


async def test_a_scrape_shows_queues_times_limiters_and_fairness() -> None:
    app = await busy_app()
    async with api_of(app) as client:
        text, found = await scraped(client)
    assert found[row("fairlead_broker_up")] == 1
    for part in ("snapshot", "stats", "workers", "tenants"):
        assert found[row("fairlead_scrape_success", part=part)] == 1
    depths = {("mail", "queued"): 3, ("mail", "completed"): 3, ("default", "dead"): 1}
    depths |= {("default", "retrying"): 1, ("mail", "running"): 0}
    for (queue, state), count in depths.items():
        assert found[row("fairlead_queue_depth", queue=queue, state=state)] == count
    assert found[row("fairlead_queue_paused", queue="mail")] == 1
    counts = {"enqueued": 6, "started": 3, "completed": 3, "failed": 0, "retried": 0, "fenced": 0}
    for what, count in counts.items():
        assert found[row(f"fairlead_tasks_{what}_total", queue="mail")] == count
    assert found[row("fairlead_tasks_retried_total", queue="default")] == 1
    assert found[row("fairlead_tasks_dead_total", queue="default")] == 1
    assert found[row("fairlead_task_wait_seconds_count", queue="mail")] == 3
    assert check_histograms(text) == 4  # nothing was released by a dependency
    assert found[row("fairlead_breaker_state", limiter="service", state="open")] == 1
    assert found[row("fairlead_breaker_state", limiter="service", state="closed")] == 0
    assert found[row("fairlead_breaker_failures", limiter="service")] >= 1
    assert found[row("fairlead_tenants_waiting", queue="mail")] == 2
    assert found[row("fairlead_fairness_index", queue="mail")] == pytest.approx(0.9)
    for priority, count in {"critical": 0, "high": 0, "normal": 3, "low": 0, "other": 0}.items():
        assert found[row("taskqueue_queue_depth", priority=priority)] == count
    assert found[row("taskqueue_dlq_size")] == 1
    assert found[row("taskqueue_active_workers")] == 0


async def test_a_scrape_shows_the_workers_there_are() -> None:
    app = Fairlead("memory://")
    async with app.worker(concurrency=7), api_of(app) as client:
        async with asyncio.timeout(5):
            while not await app.aworkers():  # noqa: ASYNC110 - its first heartbeat has no event
                await asyncio.sleep(0)
        _, found = await scraped(client)
    assert found[row("fairlead_workers", state="working")] == 1
    assert found[row("fairlead_workers", state="quiet")] == 0
    assert found[row("fairlead_slots")] == 7
    assert found[row("fairlead_slots_used")] == 0
    assert found[row("taskqueue_active_workers")] == 1


async def test_every_row_has_a_name_and_labels_of_the_table() -> None:
    async with api_of(await busy_app()) as client:
        _, found = await scraped(client)
    for name, labels in found:
        stem = name
        for suffix in ("_bucket", "_count", "_sum"):
            if name.removesuffix(suffix) in NAMES:
                stem = name.removesuffix(suffix)
        metric = NAMES[stem]
        assert {label for label, _ in labels} - {"le"} == set(metric.labels)
        assert metric.where in ("broker", "process")


async def test_tenants_are_named_only_on_request() -> None:
    app = await busy_app()
    name = "fairlead_tenant_queued_tasks"
    async with api_of(app) as client:
        text, found = await scraped(client)
        assert {value for key, value in found.items() if key[0] == name} == {1, 2}
        assert 'tenant="b"' not in text
    async with api_of(app, metrics_tenants=True) as client:
        text, _ = await scraped(client)
        assert 'tenant="b"' in text


async def test_at_most_ten_tenants_are_shown() -> None:
    app = Fairlead("memory://")

    @app.task
    async def work() -> None: ...

    for number in range(30):
        await work.using(tenant=f"tenant-{number}").aenqueue()
    async with api_of(app, metrics_tenants=True) as client:
        _, found = await scraped(client)
    shown = [labels for name, labels in found if name == "fairlead_tenant_queued_tasks"]
    assert len(shown) == 10
    assert {dict(labels)["rank"] for labels in shown} == {str(rank) for rank in range(1, 11)}


async def test_many_queues_and_limiters_share_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_QUEUES", 3)
    monkeypatch.setattr(module, "_MAX_LIMITERS", 2)
    app = Fairlead("memory://")

    @app.task
    async def work() -> None: ...

    for number in range(8):
        await work.using(queue=f"q{number}").aenqueue()
        await app.aconfigure_limiter(f"l{number}", concurrency=1)
    async with api_of(app) as client:
        _, found = await scraped(client)
    depths = {dict(labels)["queue"]: value for (name, labels), value in found.items()
              if name == "fairlead_tasks_enqueued_total"}  # fmt: skip
    assert depths == {"q0": 1, "q1": 1, "q2": 1, "other": 5}
    assert {dict(labels)["limiter"] for name, labels in found
            if name == "fairlead_limiter_used"} == {"l0", "l1", "other"}  # fmt: skip


async def test_every_metric_of_the_broker_can_be_seen() -> None:
    app = await busy_app()

    @app.task(name="next", queue="chain")
    async def following() -> None: ...

    first = following.call()
    await app.aenqueue_flow(first >> following.call())
    await app.drain(queues=["chain"])
    async with api_of(app) as client:
        text, _ = await scraped(client)
    for metric in METRICS:
        if metric.name.startswith(("fairlead_ledger_", "fairlead_recorder_")):
            continue  # tests/api/test_history.py
        if metric.where == "broker":
            assert f"# TYPE {metric.name} " in text, metric.name


async def test_the_oldest_task_of_a_queue_is_told_and_of_other_queues_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_QUEUES", 1)
    store = MemoryBroker(test_clock=True)
    app = Fairlead(store=store)

    @app.task
    async def work() -> None: ...

    now = 1_000_000.0
    for number in range(3):
        await store.promote(now=now + 10 * number)
        await work.using(queue=f"q{number}").aenqueue()
    await store.promote(now=now + 100)
    async with api_of(app) as client:
        _, found = await scraped(client)
    assert found[row("fairlead_queue_oldest_seconds", queue="q0")] == 100
    assert found[row("fairlead_queue_oldest_seconds", queue="other")] == 90


async def test_depth_is_told_by_priority_and_what_is_not_known_is_told_apart() -> None:
    app = Fairlead("memory://")

    @app.task
    async def work() -> None: ...

    for priority in ("critical", "low", "low"):
        await work.using(priority=priority).aenqueue()
    now = 0.0
    metrics = BrokerMetrics(app._clients.current, clock=lambda: now)
    expected = {"critical": 1, "high": 0, "normal": 0, "low": 2, "other": 0}
    for wait in (0.0, 5.0, 6.0):
        now += wait
        found = samples(text_of("", await metrics.read())[0].decode())
        for priority, count in expected.items():
            assert found[row("taskqueue_queue_depth", priority=priority)] == count
        if wait == 0.0:
            await work.using(priority="high").aenqueue()
            expected["other"] = 1  # tenants were read a moment ago
        else:
            expected |= {"high": 1, "other": 0}


async def test_what_the_api_enqueues_is_counted_by_type_and_priority() -> None:
    async with api_of(Fairlead("memory://")) as client:
        tasks = [{"task": "report", "priority": "critical"}, {"task": "report"}]
        for task in tasks:
            answer = await client.post("/api/v1/tasks", json={**task, "strict": False})
            assert answer.status_code == 201, answer.text
        batch = [{"task": "mail", "strict": False} for _ in range(3)]
        answer = await client.post("/api/v1/tasks/batch", json=batch)
        assert answer.status_code == 200, answer.text
        _, found = await scraped(client)
    expected = {("report", "critical"): 1, ("report", "normal"): 1, ("mail", "normal"): 3}
    for (name, priority), count in expected.items():
        key = row("taskqueue_tasks_submitted_total", type=name, priority=priority)
        assert found[key] == count


async def test_names_that_strangers_choose_do_not_grow_the_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counters, "MAX_TASKS", 5)
    async with api_of(Fairlead("memory://")) as client:
        batch = [{"task": f"name_{number}", "strict": False} for number in range(50)]
        await client.post("/api/v1/tasks/batch", json=batch)
        _, found = await scraped(client)
    name = "taskqueue_tasks_submitted_total"
    shown = {dict(labels)["type"]: value for (each, labels), value in found.items() if each == name}
    assert len(shown) == 6
    assert shown["other"] == 45


async def test_scrapes_within_a_second_share_a_read() -> None:
    app = Fairlead("memory://")

    @app.task
    async def work() -> None: ...

    now = 100.0
    metrics = BrokerMetrics(app._clients.current, clock=lambda: now)
    first = await asyncio.gather(*(metrics.read() for _ in range(20)))
    assert all(each is first[0] for each in first)
    await work.aenqueue()
    now += 0.9
    assert await metrics.read() is first[0]
    now += 0.2
    text = text_of("", await metrics.read())[0].decode()
    assert samples(text)[row("fairlead_queue_depth", queue="default", state="queued")] == 1


async def test_one_that_hangs_up_does_not_take_the_answer_from_others() -> None:
    metrics = BrokerMetrics(Fairlead("memory://")._clients.current)
    impatient = asyncio.ensure_future(metrics.read())
    patient = asyncio.ensure_future(metrics.read())
    await asyncio.sleep(0)
    impatient.cancel()
    assert text_of("", await patient)[0]


async def test_metrics_are_read_and_nothing_else() -> None:
    async with api_of(Fairlead("memory://")) as client:
        assert (await client.post("/metrics")).status_code == 405
        head = await client.head("/metrics")
        assert head.status_code == 200
        assert head.content == b""
        answer = await client.get(
            "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")


async def test_metrics_are_for_tokens_that_may_read_all_tenants() -> None:
    app = Fairlead("memory://")
    reads, submits = await token_of(app, "read"), await token_of(app, "submit", "manage")
    bound = await token_of(app, "read", "manage", tenant="acme")
    wrong = {"Authorization": reads["Authorization"][:-3] + "AAA"}
    async with api_of(app, open_to_loopback=False) as client:
        for headers, status in (
            (reads, 200),
            (submits, 403),
            (bound, 403),
            (wrong, 401),
            ({}, 401),
        ):
            answer = await client.get("/metrics", headers=headers)
            assert answer.status_code == status, headers
            assert ("fairlead_" in answer.text) == (status == 200)
        foreign = {**reads, "Host": "evil.example"}
        assert (await client.get("/metrics", headers=foreign)).status_code == 403


@pytest.fixture
def valkey() -> Iterator[Running]:
    with server("valkey") as running:
        yield running


async def test_a_broker_that_is_away_is_said_to_be_down_within_two_seconds(
    valkey: Running,
) -> None:
    app = Fairlead(valkey.url)

    @app.task(queue="mail")
    async def work() -> None: ...

    await work.aenqueue()
    now = 0.0
    metrics = BrokerMetrics(app._clients.current, clock=lambda: now)
    text = text_of("", await metrics.read())[0].decode()
    assert samples(text)[row("fairlead_broker_up")] == 1
    for away in (valkey.pause, valkey.kill):  # it hangs; it is gone
        away()
        now += 20.0
        began = time.monotonic()
        text = text_of("", await metrics.read())[0].decode()
        assert time.monotonic() - began < 2.0
        found = samples(text)
        assert found[row("fairlead_broker_up")] == 0
        for part in ("snapshot", "stats", "workers", "tenants"):
            assert found[row("fairlead_scrape_success", part=part)] == 0
        assert "mail" not in text, "what it said before is no answer now"
    valkey.restart()
    now += 20.0
    text = text_of("", await metrics.read())[0].decode()
    assert samples(text)[row("fairlead_broker_up")] == 1
    await app.aclose()


@pytest.mark.slow
async def test_a_known_token_learns_over_http_that_the_broker_is_away(valkey: Running) -> None:
    app = Fairlead(valkey.url)
    headers = await token_of(app, "read")
    async with api_of(app, open_to_loopback=False, patience=1.5) as client:
        assert (await client.get("/metrics", headers=headers)).status_code == 200
        await asyncio.sleep(2.0)  # until the API no longer trusts what it knows of the token
        valkey.pause()
        try:
            began = time.monotonic()
            answer = await client.get("/metrics", headers=headers)
            assert time.monotonic() - began < 2.0
            assert samples(answer.text)[row("fairlead_broker_up")] == 0
        finally:
            valkey.resume()
    await app.aclose()


async def test_strangers_cause_no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api() as (api, client):
        store, read = api.app._clients.store, 0
        real = store.snapshot

        async def snapshot(*args: Any, **options: Any) -> Any:
            nonlocal read
            read += 1
            return await real(*args, **options)

        monkeypatch.setattr(store, "snapshot", snapshot)
        async with api.caller({}) as stranger:
            assert (await stranger.get("/metrics")).status_code == 401
            wrong = {"authorization": f"Bearer fl_0123456789ab_{'x' * 43}"}
            assert (await stranger.get("/metrics", headers=wrong)).status_code == 401
        assert read == 0
        assert (await client.get("/metrics")).status_code == 200
        assert read > 0
