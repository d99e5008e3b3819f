from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead.broker.redis.address import parse
from fairlead.broker.redis.connection import Server
from tests.broker.redis.harness import Opener
from tests.support.proxy import Proxy, proxy
from tests.support.servers import Running, shared


@pytest.fixture
def valkey() -> Iterator[Running]:
    """A server that has not heard of us: calls load the functions that they need."""
    with shared(functions=False) as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Opener]:
    opened: list[Server] = []

    def open_server(url: str, **options: Any) -> Server:
        options.setdefault("patience", 5.0)
        opened.append(Server(parse(url), **options))
        return opened[-1]

    yield open_server
    for each in opened:
        await each.close()


@pytest.fixture
async def between(valkey: Running) -> AsyncIterator[Proxy]:
    async with proxy(path=valkey.path) as made:
        yield made
