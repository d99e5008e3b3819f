"""What a process counts of itself, and what an app of its own endpoint shows."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fairlead import Fairlead, Reject, Retry, Snooze
from fairlead.broker import connect
from fairlead.client import Clients
from fairlead.telemetry.counters import (
    MAX_QUEUES,
    MAX_ROWS,
    MAX_TASKS,
    OTHER,
    Counters,
    SpoolFigures,
    Totals,
)
from fairlead.telemetry.metrics import Exposition, Labels, add_counted, export, text_of
from fairlead.telemetry.metrics_table import METRICS
from fairlead.worker.process.child_totals import ChildTotals
from tests.telemetry.exposed import check_histograms, samples


def row(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def test_an_app_shows_what_it_enqueued_and_ran() -> None:
    app = Fairlead("memory://")
    registry = CollectorRegistry()

    @app.task(name="work", priority="high")
    async def work(how: str) -> None:
        if how == "retry":
            raise Retry(delay=60)
        if how == "reject":
            raise Reject("no")
        if how == "snooze":
            raise Snooze(60)

    await work.aenqueue("before")  # nobody had asked to count
    await app.drain()
    export(app, registry)
    await work.aenqueue("well")
    await work.using(priority="low").aenqueue("reject")
    await app.aenqueue_many([work.call("retry"), work.call("snooze")])
    await work.using(id="mine").aenqueue("well")
    await work.using(id="mine").aenqueue("well")  # a duplicate
    await app.drain()
    text = generate_latest(registry).decode()
    found = samples(text)
    submitted = "taskqueue_tasks_submitted_total"
    assert found[row(submitted, type="work", priority="high")] == 4
    assert found[row(submitted, type="work", priority="low")] == 1
    ended = {"completed": 2, "failed": 1, "dead_letter": 1}
    for status, count in ended.items():
        key = row("taskqueue_tasks_completed_total", type="work", status=status)
        assert found[key] == count
    outcomes = {"completed": 2, "retried": 1, "dead": 1, "snoozed": 1}
    for outcome, count in outcomes.items():
        key = row("fairlead_attempts_total", queue="default", task="work", outcome=outcome)
        assert found[key] == count
    assert found[row("taskqueue_task_duration_seconds_count", type="work")] == 4
    assert check_histograms(text) == 1
    with pytest.raises(ValueError, match="Duplicated"):
        export(app, registry)


async def test_members_of_a_flow_count_as_submitted() -> None:
    app = Fairlead("memory://")
    app.counters.begin()

    @app.task(name="step")
    async def step(number: int) -> None: ...

    await app.aenqueue_flow(step.call(1) >> step.call(2))
    assert app.counters.counted().submitted == {("step", 2): 2}


def test_names_of_strangers_are_bounded() -> None:
    counters, totals = Counters(), Totals()
    for number in range(MAX_TASKS + 50):
        counters.submitted([(f"task-{number}", 2)])
        for queue in range(30):
            counters.attempted(f"queue-{number}-{queue}", f"task-{number}", "completed", 0.1)
    counted = counters.counted()
    assert len(counted.submitted) == MAX_TASKS + 1
    assert counted.submitted[OTHER, 2] == 50
    assert len({queue for queue, _, _ in counted.attempts}) == MAX_QUEUES + 1
    assert len(counted.attempts) <= MAX_ROWS + 1
    assert sum(counted.attempts.values()) == 30 * (MAX_TASKS + 50)
    assert len(counted.runs) == MAX_TASKS + 1
    again = totals.of([counted, counted])
    assert len(again.attempts) <= MAX_ROWS + 1
    assert sum(again.attempts.values()) == 2 * 30 * (MAX_TASKS + 50)
    assert sum(again.submitted.values()) == 2 * (MAX_TASKS + 50)


def test_a_row_keeps_its_name_whatever_comes_first() -> None:
    first, second, totals = Counters(), Counters(), Totals()
    for number in range(150):
        first.submitted([(f"a-{number}", 2)])
        second.submitted([(f"b-{number}", 2)])
    before = totals.of([first.counted(), second.counted()])
    after = totals.of([second.counted(), first.counted()])
    assert before.submitted == after.submitted


def test_a_label_stays_for_as_long_as_its_name_is_there() -> None:
    labels = Labels(2)
    assert labels.of(["m", "z"]) == {"m": "m", "z": "z"}
    assert labels.of(["a", "m", "z"]) == {"a": OTHER, "m": "m", "z": "z"}
    assert labels.of(["a", "z"]) == {"a": "a", "z": "z"}


def test_rows_with_the_same_labels_are_added_up() -> None:
    exposition = Exposition()
    for name in ("one", "two"):
        exposition.add("fairlead_queue_paused", 1, queue=OTHER)
        exposition.histogram("fairlead_task_run_seconds", (1.0,), (1, 2), 9.5, queue=OTHER)
        exposition.add("fairlead_tasks_dead_total", 3, queue=name)
    text = text_of("", exposition)[0].decode()
    found = samples(text)
    assert found[row("fairlead_queue_paused", queue=OTHER)] == 2
    assert found[row("fairlead_task_run_seconds_count", queue=OTHER)] == 6
    assert found[row("fairlead_task_run_seconds_sum", queue=OTHER)] == 19
    assert check_histograms(text) == 1


def test_a_metric_with_other_labels_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="fairlead_queue_paused"):
        Exposition().add("fairlead_queue_paused", 1, tenant="t")


def test_open_metrics_are_written_for_those_who_ask_for_them() -> None:
    counters = Counters()
    counters.attempted("default", "work", "completed", 0.1)
    exposition = Exposition()
    add_counted(exposition, counters.counted())
    text, kind = text_of("application/openmetrics-text; version=1.0.0, text/plain", exposition)
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_names_follow_the_rules_of_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.name.startswith(("fairlead_", "taskqueue_"))
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name


def test_a_forked_child_counts_from_zero_and_goes_on() -> None:
    clients = Clients(connect("memory://"))
    clients.counters.begin()
    clients.counters.submitted([("work", 2)])
    clients._renew()  # what a fork calls in the child
    assert clients.counters.on
    assert clients.counters.counted().submitted == {}


async def test_two_threads_count_together() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(2_000):
            counters.submitted([("work", 2)])

    await asyncio.gather(*(asyncio.to_thread(count) for _ in range(4)))
    assert counters.counted().submitted == {("work", 2): 8_000}


def shown(*counters: Counters) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    exposition = Exposition()
    add_counted(exposition, Totals().of(each.counted() for each in counters))
    return samples(text_of("", exposition)[0].decode())


def test_spools_of_several_processes_are_added_up_and_the_oldest_of_them_is_told() -> None:
    first, second = Counters(), Counters()
    now = time.time()
    first.observe_spool(
        lambda: SpoolFigures(
            state="spooling", depth=3, bytes=300, oldest_at=now - 100, rejected=1, fenced=2
        )
    )
    second.observe_spool(
        lambda: SpoolFigures(state="draining", depth=4, bytes=400, oldest_at=now - 50, fenced=5)
    )
    found = shown(first, second)
    states = {"healthy": 0, "suspect": 0, "spooling": 1, "draining": 1}
    for state, count in states.items():
        assert found[row("fairlead_broker_state", state=state)] == count
    assert found[row("fairlead_spool_depth")] == 7
    assert found[row("fairlead_spool_bytes")] == 700
    assert found[row("fairlead_spool_oldest_seconds")] == pytest.approx(100, abs=30)
    assert found[row("fairlead_spool_rejected")] == 1
    assert found[row("fairlead_outcomes_fenced_total")] == 7


def test_an_empty_spool_has_no_oldest_and_without_a_fallback_there_is_none() -> None:
    counters = Counters()
    assert not [name for name, _ in shown(counters) if "spool" in name or "state" in name]
    counters.observe_spool(SpoolFigures)
    found = shown(counters)
    assert found[row("fairlead_spool_oldest_seconds")] == 0
    assert found[row("fairlead_broker_state", state="healthy")] == 1


def test_what_an_ended_process_had_on_disk_is_not_told_again() -> None:
    past = ChildTotals()
    counters = Counters()
    counters.observe_spool(lambda: SpoolFigures(state="spooling", depth=3, fenced=2))
    past.add(cast(Any, SimpleNamespace(counters={}, counted=counters.counted())))
    assert past.counted.spools == ()
    assert past.counted.fenced == 2
