"""Tasks in pages, by filters."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.app import open_api, problem

TASKS = "/api/v1/tasks"


async def all_of(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(100):
        params = {**query, **({} if cursor is None else {"cursor": cursor})}
        answer = await client.get(TASKS, params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["tasks"]
        cursor = page["cursor"]
        if cursor is None:
            return found
    raise AssertionError("the listing has no end")


async def test_tasks_are_listed_by_state_queue_tenant_name_and_error() -> None:
    async with open_api() as (api, client):

        @api.app.task(name="mail.fail", max_retries=0)
        async def fail() -> None:
            raise ValueError("no mailbox")

        for at in range(7):
            await client.post(
                TASKS, json={"task": "mail.send", "delay": 60, "tenant": f"t{at % 2}"}
            )
        await client.post(TASKS, json={"task": "report", "queue": "slow"})
        dead = (await client.post(TASKS, json={"task": "mail.fail"})).json()["id"]
        await api.app.drain(queues=["default"])
        assert len(await all_of(client, limit=2)) == 9
        assert len(await all_of(client, state="scheduled", limit=3)) == 7
        assert len(await all_of(client, tenant="t1")) == 3
        assert [each["task"] for each in await all_of(client, queue="slow")] == ["report"]
        assert len(await all_of(client, name="mail.send", limit=1)) == 7
        assert len(await all_of(client, name="mail.*")) == 8
        for error in ("ValueError", "mailbox", "exhausted"):
            assert [each["id"] for each in await all_of(client, error=error)] == [dead]
        for word in ("dead", "dead_letter", "DEAD"):
            assert [each["id"] for each in await all_of(client, state=word)] == [dead]
        assert [each["task"] for each in await all_of(client, state="pending")] == ["report"]


async def test_tasks_are_listed_by_time() -> None:
    async with open_api() as (_, client):
        await client.post(TASKS, json={"task": "a"})
        moment = (await all_of(client))[0]["enqueued_at"]
        assert len(await all_of(client, since=moment)) == 1
        assert len(await all_of(client, until=moment)) == 0
        assert (
            len(await all_of(client, since="2020-01-01T00:00:00Z", until="2999-01-01T00:00:00Z"))
            == 1
        )


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "asleep"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"limit": "1e3"}, "limit"),
        ({"since": "yesterday"}, "since"),
        ({"since": "null"}, "since"),
        ({"since": "1700000000.5"}, "since"),
        ({"since": "2020-01-01T00:00:00"}, "since"),
        ({"cursor": "\x00"}, "cursor"),
        ({"queue": "a b"}, "queue"),
    ],
)
async def test_a_wrong_filter_is_named(query: dict[str, str], field: str) -> None:
    async with open_api() as (_, client):
        assert problem(await client.get(TASKS, params=query), 422, "invalid")["field"] == field


async def test_one_call_looks_at_a_bounded_number_of_tasks() -> None:
    async with open_api() as (_, client):
        await client.post(f"{TASKS}/batch", json=[{"task": "a"}] * 2_500)
        await client.post(TASKS, json={"task": "needle"})
        answer = (await client.get(TASKS, params={"name": "needle", "limit": 200})).json()
        assert answer["cursor"] is not None
        assert 0 < answer["examined"] <= 2_000
        assert len(await all_of(client, name="needle", limit=200)) == 1
