"""Every route of the table, called by a tenant that must not see another one's things."""

from __future__ import annotations

import re

import pytest

from fairlead.api.http.route import Route
from fairlead.api.route_table import BASE, ROUTES
from tests.api.app import Api, open_api

OWNER, STRANGER = "tenant-acme", "tenant-globex"
PLANTED = "planted-by-acme"


@pytest.mark.parametrize("route", ROUTES, ids=lambda each: f"{each.method} {each.path}")
async def test_nothing_of_another_tenant_is_seen_or_changed(route: Route) -> None:
    api = Api()
    async with api.caller() as owner:
        task = {"task": "mail", "id": "order-7", "tenant": OWNER, "delay": 3600, "args": [PLANTED]}
        made = await owner.post(f"{BASE}/tasks", json={**task, "correlation_id": PLANTED})
        id = made.json()["id"]
        before = (await owner.get(f"{BASE}/tasks/{id}")).json()
        async with api.caller(await api.token(tenant=STRANGER)) as stranger:
            for query in ("", f"?tenant={OWNER}"):
                path = route.path.replace("{id}", id).replace("{tenant}", OWNER)
                path = re.sub(r"\{\w+\}", "default", path)
                body = None if route.body is None else {"tenant": OWNER, "ids": [id]}
                answer = await stranger.request(route.method, BASE + path + query, json=body)
                text = answer.text.replace(id, "")
                assert answer.status_code < 500, text
                assert PLANTED not in text
                if answer.status_code < 300:
                    assert OWNER not in text
                if "{id}" in route.path and "task" in route.path and route.body is None:
                    assert answer.status_code == 404
        assert (await owner.get(f"{BASE}/tasks/{id}")).json() == before
    await api.server.service.close()
    await api.app.aclose()


async def test_ids_of_others_that_a_task_waits_for_are_not_told() -> None:
    async with open_api() as (api, operator):
        foreign, own = [
            (await operator.post(f"{BASE}/tasks", json={"task": "a", "tenant": tenant})).json()[
                "id"
            ]
            for tenant in (OWNER, STRANGER)
        ]
        task = {"task": "b", "tenant": STRANGER, "depends_on": [foreign, own]}
        id = (await operator.post(f"{BASE}/tasks", json=task)).json()["id"]
        assert sorted((await operator.get(f"{BASE}/tasks/{id}")).json()["waiting_for"]) == sorted(
            [foreign, own]
        )
        async with api.caller(await api.token(tenant=STRANGER)) as stranger:
            shown = (await stranger.get(f"{BASE}/tasks/{id}")).json()
            assert shown["waiting_for"] == [own]
            listed = await stranger.get(f"{BASE}/tasks?state=deferred")
            assert [each["waiting_for"] for each in listed.json()["tasks"]] == [[own]]
            assert foreign not in listed.text
