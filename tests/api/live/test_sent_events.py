"""``GET /events``: server-sent events, for clients that only read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from fairlead.api.auth.token_store import list_tokens, revoke_token
from fairlead.api.live import connection, sent_events
from tests.api.app import problem
from tests.api.live.site import Site, opened
from tests.worker.harness import until


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with opened() as site:
        yield site


class Stream:
    """Reads events off a response."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def event(self) -> dict[str, Any]:
        """The fields of the next event, or of a comment."""
        fields: dict[str, Any] = {}
        async with asyncio.timeout(10):
            async for line in self._lines:
                if not line:
                    if fields:
                        return fields
                    continue
                name, _, value = line.partition(":")
                fields[name or "comment"] = value.strip()
        raise EOFError

    async def events(self, count: int) -> list[Any]:
        """The data of the next events."""
        found: list[Any] = []
        while len(found) < count:
            fields = await self.event()
            if "data" in fields:
                data = json.loads(fields["data"])
                assert fields["event"] == data["type"]
                assert fields.get("id") == data.get("id")
                found.append(data)
        return found


@asynccontextmanager
async def stream(
    site: Site, token: str | None = None, headers: dict[str, str] | None = None, **query: str
) -> AsyncIterator[Stream]:
    token = await site.token() if token is None else token
    said = {"authorization": f"Bearer {token}", **(headers or {})}
    url = f"http://127.0.0.1:{site.port}/events"
    async with (
        httpx.AsyncClient(trust_env=False, timeout=10) as client,
        client.stream("GET", url, params=query, headers=said) as answer,
    ):
        yield Stream(answer)


async def test_events_come_with_their_ids(site: Site) -> None:
    async with stream(site, types="task.submitted,task.completed") as found:
        assert found.answer.headers["content-type"].startswith("text/event-stream")
        assert found.answer.headers["cache-control"] == "no-store"
        assert (await found.event()) == {"retry": "2000"}
        (snapshot,) = await found.events(1)
        assert snapshot["type"] == "snapshot"
        await site.add.aenqueue(1, 2)
        await site.app.drain()
        events = await found.events(2)
    assert [event["type"] for event in events] == ["task.submitted", "task.completed"]

    async with stream(site, headers={"last-event-id": events[0]["id"]}, types="task.*") as found:
        assert (await found.event()) == {"retry": "2000"}
        fields = await found.event()
        assert fields["event"] == "snapshot"
        assert "id" not in fields  # or a client that is cut off now would miss what follows
        again = await found.events(2)
    assert [event["type"] for event in again] == ["task.started", "task.completed"]
    assert again[1]["id"] == events[1]["id"]
    async with stream(site, after=events[0]["id"], queue="mail") as found:
        await site.fail.aenqueue()
        _, event = await found.events(2)
        assert event["data"]["queue"] == "mail"


async def test_a_token_of_a_tenant_sees_only_what_belongs_to_it(site: Site) -> None:
    token = await site.token(tenant="acme")
    async with stream(site, token, types="task.*") as found:
        await found.events(1)
        await site.add.using(tenant="other").aenqueue(1, 2)
        await site.add.using(tenant="acme").aenqueue(1, 2)
        (event,) = await found.events(1)
        assert event["data"]["tenant"] == "acme"
        async with stream(site, types="started", tenant="acme") as operator:
            await operator.events(1)
            await site.app.drain()
            (seen,) = await operator.events(1)
        started, _ = await found.events(2)
        assert seen["data"] == {**started["data"], "worker": seen["data"]["worker"]}
        assert "worker" not in started["data"]
    async with stream(site, token, tenant="other") as found:
        await found.answer.aread()
        problem(found.answer, 404, "not-found")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"types": "task.exploded"}, "types"),
        ({"types": ""}, "types"),
        ({"queue": "a b"}, "queue"),
        ({"after": "nonsense"}, "after"),
        ({"after": "x" * 5_000}, "after"),
        ({"color": "red"}, "color"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused(
    site: Site, query: dict[str, Any], field: str
) -> None:
    async with stream(site, **query) as found:
        await found.answer.aread()
        assert problem(found.answer, 422, "invalid")["field"] == field


async def test_without_a_token_or_its_scope_nothing_is_told(site: Site) -> None:
    async with stream(site, "fl_000000000000_" + "x" * 43) as found:
        await found.answer.aread()
        problem(found.answer, 401, "unauthorized")
    async with stream(site, await site.token("submit")) as found:
        await found.answer.aread()
        problem(found.answer, 403, "forbidden")
    token = await site.token()
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{site.port}/events?token={token}")
        problem(answer, 401, "unauthorized")
        headers = {"authorization": f"Bearer {token}"}
        answer = await client.post(f"http://127.0.0.1:{site.port}/events", headers=headers)
        problem(answer, 405, "method-not-allowed")


async def test_a_quiet_stream_shows_that_it_lives(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(sent_events, "_HEARTBEAT", 0.05)
    async with stream(site, types="dead") as found:
        await found.events(1)
        assert (await found.event()) == {"comment": ""}


async def test_a_server_that_drains_says_where_to_go_on(site: Site) -> None:
    async with stream(site, types="task.*") as found:
        await found.events(1)
        await site.add.aenqueue(1, 2)
        (event,) = await found.events(1)
        site.api.server.drain()
        fields = await found.event()
        assert fields["event"] == "stream.end"
        assert 500 <= int(fields["retry"]) <= 2_000
        assert json.loads(fields["data"])["data"] == {"reason": "drained", "id": event["id"]}
        with pytest.raises(EOFError):
            await found.event()
    async with stream(site) as found:
        await found.answer.aread()
        problem(found.answer, 503, "draining")


async def test_a_slow_client_is_told_where_to_go_on(site: Site) -> None:
    async with stream(site, types="task.*") as found:
        await found.events(1)
        await site.add.aenqueue(1, 2)
        (event,) = await found.events(1)
        site.hub.end_all("slow")
        fields = await found.event()
        assert json.loads(fields["data"])["data"] == {"reason": "slow", "id": event["id"]}


async def test_a_revoked_token_ends_its_stream(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "_PERIOD", 0.05)
    monkeypatch.setattr("fairlead.api.auth.token_cache._FRESH", 0.05)
    monkeypatch.setattr("fairlead.api.auth.token_cache._KNOWN", 0.1)
    async with stream(site) as found:
        await found.events(1)
        client = site.api.server.service.client()
        for token in await list_tokens(client):
            await revoke_token(client, token.id)
        fields = await found.event()
        assert json.loads(fields["data"])["data"]["reason"] == "revoked"


async def test_a_client_that_went_is_forgotten(site: Site) -> None:
    async with stream(site) as found:
        await found.events(1)
        assert site.hub.clients == 1
    await until(lambda: site.hub.clients == 0)
