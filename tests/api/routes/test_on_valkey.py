"""The same routes on a server: what they read and order there is what they do in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker import connect
from fairlead.broker.requests import LimiterChange, TenantChange
from fairlead.model.lifecycle import State
from fairlead.runtime.ids import new_id
from tests.api.routes.site import Site, site
from tests.api.routes.test_flows import make, member
from tests.support import servers

pytestmark = pytest.mark.skipif(servers.binary("valkey") is None, reason="no Valkey here")


@pytest.fixture
async def s() -> AsyncIterator[Site]:
    with servers.server("valkey") as running:
        store = connect(running.url)
        async with site(store) as made:
            yield made
        await store.close()


async def test_an_operator_looks_after_everything(s: Site) -> None:
    operator = await s.caller()
    await s.configure(
        TenantChange(tenant="acme", weight=2.0),
        TenantChange(tenant="held", concurrency=0),
        LimiterChange(name="api", failures=1, cooldown=600.0),
    )
    dead = await s.dead(60, error=("OSError", "host 1 is down"), limiters=("api",))
    assert (await operator.get("/limiters/api"))["breaker"]["state"] == "open"
    assert (await operator.ok("POST", "/limiters/api/close"))["breaker"]["state"] == "closed"

    (group,) = (await operator.get("/dead-letters/groups"))["groups"]
    assert (group["count"], group["message"]) == (60, "host # is down")
    seen: set[str] = set()
    query: dict[str, str] = {}
    while True:
        page = await operator.get("/dead-letters", limit=25, **query)
        seen |= {each["id"] for each in page["dead_letters"]}
        if page["cursor"] is None:
            break
        query = {"cursor": page["cursor"]}
    assert seen == set(dead)

    await s.enqueue(5, tenant="acme", queue="web")
    await s.enqueue(5, tenant="held", queue="web")
    await s.fetch(2, "web")
    rows = {e["tenant"]: e for e in (await operator.get("/tenants", queue="web"))["tenants"]}
    assert (rows["acme"]["in_flight"], rows["acme"]["weight"]) == (2, 2.0)
    assert rows["held"]["throttled"] == [{"queue": "web", "by": "tenant", "limiter": None}]
    queue = await operator.get("/queues/web")
    assert (queue["running"], queue["ready"], queue["tenants"]) == (2, 8, 2)
    assert queue["oldest_seconds"] >= 0
    assert (await operator.get("/autoscale", queue="web"))["backlog"] == 8
    assert (await operator.get("/health"))["status"] in ("ok", "warn", "fail")

    lines = await operator.call(
        "POST", "/dead-letters/requeue", {"group": group["group"]}, accept="application/x-ndjson"
    )
    assert '"changed":60' in lines.text.splitlines()[-1].replace(" ", "")
    assert set(await s.states(dead)) == {State.QUEUED}
    actions = [each["action"] for each in (await operator.get("/audit"))["entries"]]
    assert actions == ["dead_letters.retry", "limiter.close"]


async def test_a_tenant_sees_its_own(s: Site) -> None:
    acme = await s.caller(tenant="acme")
    await s.enqueue(3, tenant="acme")
    await s.enqueue(4, tenant="big")
    await s.enqueue(4, tenant="big", queue="secret")
    queues = (await acme.get("/queues"))["queues"]
    assert [(each["name"], each["depth"]) for each in queues] == [("default", 3)]
    (stats,) = (await acme.get("/stats"))["queues"]
    assert (stats["queue"], stats["enqueued"]) == ("default", 3)
    assert [each["tenant"] for each in (await acme.get("/tenants"))["tenants"]] == ["acme"]
    await acme.problem(404, "GET", "/queues/secret")
    step = await acme.ok("POST", "/tasks/act", {"action": "cancel", "all": True})
    assert step["total"]["changed"] == 3


async def test_flows_and_schedules(s: Site) -> None:
    operator = await s.caller()
    ids = [new_id() for _ in range(3)]
    flow = await make(s, *(member(id, ids[:n]) for n, id in enumerate(ids)))
    found = await operator.get(f"/flows/{flow}")
    assert [each["id"] for each in found["nodes"]] == ids
    assert len(found["edges"]) == 3
    assert (await operator.ok("POST", f"/flows/{flow}/cancel"))["state"] == "cancelled"
    body = {"task": "report", "every": "1h", "tenant": "acme"}
    assert len((await operator.ok("PUT", "/schedules/hourly", body))["next_runs"]) == 5
    made = await operator.ok("POST", "/schedules/hourly/run")
    assert await s.states([made["id"]]) == [State.QUEUED]
    await operator.ok("POST", "/schedules/hourly/pause")
    assert (await operator.call("DELETE", "/schedules/hourly")).status_code == 204
