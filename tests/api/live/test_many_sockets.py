"""Many sockets on one server: how soon they are told, and what those cost that do not read."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Close

from fairlead import Fairlead
from tests.api.live.process import Served, serving
from tests.api.live.site import received
from tests.support.servers import server

pytestmark = [pytest.mark.slow, pytest.mark.serial]

SOCKETS = 200
EVENTS = 50
SLOW = 500


def app_on(url: str) -> Fairlead:
    app = Fairlead(url)

    @app.task(name="work")
    async def work() -> None: ...

    return app


async def test_an_event_reaches_200_sockets_soon() -> None:
    with server() as valkey, serving(valkey.url) as served:
        async with AsyncExitStack() as stack:
            app = await stack.enter_async_context(app_on(valkey.url))
            url = f"ws://127.0.0.1:{served.port}/ws"
            sockets = [
                await stack.enter_async_context(connect(url, proxy=None, compression=None))
                for _ in range(SOCKETS)
            ]
            for each in sockets:
                await each.send('{"type":"subscribe","types":["task.submitted"]}')
            for each in sockets:
                for type in ("stream.ready", "stream.subscribed", "snapshot"):
                    assert (await received(each))["type"] == type

            delays: list[float] = []

            async def hear(one: object) -> None:
                message = await received(one)  # type: ignore[arg-type]
                assert message["type"] == "task.submitted"
                delays.append(time.monotonic() - began)

            for _ in range(EVENTS):
                began = time.monotonic()
                hearing = [asyncio.ensure_future(hear(each)) for each in sockets]
                await app.registered("work").aenqueue()
                await asyncio.gather(*hearing)
    delays.sort()
    p50, p99 = (delays[int(len(delays) * share)] for share in (0.5, 0.99))
    print(f"{SOCKETS} sockets: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms", file=sys.stderr)
    assert p50 < 0.1
    # 100 ms is the aim on a machine that does nothing else; the clients are in this process too.
    assert p99 < float(os.environ.get("FAIRLEAD_SOCKET_P99", "0.5"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory from /proc")
@pytest.mark.timeout(240)
async def test_500_sockets_that_do_not_read_take_no_more_memory_with_time() -> None:
    with server() as valkey, serving(valkey.url) as served:
        async with app_on(valkey.url) as app:
            before = served.memory()
            stuck = await asyncio.gather(*(deaf(served) for _ in range(SLOW)))
            url = f"ws://127.0.0.1:{served.port}/ws"
            async with connect(url, proxy=None, compression=None) as quick:
                await quick.send('{"type":"subscribe","types":["task.submitted"],"batch":true}')
                for _ in range(3):
                    await received(quick)
                grown: list[float] = []
                for _ in range(6):
                    await pump(app, quick, 5_000)
                    grown.append(served.memory() - before)
                print(f"grown by {[round(each) for each in grown]} MiB", file=sys.stderr)
                # Each holds what the server may write ahead, and no queue any more.
                assert grown[-1] < 0.4 * SLOW
                assert grown[-1] - grown[2] < 20
            for each in stuck[:20]:
                code, reason = await asyncio.wait_for(last_words(each), 30)
                assert code == 4008
                assert reason["id"]
            for each in stuck:
                each.close()


async def pump(app: Fairlead, quick: object, count: int) -> None:
    """Make events, and read them as a client does that keeps up."""
    for _ in range(count // 500):
        await app.aenqueue_many([app.registered("work").call() for _ in range(500)])
        seen = 0
        while seen < 500:
            seen += len(await received(quick))  # type: ignore[arg-type]


async def deaf(served: Served) -> socket.socket:
    """A socket that subscribed, and reads nothing from then on."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.setblocking(False)
    await loop.sock_connect(made, ("127.0.0.1", served.port))
    await loop.sock_sendall(
        made,
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode(),
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += await loop.sock_recv(made, 1)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    text = b'{"type":"subscribe","types":["task.submitted"]}'
    await loop.sock_sendall(made, b"\x81" + bytes([0x80 | len(text)]) + b"\0\0\0\0" + text)
    return made


async def last_words(made: socket.socket) -> tuple[int, dict[str, str]]:
    """Read to the end; the code and the reason with which the server closed."""
    loop = asyncio.get_running_loop()
    data = b""

    async def need(count: int) -> None:
        nonlocal data
        while len(data) < count:
            more = await loop.sock_recv(made, 65_536)
            if not more:
                raise EOFError
            data += more

    while True:
        await need(2)
        size, head = data[1], 2
        if size >= 126:
            width = 2 if size == 126 else 8
            await need(2 + width)
            size, head = int.from_bytes(data[2 : 2 + width]), 2 + width
        await need(head + size)
        opcode, payload = data[0] & 0x0F, data[head : head + size]
        data = data[head + size :]
        if opcode == 8:
            close = Close.parse(payload)
            return close.code, json.loads(close.reason)
