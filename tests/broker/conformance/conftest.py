"""Every test in this folder runs against every broker; what is stored must be sound after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.model.errors import Refused
from tests.support.store import NOW, Client

BROKERS: dict[str, Callable[[int], Store]] = {
    "memory": lambda size: MemoryBroker(test_clock=True, event_bytes=size),
}


@pytest.fixture(params=BROKERS)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A new, empty broker with a test clock. Afterwards its audit must find nothing wrong."""
    async with _opened(request.param, 16 * 1024 * 1024) as store:
        yield store


@pytest.fixture(params=BROKERS)
async def terse_broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """The same, with room for no more than 4 kB of events."""
    async with _opened(request.param, 4096) as store:
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
