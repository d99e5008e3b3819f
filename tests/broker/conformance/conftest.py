"""Every test in this folder runs against every broker; what is stored must be sound after each."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cache, partial
from typing import Literal
from zlib import crc32

import pytest
from hypothesis import is_hypothesis_test

from fairlead.broker import Store
from fairlead.broker.clock import Clock
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.redis import RedisBroker
from fairlead.model.errors import Refused
from tests.support import fair, servers
from tests.support.long_way import chosen_lua
from tests.support.store import NOW, Client
from tests.support.twins import emptied

_shards = itertools.count()
_EVENT_BYTES = 16 * 1024 * 1024
_servers = ExitStack()
atexit.register(_servers.close)


def _on_server(
    kind: Literal["valkey", "redis"],
    *,
    test_clock: bool,
    event_bytes: int = _EVENT_BYTES,
    clock: Clock | None = None,
) -> Store:
    """A broker on an empty database of the server of all tests of this process."""
    return RedisBroker(
        emptied(kind),
        test_clock=test_clock,
        event_bytes=event_bytes,
        clock=clock,
        lua=chosen_lua(),
    )


@cache
def _nodes() -> list[servers.Running]:
    return _servers.enter_context(servers.cluster(3))


def _on_cluster(
    *, test_clock: bool, event_bytes: int = _EVENT_BYTES, clock: Clock | None = None
) -> Store:
    """A broker on a new shard of a cluster, wherever that lies; old shards are thrown away."""
    number = next(_shards)
    for node in _nodes():
        if keys := node.admin("KEYS", f"fl1:{{t{number - 16}}}:*"):
            node.admin("UNLINK", *keys)
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in _nodes())
    return RedisBroker(
        url,
        shard=f"t{number}",
        test_clock=test_clock,
        event_bytes=event_bytes,
        clock=clock,
        lua=chosen_lua(),
    )


# Redis where it is installed. FAIRLEAD_BROKERS=valkey,cluster leaves the others out.
OPENERS: dict[str, Callable[..., Store]] = {
    "valkey": partial(_on_server, "valkey"),
    **({"redis": partial(_on_server, "redis")} if shutil.which("redis-server") else {}),
    "cluster": _on_cluster,
}
if chosen := os.environ.get("FAIRLEAD_BROKERS"):
    OPENERS = {name: OPENERS[name] for name in chosen.split(",") if name in OPENERS}

BROKERS: dict[str, Callable[[int], Store]] = {
    "memory": lambda size: MemoryBroker(test_clock=True, event_bytes=size),
    **{
        name: partial(lambda opener, size: opener(test_clock=True, event_bytes=size), opener)
        for name, opener in OPENERS.items()
    },
}
# As bytes are counted where they are stored: servers write what events of a call share only once.
TERSE = {"memory": 4096, **dict.fromkeys(OPENERS, 2048)}
# For the tests that open brokers themselves. Read when their modules are imported, after this one.
for _name, _opener in OPENERS.items():
    fair.WITH_TEST_CLOCK[_name] = partial(_opener, test_clock=True)
    fair.WITH_REAL_CLOCK[_name] = partial(_opener, test_clock=False)


# On a cluster the same functions run as on one server; what differs are connections and routing. So
# a third of the suite is enough for each run, without the properties and what is slow as it is.
# FAIRLEAD_FULL=1 leaves nothing out.
def _is_left_out(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or "[cluster" not in item.nodeid:
        return False
    slow = any(mark.name == "slow" for mark in getattr(item.function, "pytestmark", ()))
    return slow or is_hypothesis_test(item.function) or crc32(item.nodeid.encode()) % 3 != 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("FAIRLEAD_FULL"):
        return
    gone = {each for each in items if _is_left_out(each)}
    if gone:
        config.hook.pytest_deselected(items=list(gone))
        items[:] = [each for each in items if each not in gone]


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
