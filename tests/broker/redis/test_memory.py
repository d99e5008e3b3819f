"""The server's memory: little for a task that waits, nothing for one that is done and forgotten.

The small form runs everywhere; ``FAIRLEAD_FULL=1`` takes the sizes that ``fairlead bench`` has.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from benchmarks.server_memory import growth, queued_bytes
from benchmarks.server_probe import Probe
from fairlead.broker import Store
from fairlead.broker.redis import RedisBroker
from tests.support.servers import server

FULL = os.environ.get("FAIRLEAD_FULL", "") not in ("", "0")
QUEUED, MORE = (100_000, 200_000) if FULL else (20_000, 30_000)
FIRST = 20_000  # twice what a queue keeps of finished tasks
EVENTS = 16 * 1024 * 1024 if FULL else 1024 * 1024  # bytes
MOST = 320  # bytes of a task with a payload of 100

pytestmark = [pytest.mark.serial, pytest.mark.slow, pytest.mark.timeout(600 if FULL else 120)]


@pytest.fixture
def probe() -> Iterator[Probe]:
    with server(aof=True) as running:
        made = Probe(running.url)
        yield made
        made.close()


@pytest.fixture
async def broker(probe: Probe) -> AsyncIterator[Store]:
    store = RedisBroker(f"unix://{probe.place.path}", event_bytes=EVENTS)
    yield store
    assert FULL or await store.audit() == []
    await store.close()


async def test_tasks_that_are_done_and_forgotten_leave_nothing_behind(
    broker: Store, probe: Probe
) -> None:
    found = await growth(broker, probe, fill=500_000, first=FIRST, more=MORE)
    assert found.bytes <= found.allowed, found


async def test_a_task_that_waits_takes_little_more_than_its_payload(
    broker: Store, probe: Probe
) -> None:
    await growth(broker, probe, fill=500_000, first=1, more=0)  # a full stream of events
    room = await queued_bytes(broker, probe, QUEUED)
    assert room.each <= MOST, room
