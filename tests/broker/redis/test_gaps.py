"""Entries of cancelled tasks do not pile up in lines that nobody fetches from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.verbs import MAX_STEP, Alter, TenantChange
from tests.support.servers import Running
from tests.support.store import NOW, Client, ids, submit


@pytest.fixture
async def broker(valkey: Running) -> AsyncIterator[RedisBroker]:
    store = RedisBroker(valkey.url, test_clock=True)
    yield store
    await store.close()


async def test_tidy_closes_the_gaps_of_a_tenant_that_never_runs(
    broker: RedisBroker, valkey: Running
) -> None:
    c = Client(broker)
    await c.configure(TenantChange(tenant="a", paused=True))
    await c.enqueue(*[submit(f"first{i}") for i in range(300)])
    for batch in range(6):  # somebody keeps asking for the same work anew
        names = [f"b{batch}-{i}" for i in range(400)]
        await c.enqueue(*map(submit, names))
        orders = [Alter(id=name, action="cancel") for name in names[:-1]]
        for start in range(0, len(orders), MAX_STEP):
            await c.alter(*orders[start : start + MAX_STEP])
    key = "fl1:{0}:line:default:2:a"
    assert valkey.admin("LLEN", key) == 300 + 6 * 400

    moved = await broker.tidy(now=NOW)
    while moved.more:
        moved = await broker.tidy(now=NOW)

    assert valkey.admin("LLEN", key) <= 2 * 306 + 1_000  # fewer gaps are not worth the work
    assert await broker.audit(now=NOW) == []
    await c.configure(TenantChange(tenant="a", paused=False))
    left = [f"first{i}" for i in range(300)] + [f"b{batch}-399" for batch in range(6)]
    assert ids([lease for _ in range(12) for lease in await c.fetch(128)]) == left
