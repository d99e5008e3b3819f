"""Queues: counts, settings, pauses and purges."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.lifecycle import State
from tests.api.routes.site import Caller, Site


async def test_queues_come_by_name_and_in_pages(s: Site, operator: Caller) -> None:
    for name in ("web", "mail", "a.b"):
        await s.enqueue(2, queue=name)
    first = await operator.get("/queues", limit=2)
    assert [each["name"] for each in first["queues"]] == ["a.b", "mail"]
    second = await operator.get("/queues", limit=2, cursor=first["cursor"])
    assert ([each["name"] for each in second["queues"]], second["cursor"]) == (["web"], None)
    assert second["queues"][0]["ready"] == second["queues"][0]["depth"] == 2
    assert first["now"].endswith("Z")


async def test_one_queue_tells_how_many_tenants_have_work(s: Site, operator: Caller) -> None:
    await s.enqueue(tenant="acme")
    await s.enqueue(tenant="big")
    assert (await operator.get("/queues/default"))["tenants"] == 2
    await operator.problem(404, "GET", "/queues/nothing")
    assert (await operator.problem(422, "GET", "/queues/a%20b"))["field"] == "queue"


async def test_a_tenant_sees_its_own_part_of_queues_and_no_other_queue(
    s: Site, acme: Caller
) -> None:
    await s.enqueue(3, tenant="acme", queue="shared")
    await s.enqueue(50, tenant="big", queue="shared")
    await s.enqueue(7, tenant="big", queue="big-secret")
    found = await acme.get("/queues")
    assert [(each["name"], each["depth"]) for each in found["queues"]] == [("shared", 3)]
    one = await acme.get("/queues/shared")
    assert (one["depth"], one["tenants"], one["oldest_at"]) == (3, None, None)
    assert one["limits"] is None
    unknown = await acme.problem(404, "GET", "/queues/nothing")
    hidden = await acme.problem(404, "GET", "/queues/big-secret")
    assert hidden["detail"].replace("big-secret", "nothing") == unknown["detail"]


async def test_a_queue_is_paused_and_goes_on(s: Site, operator: Caller) -> None:
    await s.enqueue()
    assert (await operator.ok("POST", "/queues/default/pause"))["paused"] is True
    assert await s.fetch() == []
    assert (await operator.ok("POST", "/queues/default/resume"))["paused"] is False
    assert len(await s.fetch()) == 1
    await operator.problem(404, "POST", "/queues/nothing/pause")


async def test_limits_are_set_and_lifted(s: Site, operator: Caller) -> None:
    found = await operator.ok("PATCH", "/queues/mail", {"max_waiting": 1, "keep_dead": 60})
    assert (found["limits"]["max_waiting"], found["limits"]["keep_dead"]) == (1, 60)
    await s.enqueue(queue="mail")
    with pytest.raises(AssertionError):
        await s.enqueue(queue="mail")
    found = await operator.ok("PATCH", "/queues/mail", {"max_waiting": None})
    assert (found["limits"]["max_waiting"], found["limits"]["keep_dead"]) == (None, 60)
    await s.enqueue(queue="mail")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"concurrency": 2**70}, "concurrency"),
        ({"max_waiting": 2**70}, "max_waiting"),
        ({"max_waiting": -1}, "max_waiting"),
        ({"rate": 0}, "rate"),
        ({"burst": 0}, "burst"),
        ({"paused": "yes"}, "paused"),
        ({"keep_dead": 1e300}, "keep_dead"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_what_is_out_of_bounds_changes_nothing(
    s: Site, operator: Caller, change: dict[str, Any], field: str
) -> None:
    await s.enqueue(queue="mail")
    before = await s.store.snapshot("mail")
    body = {"paused": True, **change}
    problem = await operator.problem(422, "PATCH", "/queues/mail", body)
    assert field in problem.get("field", "") + problem["detail"]
    assert await s.store.snapshot("mail") == before


async def test_a_purge_cancels_what_waited(s: Site, operator: Caller, acme: Caller) -> None:
    mine = await s.enqueue(120, tenant="acme")
    others = await s.enqueue(3, tenant="big")
    assert await acme.ok("POST", "/queues/default/purge") == {"cancelled": 120, "more": False}
    assert set(await s.states(mine)) == {State.CANCELLED}
    assert set(await s.states(others)) == {State.QUEUED}
    await acme.problem(404, "POST", "/queues/default/purge", tenant="big")
    done = await operator.ok("POST", "/queues/default/purge", tenant="big")
    assert done == {"cancelled": 3, "more": False}
    await operator.problem(404, "POST", "/queues/nothing/purge")


async def test_an_empty_queue_can_be_deleted(s: Site, operator: Caller) -> None:
    (id,) = await s.enqueue(queue="mail")
    await operator.problem(409, "DELETE", "/queues/mail")
    await operator.ok("POST", "/queues/mail/purge")
    assert await operator.ok("DELETE", "/queues/mail") == {"forgotten": 1, "more": False}
    assert await s.states([id]) == [None]
    await operator.problem(404, "GET", "/queues/mail")


async def test_tenants_change_no_queue(s: Site, acme: Caller) -> None:
    await s.enqueue(tenant="acme")
    for method, path, body in (
        ("PATCH", "/queues/default", {"paused": True}),
        ("DELETE", "/queues/default", None),
        ("POST", "/queues/default/pause", None),
        ("POST", "/queues/default/resume", None),
    ):
        await acme.problem(403, method, path, body)
    assert not (await s.store.snapshot("default")).queues["default"].paused


async def test_changes_are_noted(s: Site, operator: Caller) -> None:
    await s.enqueue()
    await operator.ok("POST", "/queues/default/pause")
    await operator.ok("PATCH", "/queues/default", {"concurrency": 3})
    entries = (await operator.get("/audit"))["entries"]
    assert [(each["action"], each["target"]) for each in entries] == [
        ("queue.configure", "default"),
        ("queue.pause", "default"),
    ]
    assert entries[0]["details"] == {"concurrency": 3}
    assert entries[0]["name"] == "tests"
