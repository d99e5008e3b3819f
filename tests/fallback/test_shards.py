"""One of several servers that is away costs the tasks of the others nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.broker import connect
from fairlead.broker.requests import Receipt
from fairlead.client.client import Client
from fairlead.fallback.drainer import Drainer
from fairlead.fallback.fallback import Fallback, FallbackOptions
from fairlead.fallback.prober import Prober
from tests.fallback.bench import submit
from tests.support.servers import Running, server


@pytest.fixture
def servers() -> Iterator[tuple[Running, Running]]:
    with server(aof=True) as main, server(aof=True) as bulk:
        yield main, bulk


@pytest.mark.serial
async def test_a_server_that_is_away_costs_the_others_nothing(
    servers: tuple[Running, Running], tmp_path: Path
) -> None:
    main, bulk = servers
    store = connect(main.url, routes={"queue:bulk": f"{bulk.url}?shard=bulk"})
    fallback = Fallback(
        store, FallbackOptions(directory=tmp_path / "spool", silence=1.0, is_kept=False)
    )
    client = Client(store, fallback=fallback)

    def state() -> str:
        return fallback.state

    def where(receipts: list[Receipt]) -> list[str]:
        return [receipt.durability for receipt in receipts]

    first = [submit("m0"), submit("b0", queue="bulk")]
    assert where(await client.submit_many(first)) == ["committed", "committed"]
    bulk.pause()  # the worse case: it says nothing
    try:
        began = time.monotonic()
        mixed = [submit("m1"), submit("b1", queue="bulk"), submit("m2")]
        assert where(await client.submit_many(mixed)) == ["committed", "spooled", "committed"]
        assert time.monotonic() - began < 3.0
        assert fallback.outages.of("bulk") == "spooling"
        assert fallback.outages.of("0") == "healthy"
        assert state() == "spooling"
        began = time.monotonic()
        assert (await client.submit(submit("m3"))).durability == "committed"
        assert (await client.submit(submit("b2", queue="bulk"))).durability == "spooled"
        assert time.monotonic() - began < 0.5
        drainer = Drainer(fallback)
        while await drainer.step():
            pass
        assert fallback.spool.depth == 2
        # A task here that depends on one there cannot be decided, and waits in the spool.
        child = submit("child", depends_on=["b1"])
        assert (await client.submit(child)).durability == "spooled"
        while await drainer.step():
            pass
        assert fallback.spool.depth == 3
    finally:
        bulk.resume()
    prober = Prober("bulk", fallback.parts.stores["bulk"], fallback.outages, silence=1.0)
    await prober.run()
    while await drainer.step():
        pass
    assert fallback.spool.depth == 0
    assert state() == "healthy"
    found = await store.find(["m1", "b1", "b2", "m3", "child"])
    assert [each and str(each.state) for each in found] == [
        "queued", "queued", "queued", "queued", "deferred",
    ]  # fmt: skip
    await fallback.close()
    await store.close()
