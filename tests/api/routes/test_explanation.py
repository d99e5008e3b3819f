"""What a tenant is told of why its task is not running: nothing of others."""

from __future__ import annotations

from typing import Any

from fairlead.broker.requests import LimiterChange, QueueChange, TenantChange
from fairlead.runtime.ids import new_id
from tests.api.routes.site import Caller, Site
from tests.api.routes.test_flows import make, member


async def told(caller: Caller, id: str) -> dict[str, dict[str, Any]]:
    found = await caller.get(f"/tasks/{id}/explain")
    return {reason["code"]: reason for reason in found["reasons"]}


async def test_tenants_ahead_are_not_counted(s: Site, operator: Caller, acme: Caller) -> None:
    await s.worker("w-secret", host="h-secret", queues=("default",), tasks=("work",), concurrency=1)
    for n in range(7):
        await s.enqueue(tenant=f"a{n}")
    await s.enqueue(2, tenant="acme")
    (id,) = (await s.enqueue(tenant="acme"))[:1]
    full = await told(operator, id)
    assert "7 tenants of 8" in full["tenants_ahead"]["text"]
    own = await told(acme, id)
    assert own["tenants_ahead"]["text"] == "other tenants are served before its own"
    assert own["tenants_ahead"]["fields"] == {}
    assert own["tasks_ahead"]["fields"] == {"tasks_ahead": 2}
    assert set(own) == set(full)


async def test_limits_that_others_use_have_no_figures(s: Site, acme: Caller) -> None:
    await s.configure(
        LimiterChange(name="gpu", concurrency=3),
        QueueChange(queue="default", concurrency=4),
        TenantChange(tenant="acme", concurrency=5),
    )
    await s.enqueue(3, tenant="big", limiters=("gpu",))
    await s.enqueue(1, tenant="big")
    await s.fetch(4)
    (id,) = await s.enqueue(tenant="acme", limiters=("gpu",))
    found = await told(acme, id)
    assert found["limiter_full"]["text"] == "limiter 'gpu' has no room"
    assert found["limiter_full"]["fields"] == {"name": "gpu"}
    assert found["queue_full"]["fields"] == {}
    assert not any(digit in found["queue_full"]["text"] for digit in "0123456789")


async def test_the_worker_is_not_named(s: Site, acme: Caller) -> None:
    (id,) = await s.enqueue(tenant="acme")
    await s.fetch()
    answer = await acme.call("GET", f"/tasks/{id}/explain")
    assert "worker" not in answer.text
    assert answer.json()["reasons"][0]["text"].startswith("it runs since")


async def test_only_its_own_parents_are_named(s: Site, acme: Caller) -> None:
    own, other, last = new_id(), new_id(), new_id()
    await make(s, member(own), member(other, tenant="big"), member(last, [other, own]))
    found = await told(acme, last)
    assert found["waits"]["fields"] == {"waits_for": {own: "queued"}}
    assert other not in found["waits"]["text"]
    alone, foreign = new_id(), new_id()
    await make(s, member(foreign, tenant="big"), member(alone, [foreign]))
    assert (await told(acme, alone))["waits"]["text"] == "it waits for other tasks"
