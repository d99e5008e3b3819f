from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.broker import connect
from fairlead.ledger.ledger import Ledger
from tests.manager.bench import Bench
from tests.support.servers import Running, shared


@pytest.fixture
def valkey() -> Iterator[Running]:
    """A server that is empty."""
    with shared() as running:
        yield running


@pytest.fixture
async def bench(valkey: Running, ledger: Ledger, ledger_dsn: str) -> AsyncIterator[Bench]:
    """A broker, a ledger, and nobody who leads."""
    store = connect(valkey.url)
    try:
        yield Bench(store, ledger, ledger_dsn)
    finally:
        await store.close()
