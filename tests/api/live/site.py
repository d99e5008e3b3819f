"""A server of the API on a port of this machine, and an app whose events it tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from fairlead import Fairlead
from fairlead.api.live import hub_of
from fairlead.api.serve import listen, serve
from tests.api.app import Api

__all__ = ("Site", "opened", "received")


class Site:
    """Where it listens, and what goes on there."""

    def __init__(self, api: Api, port: int) -> None:
        self.api = api
        self.app = api.app
        self.port = port
        self.hub = hub_of(api.server.service)

        @self.app.task(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        @self.app.task(name="fail", max_retries=0, queue="mail")
        async def fail() -> None:
            raise ValueError("it did not work")

        self.add, self.fail = add, fail

    async def token(self, *scopes: str, tenant: str | None = None) -> str:
        """The text of a new token; without scopes it may only read."""
        header = await self.api.token(*(scopes or ("read",)), tenant=tenant)
        return header["authorization"].removeprefix("Bearer ")

    @asynccontextmanager
    async def socket(self, token: str | None = None, **options: Any) -> AsyncIterator[Any]:
        """A socket; with the token in its header, or one that may read."""
        token = await self.token() if token is None else token
        headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
        url = f"ws://127.0.0.1:{self.port}/ws"
        options = {"proxy": None, "compression": None, **options}
        async with connect(url, additional_headers=headers, **options) as socket:
            yield socket

    @asynccontextmanager
    async def subscribed(self, token: str | None = None, **asked: Any) -> AsyncIterator[Any]:
        """A socket that has subscribed, and has read its snapshot."""
        async with self.socket(token) as socket:
            await socket.send(json.dumps({"type": "subscribe", **asked}))
            for type in ("stream.ready", "stream.subscribed", "snapshot"):
                message = await received(socket)
                first = message[0] if isinstance(message, list) else message
                assert first["type"] == type
            yield socket


async def received(socket: ClientConnection) -> Any:
    """The next message, decoded."""
    async with asyncio.timeout(10):
        return json.loads(await socket.recv())


@asynccontextmanager
async def opened(app: Fairlead | None = None, **settings: Any) -> AsyncIterator[Site]:
    """Run a server in this process."""
    with listen("127.0.0.1", 0) as listener:
        api = Api(app, **settings)
        running = asyncio.ensure_future(serve(api.server, listener, grace=1.0, delay=0.0))
        try:
            yield Site(api, listener.getsockname()[1])
        finally:
            api.server.drain()
            await asyncio.sleep(0.05)  # sockets are told
            running.cancel()
            await asyncio.wait([running])
            await api.server.service.close()
            await api.app.aclose()
