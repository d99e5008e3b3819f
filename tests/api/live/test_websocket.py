"""``/ws``: who is let in, what clients may say, and how sockets end."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairlead.api.auth.token_store import list_tokens, revoke_token
from fairlead.api.live import connection, hub, subscription, websocket
from tests.api.live.site import Site, opened, received


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with opened() as site:
        yield site


async def closed(client: Any) -> tuple[int, Any]:
    """The code and the reason with which the socket is closed."""

    async def read() -> None:
        async with asyncio.timeout(10):
            while True:
                await client.recv()

    with pytest.raises(ConnectionClosed) as caught:
        await read()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, json.loads(caught.value.rcvd.reason or "{}")


# -- events ------------------------------------------------------------------------------------


async def test_a_client_gets_what_it_subscribed_to(site: Site) -> None:
    async with site.subscribed(types=["task.*"]) as client:
        handle = await site.add.using(tenant="acme").aenqueue(1, 2)
        await site.app.drain()
        events = [await received(client) for _ in range(3)]
    assert [event["type"] for event in events] == [
        "task.submitted",
        "task.started",
        "task.completed",
    ]
    assert {event["data"]["task_id"] for event in events} == {handle.id}
    assert events[-1]["data"]["type"] == "add"
    assert events[-1]["data"]["duration_ms"] >= 0


async def test_a_client_resumes_behind_the_last_id_it_has(site: Site) -> None:
    async with site.subscribed(types=["task.*"]) as client:
        await site.fail.aenqueue()
        await site.app.drain()
        events = [await received(client) for _ in range(4)]
    assert [event["type"] for event in events][-2:] == ["task.failed", "task.dead"]
    for place in range(3):
        async with site.subscribed(types=["task.*"], after=events[place]["id"]) as client:
            found = [await received(client) for _ in events[place + 1 :]]
            assert found == events[place + 1 :]


async def test_events_come_as_arrays_where_that_is_asked_for(site: Site) -> None:
    async with site.subscribed(types=["task.*"], batch=True) as client:
        await site.app.aenqueue_many([site.add.call(n, n) for n in range(20)])
        found: list[Any] = []
        while len(found) < 20:
            found += await received(client)
    assert {event["type"] for event in found} == {"task.submitted"}


async def test_subscriptions_can_be_added_and_taken_away(site: Site) -> None:
    async with site.subscribed(types=["dead"]) as client:
        await client.send(json.dumps({"type": "subscribe", "types": ["submitted"]}))
        answer = await received(client)
        assert len(answer["data"]["filters"]) == 2
        await client.send(json.dumps({"type": "unsubscribe", "types": ["dead"]}))
        answer = await received(client)
        assert answer["data"]["filters"] == [{"types": ["task.submitted"]}]
        await site.fail.aenqueue()
        await site.app.drain()
        assert (await received(client))["type"] == "task.submitted"
        await client.send(json.dumps({"type": "unsubscribe"}))
        assert (await received(client))["data"]["filters"] == []
        await site.add.aenqueue(1, 2)
        await client.send('{"type":"ping"}')
        assert (await received(client))["type"] == "stream.pong"


# -- who is let in -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["header", "subprotocol", "first frame"])
async def test_a_token_comes_by_a_header_a_subprotocol_or_the_first_frame(
    site: Site, way: str
) -> None:
    token = await site.token()
    options: dict[str, Any] = {"proxy": None}
    if way == "header":
        options["additional_headers"] = {"authorization": f"Bearer {token}"}
    elif way == "subprotocol":
        options["subprotocols"] = ["fairlead.v1", f"fairlead.bearer.{token}"]
    async with connect(f"ws://127.0.0.1:{site.port}/ws", **options) as client:
        if way == "first frame":
            await client.send(json.dumps({"type": "auth", "token": token}))
        assert (await received(client))["type"] == "stream.ready"
        if way == "subprotocol":
            assert client.subprotocol == "fairlead.v1"


async def test_a_token_in_the_url_is_no_token(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(websocket, "_AUTH", 0.05)
    url = f"ws://127.0.0.1:{site.port}/ws?token={await site.token()}"
    async with connect(url, proxy=None) as client:
        assert (await closed(client))[0] == 4408


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "auth", "token": "fl_000000000000_" + "x" * 43}, 4401),
        ({"type": "auth", "token": "nonsense"}, 4401),
        ({"type": "subscribe"}, 4401),
        ({"type": "nonsense"}, 4401),
        ({"type": "auth", "token": "x" * 20_000}, 1009),
    ],
)
async def test_a_first_frame_without_a_valid_token_closes_the_socket(
    site: Site, message: Any, code: int
) -> None:
    async with connect(f"ws://127.0.0.1:{site.port}/ws", proxy=None) as client:
        await client.send(json.dumps(message))
        found, reason = await closed(client)
        assert found == code
        assert "x" * 43 not in str(reason)


async def test_a_token_that_may_not_read_is_refused(site: Site) -> None:
    token = await site.token("submit")
    with pytest.raises(InvalidStatus) as caught:
        async with site.socket(token):
            raise AssertionError
    assert caught.value.response.status_code == 403
    async with connect(f"ws://127.0.0.1:{site.port}/ws", proxy=None) as client:
        await client.send(json.dumps({"type": "auth", "token": token}))
        assert (await closed(client))[0] == 4403


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}]
)
async def test_a_foreign_host_or_origin_is_refused_before_the_socket_is_accepted(
    site: Site, headers: dict[str, str]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    lines = {
        "host": f"127.0.0.1:{site.port}",
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "authorization": f"Bearer {await site.token()}",
        **headers,
    }
    writer.write(
        "".join(
            ["GET /ws HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in lines.items()), "\r\n"]
        ).encode()
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 403")
    writer.close()
    await writer.wait_closed()


async def test_a_wrong_token_is_refused_before_the_socket_is_accepted(site: Site) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with site.socket("fl_000000000000_" + "x" * 43):
            raise AssertionError
    assert caught.value.response.status_code == 401
    body = caught.value.response.body
    assert body is not None
    assert json.loads(body)["type"] == "/problems/unauthorized"


async def test_a_revoked_token_ends_its_socket(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "_PERIOD", 0.05)
    monkeypatch.setattr("fairlead.api.auth.token_cache._FRESH", 0.05)
    monkeypatch.setattr("fairlead.api.auth.token_cache._KNOWN", 0.1)
    async with site.subscribed() as client:
        service_client = site.api.server.service.client()
        for token in await list_tokens(service_client):
            assert await revoke_token(service_client, token.id)
        code, reason = await closed(client)
        assert (code, reason["reason"]) == (4401, "revoked")


# -- tenants -----------------------------------------------------------------------------------


async def test_a_token_of_a_tenant_sees_only_what_belongs_to_it(site: Site) -> None:
    await site.add.using(tenant="other").aenqueue(0, 0)
    token = await site.token(tenant="acme")
    async with site.socket(token) as client:
        assert (await received(client))["data"] == {"tenant": "acme"}
        await client.send(json.dumps({"type": "subscribe"}))
        assert (await received(client))["data"]["filters"] == [{"tenant": "acme"}]
        assert (await received(client))["data"]["queues"] == {}
        await site.app.aconfigure_queue("default", warn_depth=1)
        await site.add.using(tenant="other").aenqueue(1, 1)
        await site.fail.using(tenant="other").aenqueue()
        await site.add.using(tenant="acme").aenqueue(2, 2)
        await site.app.drain()
        await site.api.server.service.client().now()
        for _ in range(3):
            event = await received(client)
            assert event["data"]["tenant"] == "acme", event
            assert event["type"].startswith("task.")
        await client.send('{"type":"ping"}')
        assert (await received(client))["type"] == "stream.pong"


async def test_another_tenant_is_not_there(site: Site) -> None:
    token = await site.token(tenant="acme")
    foreign = await site.add.using(tenant="other", id="one").aenqueue(0, 0)
    async with site.socket(token) as client:
        await received(client)
        await client.send(json.dumps({"type": "subscribe", "tenant": "other"}))
        assert (await received(client))["data"]["type"] == "/problems/not-found"
        await client.send(json.dumps({"type": "subscribe", "task": foreign.id}))
        assert (await received(client))["data"]["type"] == "/problems/invalid"


# -- bad messages ------------------------------------------------------------------------------

BAD: list[tuple[Any, str]] = [
    ("nonsense", "body"),
    ('{"type":"explode"}', "type"),
    ('{"type":"subscribe","types":["task.exploded"]}', "types"),
    ('{"type":"subscribe","types":[]}', "types"),
    ('{"type":"subscribe","queue":"a b"}', "queue"),
    ('{"type":"subscribe","after":"nonsense"}', "after"),
    ('{"type":"subscribe","color":"red"}', "color"),
    ('{"type":"auth","token":"again"}', "type"),
]


@pytest.mark.parametrize(("message", "field"), BAD)
async def test_a_bad_message_is_answered_with_what_is_wrong(
    site: Site, message: str, field: str
) -> None:
    async with site.socket() as client:
        await received(client)
        await client.send(message)
        answer = await received(client)
        assert (answer["type"], answer["data"]["field"]) == ("stream.error", field)
        await client.send('{"type":"ping"}')
        assert (await received(client))["type"] == "stream.pong"


async def test_a_few_bad_messages_close_the_socket(site: Site) -> None:
    async with site.socket() as client:
        for _ in range(5):
            await client.send("nonsense")
        assert (await closed(client))[0] == 1008


async def test_a_message_that_is_too_long_closes_the_socket(site: Site) -> None:
    async with site.socket() as client:
        await client.send("x" * 17_000)
        assert (await closed(client))[0] == 1009


async def test_a_socket_that_wants_nothing_is_closed(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(websocket, "_IDLE", 0.05)
    async with site.socket() as client:
        assert (await closed(client))[0] == 1008


async def test_a_quiet_socket_is_pinged(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(websocket, "_HEARTBEAT", 0.05)
    async with site.subscribed(types=["dead"]) as client:
        assert (await received(client))["type"] == "stream.ping"


# -- the end -----------------------------------------------------------------------------------


async def test_a_server_that_drains_sends_its_sockets_elsewhere(site: Site) -> None:
    async with site.subscribed(types=["task.*"]) as client:
        await site.add.aenqueue(1, 2)
        event = await received(client)
        site.api.server.drain()
        assert await closed(client) == (1012, {"reason": "drained", "id": event["id"]})
    with pytest.raises(InvalidStatus) as caught:
        async with site.socket():
            raise AssertionError
    assert caught.value.response.status_code == 503


async def test_a_slow_socket_is_dropped_with_the_id_to_resume_from(
    site: Site, monkeypatch: Any
) -> None:
    monkeypatch.setattr(subscription, "MAX_EVENTS", 200)
    monkeypatch.setattr(hub, "_FOLLOW", 0.0)
    seen: list[Any] = []

    async def read(client: Any) -> None:
        while True:
            seen.append(await received(client))

    async with site.socket(sock=narrow(site.port), max_queue=1) as client:
        await client.send(json.dumps({"type": "subscribe", "types": ["submitted"]}))
        for _ in range(3):
            await received(client)
        ids: set[str] = set()
        while site.hub.clients:  # until its buffers are full, and then its queue
            handles = await site.app.aenqueue_many([site.add.call(n, n) for n in range(100)])
            ids |= {handle.id for handle in handles}
            await asyncio.sleep(0.001)  # the hub reads, the client does not
        with pytest.raises(ConnectionClosed) as caught:
            await read(client)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 4008
    said = json.loads(caught.value.rcvd.reason)
    assert (said["reason"], said["id"]) == ("slow", seen[-1]["id"])
    assert len(seen) < len(ids)
    async with site.subscribed(types=["submitted"], after=said["id"]) as client:
        rest = [await received(client) for _ in range(len(ids) - len(seen))]
    found = [event["data"]["task_id"] for event in (*seen, *rest)]
    assert len(found) == len(set(found))
    assert set(found) == ids


def narrow(port: int) -> sockets.socket:
    """A connection whose client takes in little unless it reads."""
    made = sockets.socket()
    made.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4_096)
    made.connect(("127.0.0.1", port))
    made.setblocking(False)
    return made
