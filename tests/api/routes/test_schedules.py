"""Schedules: made, replaced, paused, run, with the next five runs."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import pytest

from fairlead.api import next_runs
from fairlead.api.next_runs import NextRuns
from fairlead.broker.schedules import ScheduleRecord
from fairlead.model.lifecycle import State
from fairlead.model.message import Body
from fairlead.model.schedule import timing
from tests.api.routes.site import Caller, Site
from tests.support.store import NOW

NIGHTLY = {"task": "report", "cron": "0 2 * * *", "tz": "Europe/Berlin"}


async def test_a_schedule_is_made_and_shows_its_next_runs(s: Site, operator: Caller) -> None:
    body = {**NIGHTLY, "args": ["eu", 1], "kwargs": {"full": True}, "queue": "reports"}
    answer = await operator.call("PUT", "/schedules/nightly", body)
    assert answer.status_code == 201
    made = answer.json()
    assert (made["name"], made["task"], made["queue"]) == ("nightly", "report", "reports")
    assert (made["cron"], made["tz"], made["every"]) == ("0 2 * * *", "Europe/Berlin", None)
    assert made["next_runs"][0] == "2027-01-16T01:00:00Z"
    assert len(made["next_runs"]) == 5
    assert made["payload"] == {"args": ["eu", 1], "kwargs": {"full": True}}
    assert await operator.get("/schedules/nightly") == made
    assert (await operator.get("/schedules"))["schedules"] == [made]
    again = await operator.call("PUT", "/schedules/nightly", {"task": "report", "every": "5m"})
    assert (again.status_code, again.json()["every"], again.json()["cron"]) == (200, 300, None)


async def test_arguments_take_the_scope_payload(s: Site, operator: Caller) -> None:
    await operator.ok("PUT", "/schedules/nightly", {**NIGHTLY, "args": ["planted-secret"]})
    reader = await s.caller("read", "manage", "submit")
    for path in ("/schedules", "/schedules/nightly", "/audit"):
        assert "planted-secret" not in (await reader.call("GET", path)).text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"task": "a"}, "cron"),
        ({"task": "a", "cron": "* * * * *", "every": 5}, "cron"),
        ({"task": "a", "cron": "61 * * * *"}, "cron"),
        ({"task": "a", "cron": "0 2 * * *", "tz": "Mars/Base"}, "tz"),
        ({"task": "a", "every": 0}, "every"),
        ({"task": "a", "every": 2**70}, "every"),
        ({"task": "a", "every": "soon"}, "every"),
        ({"task": "a", "at": "2001-01-01T00:00:00Z"}, ""),
        ({"task": "a", "every": 5, "max_missed": 2**70}, "max_missed"),
        ({"task": "a", "every": 5, "delay": 5}, "delay"),
        ({"task": "a", "every": 5, "id": "x"}, "id"),
        ({"task": "a", "every": 5, "depends_on": ["x"]}, "depends_on"),
        ({"task": "a", "every": 5, "max_retries": -1}, "max_retries"),
        ({"task": "a", "every": 5, "queue": "a b"}, "queue"),
        ({"task": "a b", "every": 5}, "task"),
        ({"every": 5}, "task"),
        ({"task": "a", "every": 5, "color": 1}, "color"),
    ],
)
async def test_what_is_wrong_is_named_and_makes_nothing(
    s: Site, operator: Caller, body: dict[str, Any], field: str
) -> None:
    problem = await operator.problem(422, "PUT", "/schedules/x", body)
    assert field in problem.get("field", "") + problem["detail"]
    assert await s.store.schedules() == []


async def test_names_have_a_rule(s: Site, operator: Caller) -> None:
    problem = await operator.problem(422, "PUT", "/schedules/a%2Fb", NIGHTLY)
    assert problem["field"] == "schedule"
    await operator.ok("PUT", "/schedules/a.b-c_1", NIGHTLY)
    await operator.problem(404, "GET", "/schedules/nothing")


async def test_a_schedule_is_paused_resumed_and_deleted(s: Site, operator: Caller) -> None:
    await operator.ok("PUT", "/schedules/x", {"task": "a", "every": 60})
    assert (await operator.ok("POST", "/schedules/x/pause"))["paused"] is True
    s.clock.go_on(600.0)
    resumed = await operator.ok("POST", "/schedules/x/resume")
    assert resumed["paused"] is False
    assert (await s.store.schedules(["x"]))[0].next_at == s.clock.now + 60
    paused = await operator.ok("POST", "/schedules/x/pause")
    replaced = await operator.ok("PUT", "/schedules/x", {"task": "b", "every": 60})
    assert paused["paused"] is replaced["paused"] is True
    assert (await operator.call("DELETE", "/schedules/x")).status_code == 204
    for method, path in (
        ("GET", "/schedules/x"),
        ("DELETE", "/schedules/x"),
        ("POST", "/schedules/x/pause"),
        ("POST", "/schedules/x/resume"),
        ("POST", "/schedules/x/run"),
    ):
        await operator.problem(404, method, path)
    actions = [each["action"] for each in (await operator.get("/audit"))["entries"]]
    assert actions == [
        "schedule.delete",
        "schedule.replace",
        "schedule.pause",
        "schedule.resume",
        "schedule.pause",
        "schedule.create",
    ]


async def test_run_now_keeps_the_options_of_the_task(s: Site, operator: Caller) -> None:
    body = {
        "task": "report",
        "cron": "0 2 * * *",
        "queue": "reports",
        "tenant": "acme",
        "max_retries": 7,
        "priority": "high",
    }
    await operator.ok("PUT", "/schedules/nightly", body)
    made = await operator.ok("POST", "/schedules/nightly/run")
    (record,) = await s.store.find([made["id"]])
    assert record is not None
    assert record.state is State.QUEUED
    message = record.message
    assert (message.queue, message.tenant, message.level) == ("reports", "acme", 1)
    assert Body.decode(message.body).max_retries == 7
    assert (await operator.get("/schedules/nightly"))["last_run_at"] is None


async def test_a_schedule_submits_so_it_takes_both_scopes(s: Site, operator: Caller) -> None:
    await operator.ok("PUT", "/schedules/x", NIGHTLY)
    manager = await s.caller("read", "manage")
    problem = await manager.problem(403, "PUT", "/schedules/y", NIGHTLY)
    assert "submit" in problem["detail"]
    await manager.problem(403, "PUT", "/schedules/x", NIGHTLY)
    await manager.problem(403, "POST", "/schedules/x/run")
    await manager.ok("POST", "/schedules/x/pause")
    submitter = await s.caller("read", "submit")
    await submitter.problem(403, "PUT", "/schedules/y", NIGHTLY)
    assert [each.name for each in await s.store.schedules()] == ["x"]


async def test_tenants_have_schedules_of_their_own(s: Site, operator: Caller, acme: Caller) -> None:
    await operator.ok("PUT", "/schedules/of-big", {**NIGHTLY, "tenant": "big"})
    made = await acme.ok("PUT", "/schedules/of-acme", NIGHTLY)
    assert made["tenant"] == "acme"
    await acme.problem(404, "PUT", "/schedules/other", {**NIGHTLY, "tenant": "big"})
    listed = await acme.call("GET", "/schedules")
    assert [each["name"] for each in listed.json()["schedules"]] == ["of-acme"]
    assert "big" not in listed.text
    before = await s.store.schedules(["of-big"])
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/run", None),
    ):
        await acme.problem(404, method, f"/schedules/of-big{path}", body)
    taken = await acme.problem(409, "PUT", "/schedules/of-big", NIGHTLY)
    assert (taken["detail"], taken["field"], taken["value"]) == (
        "the name is taken", "name", "of-big",
    )  # fmt: skip
    assert await s.store.schedules(["of-big"]) == before
    assert (await s.store.snapshot()).depth == 0
    assert [
        each["name"] for each in (await operator.get("/schedules", tenant="big"))["schedules"]
    ] == ["of-big"]


async def test_schedules_come_in_pages(s: Site, operator: Caller) -> None:
    for name in ("c", "a", "b"):
        await operator.ok("PUT", f"/schedules/{name}", NIGHTLY)
    first = await operator.get("/schedules", limit=2)
    assert [each["name"] for each in first["schedules"]] == ["a", "b"]
    rest = await operator.get("/schedules", limit=2, cursor=first["cursor"])
    assert ([each["name"] for each in rest["schedules"]], rest["cursor"]) == (["c"], None)


def test_rare_schedules_do_not_hold_the_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_runs, "_known", OrderedDict())
    record = ScheduleRecord(name="x", queue="q", spec=b"", revision=1, next_at=NOW + 5)
    rules = [timing(f"{minute} 0 29 2 *") for minute in range(60)]
    looks = itertools.count(step=0.06)  # a slow machine: all of them take four seconds
    page = NextRuns(clock=lambda: next(looks))
    found = [page.of(rule, record, NOW) for rule in rules]
    assert len(found[0]) == 5
    assert found[-1] == [NOW + 5]  # there was no time for it
    done = len(next_runs._known)
    assert done == 2
    again = NextRuns(clock=lambda: 0.0)
    assert again.of(rules[0], record, NOW + 60) == found[0]
    assert [len(again.of(rule, record, NOW + 60)) for rule in rules[: done + 1]] == [5] * (done + 1)
    later = found[0][0] + 1
    assert NextRuns().of(rules[0], record, later)[0] > later
