"""Calls to a broker that is known to be away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.broker.requests import Alter, Call, Fetch, TenantChange
from fairlead.model.errors import Unreachable
from fairlead.model.lifecycle import Settlement, State
from tests.fallback.bench import Bench, submit


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "spool")
    yield made
    made.close()


async def test_no_call_is_tried_while_the_broker_is_away(bench: Bench) -> None:
    client = bench.client
    await bench.submit(submit("before"))
    bench.fail()
    await bench.submit(submit("a"))
    # The broker would answer to all of these: only enqueues fail.
    for call in (
        client.reader.one("before", "info"),
        client.store.stats(None),
        client.store.standing("before"),
        client.alter([Alter(id="before", action="cancel", tenant="acme")]),
        client.configure([TenantChange(tenant="acme", weight=2)]),
    ):
        with pytest.raises(Unreachable, match="known to be away"):
            await asyncio.wait_for(call, 10.0)
    await bench.recover()
    assert await client.reader.one("before", "info") is not None
    await client.configure([TenantChange(tenant="acme", weight=2)])


async def test_who_waits_for_a_task_goes_on_waiting(bench: Bench) -> None:
    await bench.submit(submit("before"))
    waiting = asyncio.create_task(bench.client.waiter.wait("before"))
    bench.fail()
    await bench.submit(submit("a"))
    store = bench.broker.inner
    reply = await store.exchange(Call("w", 1), fetch=Fetch(queues=("default",), max=1))
    [lease] = reply.leased
    done = Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED)
    await store.exchange(Call("w", 2), [done])
    assert await asyncio.wait_for(waiting, 5.0) is State.COMPLETED
    await bench.client.close()
