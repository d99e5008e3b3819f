"""Every test of the worker ends with a broker whose state is sound."""

from collections.abc import AsyncIterator

import pytest

from fairlead.broker.memory import MemoryBroker
from tests.worker.harness import NOW, Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    assert await rig.broker.audit() == []


@pytest.fixture
async def slow() -> AsyncIterator[Rig]:
    """A rig whose clock stands still until somebody moves it with ``now=``."""
    rig = Rig(MemoryBroker(test_clock=True))
    await rig.broker.promote(now=NOW)
    yield rig
    assert await rig.broker.audit() == []
