"""Every route of this folder, called by a tenant for what is another's, and without the scope.

A route that is new has to be entered below, or this fails.
"""

from __future__ import annotations

from typing import Any

from fairlead.api.http.route import SCOPES, Route
from fairlead.api.route_table import ROUTES
from fairlead.broker.requests import LimiterChange, TenantChange
from fairlead.model.lifecycle import State
from tests.api.routes.site import Site
from tests.api.routes.test_flows import make, member

NIGHTLY = {"task": "report", "cron": "0 2 * * *"}

#: What a tenant calls with: the names are another's, and there is nothing of its own.
#: A name in braces is filled in from what the other one has.
CALLS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "GET /audit": ("/audit", {}, None),
    "GET /autoscale": ("/autoscale", {"queue": "zz-queue"}, None),
    "POST /tasks/act": ("/tasks/act", {}, {"action": "cancel", "all": True}),
    "GET /dead-letters": ("/dead-letters", {}, None),
    "GET /dead-letters/groups": ("/dead-letters/groups", {}, None),
    "POST /dead-letters/requeue": ("/dead-letters/requeue", {}, {"all": True}),
    "POST /dead-letters/delete": ("/dead-letters/delete", {}, {"ids": ["{dead}"]}),
    "GET /flows/{id}": ("/flows/{flow}", {}, None),
    "POST /flows/{id}/cancel": ("/flows/{flow}/cancel", {}, None),
    "POST /flows/{id}/retry": ("/flows/{flow}/retry", {}, None),
    "GET /health": ("/health", {}, None),
    "GET /history": ("/history", {}, None),
    "GET /tasks/{id}/history": ("/tasks/{dead}/history", {}, None),
    "GET /tasks/{id}/log": ("/tasks/{dead}/log", {}, None),
    "GET /limiters": ("/limiters", {}, None),
    "GET /limiters/{name}": ("/limiters/zz-limiter", {}, None),
    "PATCH /limiters/{name}": ("/limiters/zz-limiter", {}, {"concurrency": 7}),
    "POST /limiters/{name}/close": ("/limiters/zz-limiter/close", {}, None),
    "GET /queues": ("/queues", {}, None),
    "GET /queues/{queue}": ("/queues/zz-queue", {}, None),
    "PATCH /queues/{queue}": ("/queues/zz-queue", {}, {"paused": True}),
    "DELETE /queues/{queue}": ("/queues/zz-queue", {}, None),
    "POST /queues/{queue}/pause": ("/queues/zz-queue/pause", {}, None),
    "POST /queues/{queue}/resume": ("/queues/zz-queue/resume", {}, None),
    "POST /queues/{queue}/purge": ("/queues/zz-queue/purge", {}, None),
    "GET /schedules": ("/schedules", {}, None),
    "GET /schedules/{name}": ("/schedules/zz-schedule", {}, None),
    "PUT /schedules/{name}": ("/schedules/zz-schedule", {}, NIGHTLY),
    "DELETE /schedules/{name}": ("/schedules/zz-schedule", {}, None),
    "POST /schedules/{name}/pause": ("/schedules/zz-schedule/pause", {}, None),
    "POST /schedules/{name}/resume": ("/schedules/zz-schedule/resume", {}, None),
    "POST /schedules/{name}/run": ("/schedules/zz-schedule/run", {}, None),
    "GET /stats": ("/stats", {}, None),
    "GET /stats/histograms": ("/stats/histograms", {}, None),
    "GET /task-types": ("/task-types", {}, None),
    "GET /task-types/{name}": ("/task-types/none", {}, None),
    "GET /tenants": ("/tenants", {}, None),
    "GET /tenants/{tenant}": ("/tenants/zz-tenant", {}, None),
    "PATCH /tenants/{tenant}": ("/tenants/zz-tenant", {}, {"weight": 9}),
    "POST /tenants/{tenant}/pause": ("/tenants/zz-tenant/pause", {}, None),
    "POST /tenants/{tenant}/resume": ("/tenants/zz-tenant/resume", {}, None),
    "GET /workers": ("/workers", {}, None),
    "GET /workers/{id}": ("/workers/zz-worker", {}, None),
    "POST /workers/{id}/pause": ("/workers/zz-worker/pause", {}, None),
    "POST /workers/{id}/resume": ("/workers/zz-worker/resume", {}, None),
    "POST /workers/{id}/stop": ("/workers/zz-worker/stop", {}, None),
}
#: Routes that say of whom they are by a parameter.
WHOSE = {
    "GET /dead-letters": {"tenant": "zz-tenant"},
    "GET /dead-letters/groups": {"tenant": "zz-tenant"},
    "GET /flows/{id}": {"tenant": "zz-tenant"},
    "POST /flows/{id}/cancel": {"tenant": "zz-tenant"},
    "POST /flows/{id}/retry": {"tenant": "zz-tenant"},
    "POST /queues/{queue}/purge": {"tenant": "zz-tenant"},
    "GET /history": {"tenant": "zz-tenant"},
    "GET /tasks/{id}/history": {"tenant": "zz-tenant"},
    "GET /tasks/{id}/log": {"tenant": "zz-tenant"},
    "GET /schedules": {"tenant": "zz-tenant"},
}
_FOLDER = "fairlead.api.routes."
_OTHERS = ("tasks", "task_listing", "task_batch")  # files of routes with tests of their own
OURS = {
    f"{route.method} {route.path}": route
    for route in ROUTES
    if route.handler.__module__.removeprefix(_FOLDER) not in _OTHERS
}


async def filled(s: Site) -> dict[str, str]:
    """Everything there is of another tenant, under names that begin with zz."""
    big: dict[str, Any] = {"tenant": "zz-tenant", "queue": "zz-queue"}
    (dead,) = await s.dead(error=("ZzError", "zz-error"), task="zz_task", **big)
    await s.enqueue(3, task="zz_task", limiters=("zz-limiter",), **big)
    flow = await make(s, member("zz-tenant:m", tenant="zz-tenant"), tenant="zz-tenant")
    await s.configure(
        TenantChange(tenant="zz-tenant", weight=2.0),
        LimiterChange(name="zz-limiter", concurrency=1, failures=3),
    )
    await s.worker("zz-worker", host="zz-host", details={"now": [["zz-1", "zz_task"]]})
    operator = await s.caller()
    await operator.ok("PUT", "/schedules/zz-schedule", {**NIGHTLY, "tenant": "zz-tenant"})
    return {"dead": dead, "flow": flow}


async def picture(s: Site) -> tuple[Any, ...]:
    """All that an order could have changed."""
    store = s.store
    tasks = {r.message.id: (r.state, r.generation) for r in (await store.page(limit=1_000)).tasks}
    orders = [worker.order for worker in await store.workers()]
    return tasks, await store.snapshot(), await store.schedules(), orders


def filled_in(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**names) if "{" in value else value
    if isinstance(value, list):
        return [filled_in(each, names) for each in value]
    if isinstance(value, dict):
        return {key: filled_in(each, names) for key, each in value.items()}
    return value


def test_every_route_is_tried() -> None:
    assert sorted(OURS) == sorted(CALLS)


async def test_a_tenant_neither_sees_nor_changes_what_is_anothers(s: Site) -> None:
    names = await filled(s)
    acme = await s.caller(tenant="acme")
    before = await picture(s)
    for name, (path, query, body) in CALLS.items():
        for more in ({}, WHOSE.get(name, {})):
            asked, sent = path.format(**names), filled_in(body, names)
            answer = await acme.call(name.split()[0], asked, sent, **{**query, **more})
            taken = () if more or name != "PUT /schedules/{name}" else (409,)  # names are for all
            expected = taken or ((404,) if more else (200, 403, 404))
            assert answer.status_code in expected, (name, answer.text)
            told = answer.text
            for known in (*asked.split("/")[1:], *more.values(), *query.values()):
                told = told.replace(known, "")  # what it said itself
            assert "zz" not in told.lower(), name
            assert names["dead"] not in told, name
            assert await picture(s) == before, name


async def test_a_token_without_the_scope_is_refused(s: Site) -> None:
    names = await filled(s)
    callers = {
        left: await s.caller(*(scope for scope in SCOPES if scope != left)) for left in SCOPES
    }
    before = await picture(s)
    for name, (path, query, body) in CALLS.items():
        route: Route = OURS[name]
        sent = filled_in(body, names)
        without = callers[route.scope]
        problem = await without.problem(403, route.method, path.format(**names), sent, **query)
        assert route.scope in problem["detail"], name
    assert await picture(s) == before


async def test_what_is_anothers_looks_like_what_is_not_there(s: Site) -> None:
    names = await filled(s)
    acme = await s.caller(tenant="acme")
    for known, unknown in (
        (f"/flows/{names['flow']}", "/flows/0190f3c2aa7b7c1e8a11b2c3d4e5f607"),
        ("/queues/zz-queue", "/queues/aa-queue"),
        ("/schedules/zz-schedule", "/schedules/aa-schedule"),
        ("/tenants/zz-tenant", "/tenants/aa-tenant"),
    ):
        one, other = await acme.call("GET", known), await acme.call("GET", unknown)
        name, another = known.split("/")[-1], unknown.split("/")[-1]
        assert one.status_code == other.status_code == 404
        assert one.text.replace(name, "") == other.text.replace(another, "")


async def test_states_of_another_tenants_tasks_stay(s: Site) -> None:
    names = await filled(s)
    acme = await s.caller(tenant="acme")
    for action in ("requeue", "delete"):
        step = await acme.ok("POST", f"/dead-letters/{action}", {"ids": [names["dead"]]})
        assert (step["matched"], step["changed"], step["sample"]) == (0, 0, [])
    assert await s.states([names["dead"]]) == [State.DEAD]
