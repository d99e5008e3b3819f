"""Counters, histograms, the signal for autoscalers, health and the audit trail."""

from __future__ import annotations

import pytest

from fairlead.api.routes.autoscale import desired_workers
from fairlead.broker.requests import QueueChange
from fairlead.model.lifecycle import State
from tests.api.routes.site import Caller, Site


async def test_queues_tell_what_happened_and_how_long_it_took(s: Site, operator: Caller) -> None:
    await s.enqueue(4)
    await s.settle(await s.fetch(3), State.COMPLETED, run_time=0.5)
    found = await operator.get("/stats")
    (queue,) = found["queues"]
    assert found["window"] == "all"
    assert (queue["enqueued"], queue["started"], queue["completed"]) == (4, 3, 3)
    assert (queue["run"]["count"], queue["run"]["mean"], queue["run"]["p95"]) == (3, 0.5, 0.5)
    assert queue["wait"]["p50"] == 0.0
    await operator.problem(404, "GET", "/stats", queue="nothing")


async def test_histograms_are_cumulative(s: Site, operator: Caller) -> None:
    await s.enqueue(3)
    await s.settle(await s.fetch(3), State.COMPLETED, run_time=0.01)
    found = await operator.get("/stats/histograms", queue="default")
    run = next(each for each in found["histograms"] if each["name"] == "run")
    assert (run["count"], run["sum"]) == (3, pytest.approx(0.03))
    counts = [bucket["count"] for bucket in run["buckets"]]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    assert run["buckets"][-1]["le"] is None


async def test_a_tenant_gets_its_own_figures(s: Site, acme: Caller) -> None:
    await s.enqueue(2, tenant="acme")
    await s.enqueue(9, tenant="big")
    await s.enqueue(1, tenant="big", queue="secret")
    await s.settle(await s.fetch(11), State.COMPLETED, run_time=1.0)
    found = await acme.get("/stats")
    (queue,) = found["queues"]
    assert (found["window"], found["orphans"]) == ("hours", None)
    assert (queue["queue"], queue["enqueued"], queue["completed"]) == ("default", 2, 2)
    assert queue["failed"] is queue["wait"] is queue["run"] is None
    await acme.problem(404, "GET", "/stats", queue="secret")
    await acme.problem(403, "GET", "/stats/histograms")
    await acme.problem(403, "GET", "/autoscale")
    await acme.problem(403, "GET", "/audit")


async def test_a_queue_says_how_many_workers_it_should_have(s: Site, operator: Caller) -> None:
    await s.worker("w", queues=("default",), concurrency=5)
    await s.enqueue(1)
    await s.settle(await s.fetch(1), State.COMPLETED, run_time=6.0)
    await s.enqueue(102)
    await s.fetch(2)
    found = await operator.get("/autoscale", queue="default")
    (queue,) = found["queues"]
    assert (queue["backlog"], queue["running"], queue["run_seconds"]) == (100, 2, 6.0)
    assert (queue["concurrency"], queue["workers"]) == (5, 1)
    assert queue["desired"] == found["desired"] == 3  # (2 + 100 * 6 / 60) / 5
    assert found["backlog"] == 100
    few = await operator.get("/autoscale", queue="default", max=2)
    fast = await operator.get("/autoscale", queue="default", target=1, concurrency=1, max=10_000)
    assert (few["desired"], fast["desired"]) == (2, 602)
    await s.configure(QueueChange(queue="default", paused=True))
    assert (await operator.get("/autoscale"))["desired"] == 1  # for what runs
    await operator.problem(422, "GET", "/autoscale", target=0)
    await operator.problem(422, "GET", "/autoscale", max=2**70)
    await operator.problem(404, "GET", "/autoscale", queue="nothing")


async def test_the_oldest_task_says_how_long_it_waits(s: Site, operator: Caller) -> None:
    await s.enqueue()
    s.clock.go_on(90.0)
    await s.enqueue()
    assert (await operator.get("/autoscale"))["oldest_seconds"] == pytest.approx(90.0)
    assert (await operator.get("/queues"))["queues"][0]["oldest_seconds"] == pytest.approx(90.0)


@pytest.mark.parametrize(
    ("backlog", "running", "least", "most", "desired"),
    [(0, 0, 0, 9, 0), (0, 0, 2, 9, 2), (1, 0, 0, 9, 1), (0, 1, 0, 9, 1), (10**8, 0, 0, 9, 9)],
)
def test_the_number_of_workers_is_clamped(
    backlog: int, running: int, least: int, most: int, desired: int
) -> None:
    found = desired_workers(
        backlog=backlog,
        running=running,
        run_seconds=0.001,
        target=60,
        concurrency=10,
        least=least,
        most=most,
    )
    assert found == desired


async def test_health_has_findings_for_operators(s: Site, operator: Caller, acme: Caller) -> None:
    found = await operator.get("/health")
    assert found["status"] == "warn"  # it lives in memory
    assert "persistence" in [each["name"] for each in found["findings"]]
    assert (await acme.get("/health"))["findings"] == []


async def test_the_audit_trail_is_read_backwards_in_pages(s: Site, operator: Caller) -> None:
    await s.enqueue()
    for _ in range(3):
        await operator.ok("POST", "/queues/default/pause")
        await operator.ok("POST", "/queues/default/resume")
    first = await operator.get("/audit", limit=4)
    assert len(first["entries"]) == 4
    rest = await operator.get("/audit", limit=4, before=first["cursor"])
    assert (len(rest["entries"]), rest["cursor"]) == (2, None)
    numbers = [each["number"] for each in first["entries"] + rest["entries"]]
    assert numbers == sorted(numbers, reverse=True)
    reader = await s.caller("read")
    await reader.problem(403, "GET", "/audit")


async def test_a_tenant_does_not_push_out_what_operators_did(
    s: Site, operator: Caller, acme: Caller
) -> None:
    ids = await s.enqueue(6, tenant="acme")
    await operator.ok("POST", "/queues/default/pause")
    for id in ids[:3]:
        await acme.ok("POST", f"/tasks/{id}/cancel")
    await operator.ok("POST", "/queues/default/resume")
    cursor, seen = None, []
    while True:
        page = await operator.get(
            "/audit", limit=2, **({} if cursor is None else {"before": cursor})
        )
        seen += [(each["action"], each["tenant"]) for each in page["entries"]]
        if (cursor := page["cursor"]) is None:
            break
    cancelled = [("task.cancel", "acme")] * 3
    assert seen == [("queue.resume", None), *cancelled, ("queue.pause", None)]
    kept = [note.value for note in await s.store.notes("audit")]
    assert len(kept) == 2  # each trail keeps its last lines only, and the tenant's are in another
