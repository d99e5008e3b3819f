"""Every test in this folder runs against every broker; what is stored must be sound after each."""

from __future__ import annotations

import atexit
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cache

import pytest
import redis

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.redis import RedisBroker
from fairlead.model.errors import Refused
from tests.support import fair, servers
from tests.support.store import NOW, Client

_databases = itertools.cycle(range(16))  # as many as a server has: more than a test opens
_servers = ExitStack()
atexit.register(_servers.close)


@cache
def _valkey() -> servers.Running:
    """The server of all tests of this process."""
    return _servers.enter_context(servers.server("valkey"))


def _on_valkey(*, test_clock: bool, event_bytes: int = 16 * 1024 * 1024) -> Store:
    """A broker on an empty database: as good as a new server, and much sooner there."""
    running, database = _valkey(), next(_databases)
    with redis.Redis(unix_socket_path=running.path, db=database) as client:
        client.flushdb()
    url = f"{running.url}?db={database}"
    return RedisBroker(url, test_clock=test_clock, event_bytes=event_bytes)


BROKERS: dict[str, Callable[[int], Store]] = {
    "memory": lambda size: MemoryBroker(test_clock=True, event_bytes=size),
    "valkey": lambda size: _on_valkey(test_clock=True, event_bytes=size),
}
# As bytes are counted where they are stored: Valkey writes what events of a call share only once.
TERSE = {"memory": 4096, "valkey": 2048}
# For the tests that open brokers themselves. Read when their modules are imported, after this one.
fair.WITH_TEST_CLOCK["valkey"] = lambda: _on_valkey(test_clock=True)
fair.WITH_REAL_CLOCK["valkey"] = lambda: _on_valkey(test_clock=False)


@pytest.fixture(params=BROKERS)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A new, empty broker with a test clock. Afterwards its audit must find nothing wrong."""
    async with _opened(request.param, 16 * 1024 * 1024) as store:
        yield store


@pytest.fixture(params=BROKERS)
async def terse_broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """The same, with room for no more than 4 kB of events."""
    async with _opened(request.param, TERSE[request.param]) as store:
        yield store


@pytest.fixture
def c(broker: Store) -> Client:
    """The incarnation ``w1``, for tests that need no second one."""
    return Client(broker, "w1")


@asynccontextmanager
async def _opened(name: str, event_bytes: int) -> AsyncIterator[Store]:
    store = BROKERS[name](event_bytes)
    try:
        yield store
        assert await _audited(store) == []
    finally:
        await store.close()


async def _audited(store: Store) -> list[str]:
    """What the audit finds at the end of a test; nothing if the test itself closed the broker."""
    try:
        return await store.audit(now=NOW)  # a moment before the last one counts as the last one
    except Refused as refused:
        if refused.cause != "closed":
            raise
        return []
