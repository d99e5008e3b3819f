"""The app of tests that hold for every broker; a test file that needs another has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead import Fairlead
from tests.support.servers import shared

__all__ = ("app",)


@pytest.fixture(params=["memory", "valkey"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[Fairlead]:
    """An app in memory, and one on Valkey."""
    if request.param == "memory":
        async with Fairlead("memory://") as made:
            yield made
        return
    with shared() as running:
        async with Fairlead(running.url) as made:
            yield made
