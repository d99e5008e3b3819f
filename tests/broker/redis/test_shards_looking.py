"""Counters, and where a task stands, over two shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead.broker.sharded import ShardedBroker
from fairlead.broker.standing import Waits
from fairlead.model.lifecycle import State
from tests.broker.redis.carrying import opened
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, drain, submit


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server() as started:
        yield started


@pytest.fixture
async def broker(running: Running) -> AsyncIterator[ShardedBroker]:
    """All queues live in the first shard but ``far``."""
    running.admin("FLUSHALL")
    store = opened(running.url, "0", "other")
    try:
        yield store
        assert await store.audit(now=NOW) == []
    finally:
        await store.close()


async def test_counters_of_all_shards_are_told_together(broker: ShardedBroker) -> None:
    c = Client(broker)
    leases = await c.run(submit("a"), submit("b", queue="far"), queues=["default", "far"])
    await c.settle(*map(completed, leases))
    stats = await broker.stats(tenants=True, now=NOW)
    assert {name: queue.completed for name, queue in stats.queues.items()} == {
        "default": 1,
        "far": 1,
    }
    assert {name: each["a"].started for name, each in stats.tenants.items()} == {
        "default": 1,
        "far": 1,
    }
    assert list((await broker.stats("far", now=NOW)).queues) == ["far"]


async def test_a_task_knows_the_state_of_a_parent_elsewhere_and_when_it_was_told(
    broker: ShardedBroker,
) -> None:
    c = Client(broker)
    (parent,) = await c.run(submit("parent", queue="far"), queues=["far"])
    await c.enqueue(submit("child", after=["parent"]))
    await drain(broker)
    found = await broker.standing("child", now=NOW)
    assert found is not None
    assert found.waits_for == (Waits("parent", State.RUNNING),)
    assert await broker.standing("nobody", now=NOW) is None

    await c.settle(completed(parent), now=NOW + 1)
    await drain(broker)
    found = await broker.standing("child", now=NOW + 1)
    assert found is not None
    assert (found.record.state, found.waits_for) == (State.QUEUED, ())
    release = (await broker.stats("default", now=NOW + 1)).queues["default"].release
    assert release.count == 1
    assert release.largest < 1.0


async def test_tenants_of_several_queues_are_not_read_in_one_call(
    broker: ShardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Client(broker)
    await c.enqueue(*(submit(f"{q}{i}", f"t{i}", queue=q) for q in ("a", "b", "far") for i in "xy"))
    told: list[int] = []
    for store in broker._stores.values():
        scripts: Any = store

        async def run(name: str, args: Any, run: Any = scripts._run) -> Any:
            reply = await run(name, args)
            told.append(sum(isinstance(part, list) and bool(part) for part in reply))
            return reply

        monkeypatch.setattr(store, "_run", run)
    stats = await broker.stats(tenants=True, now=NOW)
    assert {name: sorted(each) for name, each in stats.tenants.items()} == {
        name: ["tx", "ty"] for name in ("a", "b", "far")
    }
    assert max(told) == 1
