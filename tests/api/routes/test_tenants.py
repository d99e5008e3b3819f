"""Tenants: what they have and got, what keeps them, weights and pauses."""

from __future__ import annotations

import pytest

from fairlead.broker.requests import LimiterChange, TenantChange
from fairlead.model.lifecycle import State
from tests.api.routes.site import Caller, Site


async def test_shares_stand_against_weights(s: Site, operator: Caller) -> None:
    await s.configure(TenantChange(tenant="big", weight=3.0))
    await s.enqueue(40, tenant="big")
    await s.enqueue(40, tenant="small")
    await s.fetch(40)
    found = await operator.get("/tenants", queue="default")
    rows = {each["tenant"]: each for each in found["tenants"]}
    assert rows["big"]["share"] == pytest.approx(0.75, abs=0.03)
    assert rows["big"]["fair_share"] == 0.75
    assert rows["small"]["fair_share"] == 0.25
    assert rows["big"]["weight"] == 3.0
    assert rows["big"]["in_flight"] + rows["small"]["in_flight"] == 40
    assert rows["big"]["depth"] + rows["small"]["depth"] == 40
    assert found["jain"] == pytest.approx(1.0, abs=0.01)


async def test_shares_over_several_queues_are_weighed_by_what_began_there(
    s: Site, operator: Caller
) -> None:
    for queue, others in (("web", 1), ("mail", 3)):
        await s.enqueue(20, tenant="acme", queue=queue)
        for n in range(others):
            await s.enqueue(20, tenant=f"t{n}", queue=queue)
        await s.fetch(20, queue)
    rows = {each["tenant"]: each for each in (await operator.get("/tenants"))["tenants"]}
    assert rows["acme"]["started"] == 15  # 10 of 20 and 5 of 20
    assert rows["acme"]["share"] == pytest.approx(15 / 40)
    assert rows["acme"]["fair_share"] == pytest.approx(15 / 40)


async def test_a_tenant_that_got_nothing_has_a_fair_share(s: Site, operator: Caller) -> None:
    await s.enqueue(10, tenant="first")
    await s.fetch(10)
    await s.enqueue(5, tenant="starved")
    await s.enqueue(5, tenant="elsewhere", queue="web")
    await s.fetch(5, "web")
    rows = {each["tenant"]: each for each in (await operator.get("/tenants"))["tenants"]}
    assert (rows["starved"]["share"], rows["starved"]["fair_share"]) == (0.0, 0.5)
    assert (rows["elsewhere"]["share"], rows["elsewhere"]["fair_share"]) == (1.0, 1.0)
    one = await operator.get("/tenants/starved")
    assert (one["share"], one["fair_share"]) == (0.0, 0.5)


async def test_what_is_read_of_tenants_is_bounded(s: Site, operator: Caller) -> None:
    for queue in ("a", "b", "c", "d"):
        for start in range(0, 900, 180):
            tenants = [f"t{n}" for n in range(start, start + 180)]
            await s.enqueue_each(tenants, queue=queue)
    found = await operator.get("/tenants", limit=1)
    assert (len(found["queues"]), found["more_queues"]) == (3, True)
    one = await operator.get("/tenants/t5")
    assert (one["depth"], len(one["queues"])) == (4, 4)


async def test_what_keeps_a_tenant_is_named(s: Site, operator: Caller) -> None:
    await s.configure(
        TenantChange(tenant="limited", concurrency=0),
        TenantChange(tenant="paused", paused=True),
        LimiterChange(name="gpu", concurrency=0),
    )
    await s.enqueue(tenant="limited")
    await s.enqueue(tenant="paused")
    await s.enqueue(tenant="held", limiters=("gpu",))
    await s.enqueue(tenant="free")
    await s.fetch(10)
    rows = {e["tenant"]: e["throttled"] for e in (await operator.get("/tenants"))["tenants"]}
    assert rows["limited"] == [{"queue": "default", "by": "tenant", "limiter": None}]
    assert rows["paused"] == [{"queue": "default", "by": "paused", "limiter": None}]
    assert rows["held"] == [{"queue": "default", "by": "limiter", "limiter": "gpu"}]
    assert rows["free"] == []


async def test_tenants_come_in_pages_or_by_what_they_have(s: Site, operator: Caller) -> None:
    for n in range(5):
        await s.enqueue(n + 1, tenant=f"t{n}")
    first = await operator.get("/tenants", limit=3)
    assert [each["tenant"] for each in first["tenants"]] == ["t0", "t1", "t2"]
    second = await operator.get("/tenants", limit=3, cursor=first["cursor"])
    assert [each["tenant"] for each in second["tenants"]] == ["t3", "t4"]
    assert second["cursor"] is None
    deepest = await operator.get("/tenants", sort="depth", limit=2)
    assert [each["tenant"] for each in deepest["tenants"]] == ["t4", "t3"]
    await operator.problem(422, "GET", "/tenants", sort="color")
    await operator.problem(422, "GET", "/tenants", limit=201)


async def test_one_tenant_shows_its_part_of_each_queue(s: Site, operator: Caller) -> None:
    await s.enqueue(2, tenant="a/b ü", queue="web")
    await s.enqueue(3, tenant="a/b ü", queue="mail")
    await s.fetch(1, "web")
    found = await operator.get("/tenants/a%2Fb%20%C3%BC")
    assert (found["tenant"], found["depth"], found["in_flight"]) == ("a/b ü", 4, 1)
    assert [(each["queue"], each["counts"]["ready"]) for each in found["queues"]] == [
        ("mail", 3),
        ("web", 1),
    ]
    await operator.problem(404, "GET", "/tenants/nobody")


async def test_a_tenant_sees_itself_and_no_figure_of_others(s: Site, acme: Caller) -> None:
    await s.enqueue(2, tenant="acme")
    await s.enqueue(100, tenant="big")
    await s.enqueue(1, tenant="big", queue="secret")
    await s.settle(await s.fetch(50), State.COMPLETED, run_time=1.0)
    found = await acme.get("/tenants")
    assert found["queues"] == ["default"]
    assert found["jain"] is None
    (own,) = found["tenants"]
    assert (own["tenant"], own["started"]) == ("acme", 2)
    assert own["share"] is own["fair_share"] is None
    one = await acme.get("/tenants/acme")
    assert one["share"] is one["fair_share"] is None
    assert [each["queue"] for each in one["queues"]] == ["default"]
    assert one["queues"][0]["queue_wait_p95"] is None
    assert "big" not in (await acme.call("GET", "/tenants")).text
    unknown = await acme.problem(404, "GET", "/tenants/nobody")
    assert await acme.problem(404, "GET", "/tenants/big") == {
        **unknown,
        "detail": unknown["detail"].replace("nobody", "big"),
    }


async def test_a_tenant_without_tasks_sees_itself(s: Site, acme: Caller) -> None:
    assert [each["tenant"] for each in (await acme.get("/tenants"))["tenants"]] == ["acme"]
    assert (await acme.get("/tenants/acme"))["queues"] == []


async def test_weight_and_limits_are_set(s: Site, operator: Caller) -> None:
    await s.enqueue(4, tenant="acme")
    found = await operator.ok("PATCH", "/tenants/acme", {"weight": 2.5, "concurrency": 2})
    assert found["weight"] == found["limits"]["weight"] == 2.5
    assert found["limits"]["concurrency"] == 2
    assert len(await s.fetch(4)) == 2
    here = await operator.ok("PATCH", "/tenants/acme", {"weight": 5, "queue": "default"})
    assert here["weight"] == 5
    fresh = await operator.ok("PATCH", "/tenants/newcomer", {"weight": 2})
    assert fresh["tenant"] == "newcomer"
    assert (await operator.get("/tenants/newcomer"))["limits"]["weight"] == 2


@pytest.mark.parametrize(
    "change",
    [{"weight": 0}, {"weight": 1e9}, {"weight": 2**70}, {"burst": 2**70}, {"queue": "a b"}],
)
async def test_what_is_out_of_bounds_changes_nothing(
    s: Site, operator: Caller, change: dict[str, object]
) -> None:
    await s.enqueue(tenant="acme")
    await operator.problem(422, "PATCH", "/tenants/acme", {"paused": True, **change})
    assert len(await s.fetch()) == 1


async def test_a_tenant_is_paused_and_goes_on(s: Site, operator: Caller) -> None:
    await s.enqueue(tenant="acme")
    await operator.ok("POST", "/tenants/acme/pause")
    assert await s.fetch() == []
    await operator.ok("POST", "/tenants/acme/resume")
    assert len(await s.fetch()) == 1


async def test_tenants_do_not_set_their_own_weight(s: Site, acme: Caller) -> None:
    await s.enqueue(tenant="acme")
    for path in ("/tenants/acme", "/tenants/acme/pause", "/tenants/acme/resume"):
        method, body = ("PATCH", {"weight": 9}) if path.endswith("acme") else ("POST", None)
        await acme.problem(403, method, path, body)
        await acme.problem(404, method, path.replace("acme", "big"), body)
