"""``fairlead task`` and ``fairlead stats``: what they say, and their exit codes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fairlead import Fairlead
from tests.cli.running import answered, fairlead
from tests.support.servers import Running


def send(app: Fairlead) -> Any:
    @app.task(name="send", max_retries=0)
    async def send(to: str) -> None:
        raise ValueError(f"no mailbox {to}")

    return send


def run_all(app: Fairlead) -> None:
    asyncio.run(app.drain())


def test_explain_says_why_and_exits_with_0(app: Fairlead, valkey: Running) -> None:
    handle = send(app).using(tenant="acme", delay=60).enqueue("a@x")
    answer = fairlead("task", "explain", handle.id, "--url", valkey.url)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == f"{handle.id}  scheduled"
    assert lines[1].split(maxsplit=1)[0] == "scheduled"
    assert "no live worker serves queue 'default'" in lines[2]


def test_explain_for_programs(app: Fairlead, valkey: Running) -> None:
    handle = send(app).using(tenant="acme", id="order-7").enqueue("a@x")
    for args in (("order-7", "--tenant", "acme"), (handle.id,)):
        answer = answered("task", "explain", *args, "--json", FAIRLEAD_URL=valkey.url)
        report = json.loads(answer.stdout)
        assert (report["code"], report["state"], report["estimate"]) == (
            "no_worker",
            "queued",
            None,
        )
        assert report["reasons"][0]["fields"] == {"queue": "default", "workers": 0}


def test_a_task_that_nobody_knows(app: Fairlead, valkey: Running) -> None:
    answer = answered("task", "explain", "order-8", "--url", valkey.url)
    assert answer.returncode == 1
    assert "the broker does not know it" in answer.stdout
    answer = answered("task", "show", "order-8", "--url", valkey.url)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "order-8" in answer.stderr


def test_a_task_of_another_tenant_is_not_known(app: Fairlead, valkey: Running) -> None:
    handle = send(app).using(tenant="acme").enqueue("a@x")
    for command in ("explain", "show"):
        args = ("task", command, handle.id, "--url", valkey.url)
        answers = [answered(*args, *more) for more in ((), ("--tenant", "acme"), ("--tenant", "b"))]
        assert [answer.returncode for answer in answers] == [0, 0, 1]


def test_show_tells_all_that_is_known(app: Fairlead, valkey: Running) -> None:
    handle = send(app).enqueue("a@x")
    run_all(app)
    answer = answered("task", "show", handle.id, "--url", valkey.url)
    assert (answer.returncode, answer.stderr) == (0, "")
    for text in ("dead", "exhausted", "ValueError: no mailbox a@x", "Traceback"):
        assert text in answer.stdout
    report = json.loads(answered("task", "show", handle.id, "--json", "--url", valkey.url).stdout)
    assert (report["state"], report["attempts"], report["task"]) == ("dead", 1, "send")


def test_stats_tell_what_happened_and_how_fair_it_was(app: Fairlead, valkey: Running) -> None:
    task = send(app)
    for tenant in ("acme", "bolt"):
        task.using(tenant=tenant).enqueue("a@x")
    run_all(app)
    answer = answered("stats", "--tenants", "--url", valkey.url)
    assert (answer.returncode, answer.stderr) == (0, "")
    for text in ("enqueued", "default", "wait", "acme", "queued now"):
        assert text in answer.stdout
    report = json.loads(
        answered("stats", "--queue", "default", "--tenants", "--json", "--url", valkey.url).stdout
    )
    queue = report["queues"]["default"]
    assert (queue["enqueued"], queue["started"], queue["failed"], queue["dead"]) == (2, 2, 2, 2)
    assert queue["jain"] is None  # nobody wants more
    assert "Jain" not in answer.stdout
    for tenant in ("acme", "bolt"):
        task.using(tenant=tenant).enqueue("a@x")
    answer = answered("stats", "--tenants", "--url", valkey.url)
    assert "Jain's index over 2 tenants with tasks queued now: 1.000" in answer.stdout
    assert queue["run"]["p99"] >= queue["run"]["p50"] > 0
    assert report["tenants"]["default"]["acme"]["dead"] == 1


def test_stats_of_a_new_broker_and_of_none(valkey: Running) -> None:
    valkey.admin("FLUSHALL")
    answer = answered("stats", "--url", valkey.url)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "nothing was counted yet" in answer.stderr
    assert answered("stats", "--url", "memory://").returncode == 2
    assert answered("stats", "--url", "redis://127.0.0.1:1?timeout=1s").returncode == 3
