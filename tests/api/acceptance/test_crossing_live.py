"""Sockets and streams of events, opened by those who may not: nothing of another tenant is told."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairlead.api.http.route import SCOPES
from fairlead.api.route_table import BASE
from fairlead.api.serve import listen, serve
from tests.api.acceptance.world import MARK, OTHER, OWNER, World, opened_world

_numbers = itertools.count()
REFUSED = (InvalidStatus, ConnectionClosed)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[World, int]]:
    """A world whose server has a port."""
    async with opened_world() as world:
        with listen("127.0.0.1", 0) as listener:
            running = asyncio.ensure_future(serve(world.api.server, listener, grace=1.0, delay=0.0))
            try:
                yield world, listener.getsockname()[1]
            finally:
                world.api.server.drain()
                await asyncio.sleep(0.05)  # readers are told
                running.cancel()
                await asyncio.wait([running])


async def let_things_happen(world: World) -> str:
    """Both tenants do something of everything; the id of the last task, which is the other's."""
    for tenant, prefix in ((OWNER, MARK), (OTHER, OTHER)):
        work = world.work.using(tenant=tenant, queue="default")
        await work.aenqueue(f"{prefix} argument")
        await world.fails.using(tenant=tenant).aenqueue(f"{prefix} error")
        await (await work.using(delay=600).aenqueue(f"{prefix} delayed")).acancel()
        flow = work.call(f"{prefix} one") >> work.call(f"{prefix} two")
        await world.app.aenqueue_flow(flow, name=f"{prefix}-flow")
        await world.app.drain()
        await world.app.schedules.apause(f"{prefix}-schedule")
    last = f"last-{next(_numbers)}"
    await world.work.using(tenant=OTHER, id=last).aenqueue()
    return last


async def socket_text(port: int, headers: dict[str, str], world: World, **asked: Any) -> str:
    url = f"ws://127.0.0.1:{port}/ws"
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        await socket.send(json.dumps({"type": "subscribe", **asked}))
        read = [str(await socket.recv()) for _ in range(3)]
        last = await let_things_happen(world)
        async with asyncio.timeout(20):
            while last not in read[-1]:
                read.append(str(await socket.recv()))
        return "\n".join(read)


async def stream_text(port: int, headers: dict[str, str], world: World, **asked: Any) -> str:
    read = last = ""
    async with (
        httpx.AsyncClient(headers=headers, timeout=20) as client,
        client.stream("GET", f"http://127.0.0.1:{port}/events", params=asked) as answer,
    ):
        assert answer.status_code == 200
        async for piece in answer.aiter_text():
            if not read:
                last = await let_things_happen(world)
            read += piece
            if last in read:
                return read
    raise AssertionError(read)


@pytest.mark.parametrize("reader", [socket_text, stream_text])
async def test_a_tenant_hears_of_itself_only(reader: Any) -> None:
    async with listening() as (world, port):
        heard = await reader(port, await world.api.token("read", tenant=OTHER), world)
        assert MARK not in heard
        assert f"{OTHER}-flow" in heard or OTHER in heard
        everything = await reader(port, await world.api.token("read"), world)
        assert MARK in everything  # what was looked for can be found
        for secret in ("argument", "delayed", "one", "two"):
            assert f"{MARK} {secret}" not in everything


@pytest.mark.parametrize("reader", [socket_text, stream_text])
async def test_nothing_of_the_past_of_another_is_heard(reader: Any) -> None:
    """From the beginning on, with the id of an event that the other tenant caused."""
    async with listening() as (world, port):
        operator = await world.api.token("read")
        before = await reader(port, operator, world)
        ids = [part.split('"', 1)[0] for part in before.split('"id":"')[1:]]
        events = [each for each in ids if each.count("-") >= 3]
        assert events
        after = events[0]
        headers = await world.api.token("read", tenant=OTHER)
        heard = await reader(port, headers, world, after=after)
        assert MARK not in heard


@pytest.mark.parametrize(
    "asked", [{"tenant": OWNER}, {"task": f"{OWNER}:{MARK}-waiting"}, {"queue": f"{MARK}-queue"}]
)
async def test_asking_for_another_tenant_leads_nowhere(asked: dict[str, str]) -> None:
    async with listening() as (world, port):
        headers = await world.api.token("read", tenant=OTHER)
        url = f"ws://127.0.0.1:{port}/ws"
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            await socket.send(json.dumps({"type": "subscribe", **asked}))
            await socket.send('{"type":"subscribe","name":"work"}')
            last = await let_things_happen(world)
            read: list[str] = []
            async with asyncio.timeout(20):
                while not any(last in each for each in read):
                    read.append(str(await socket.recv()))
            for each in read:
                said = each
                for value in asked.values():
                    said = said.replace(value, "")
                assert MARK not in said


async def refusal(url: str, headers: dict[str, str]) -> Exception:
    """How a socket ends that is not let in; it hears of no task before."""
    try:
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            await socket.send('{"type":"subscribe"}')
            while True:
                assert "task." not in str(await socket.recv())
    except REFUSED as error:
        return error


async def test_only_the_scope_read_opens_them() -> None:
    async with listening() as (world, port):
        url, http = f"ws://127.0.0.1:{port}/ws", f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=http, timeout=20) as client:
            for scope in SCOPES:
                if scope == "read":
                    continue
                headers = await world.api.token(scope)
                assert (await client.get("/events", headers=headers)).status_code == 403
                assert isinstance(await refusal(url, headers), REFUSED)
            assert (await client.get("/events")).status_code == 401
            wrong = {"authorization": f"Bearer fl_{'0' * 12}_{'a' * 43}"}
            assert isinstance(await refusal(url, wrong), REFUSED)
            # Never by the URL.
            token = (await world.api.token())["authorization"].partition(" ")[2]
            for name in ("token", "access_token", "authorization", "bearer"):
                answer = await client.get("/events", params={name: token})
                assert answer.status_code in (401, 422)
                assert token not in answer.text
                assert (await client.get(f"{BASE}/tasks?{name}={token}")).status_code == 401


async def test_pages_of_other_origins_are_refused_before_they_are_accepted() -> None:
    async with listening() as (world, port):
        url, headers = f"ws://127.0.0.1:{port}/ws", await world.api.token()
        for extra in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": f"http://127.0.0.1:{port}.evil.example"},
            {"host": "evil.example"},
            {"host": f"127.0.0.1.evil.example:{port}"},
        ):
            refused = await refusal(url, {**headers, **extra})
            assert isinstance(refused, InvalidStatus)
            assert refused.response.status_code in (400, 403)
