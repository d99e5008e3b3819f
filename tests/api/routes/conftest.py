"""What the tests of routes share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.routes.site import Caller, Site, site


@pytest.fixture
async def s() -> AsyncIterator[Site]:
    async with site() as made:
        yield made


@pytest.fixture
async def operator(s: Site) -> Caller:
    """Has every scope, and belongs to no tenant."""
    return await s.caller()


@pytest.fixture
async def acme(s: Site) -> Caller:
    """Has every scope, for the tenant acme."""
    return await s.caller(tenant="acme")
