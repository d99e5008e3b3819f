"""Counters, and where a task stands, over two shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead.broker.requests import LimiterChange, QueueChange, TenantChange
from fairlead.broker.sharded import ShardedBroker
from fairlead.broker.standing import Waits
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from tests.broker.redis.carrying import opened
from tests.support.flows import make
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, dead, drain, submit


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
    for store in broker.stores.values():
        scripts: Any = store

        async def run(name: str, args: Any, run: Any = scripts.run) -> Any:
            reply = await run(name, args)
            told.append(sum(isinstance(part, list) and bool(part) for part in reply))
            return reply

        monkeypatch.setattr(store, "run", run)
    stats = await broker.stats(tenants=True, now=NOW)
    assert {name: sorted(each) for name, each in stats.tenants.items()} == {
        name: ["tx", "ty"] for name in ("a", "b", "far")
    }
    assert max(told) == 1


async def test_settings_of_all_shards_are_told_once(broker: ShardedBroker) -> None:
    c = Client(broker)
    queues = [QueueChange(queue=name, concurrency=3) for name in ("default", "far")]
    tenants = [TenantChange(tenant="a", queue=name, weight=2.0) for name in (None, "near", "far")]
    await c.configure(*queues, *tenants, LimiterChange(name="gpu", concurrency=1))
    told: list[str] = []
    cursor = None
    while True:
        page = await broker.settings(cursor=cursor, now=NOW)
        told += [each.queue for each in page.queues]
        told += [f"{each.tenant} in {each.queue}" for each in page.tenants]
        told += [each.name for each in page.limiters]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(told) == ["a in None", "a in far", "a in near", "default", "far", "gpu"]
    (far,) = (await broker.settings("far", now=NOW)).queues
    assert (far.queue, far.concurrency) == ("far", 3)
    with pytest.raises(InvalidInput):
        await broker.settings(cursor="nowhere:q0", now=NOW)


async def test_the_oldest_task_of_a_queue_in_two_shards_is_told(broker: ShardedBroker) -> None:
    """Its route was changed: something is left in the shard where it was."""
    await Client(broker.stores["0"], "w1").enqueue(submit("t1", queue="far"), now=NOW)
    await Client(broker, "w2").enqueue(submit("t2", queue="far"), now=NOW + 5)
    assert (await broker.snapshot(now=NOW + 5)).queues["far"].oldest_at == NOW


async def test_one_tenant_and_the_dead_are_told_of_all_shards(broker: ShardedBroker) -> None:
    c = Client(broker)
    await c.configure(TenantChange(tenant="a", weight=3.0), LimiterChange(name="gpu", failures=2))
    leases = await c.run(submit("a"), submit("b", queue="far"), queues=["default", "far"])
    await c.settle(*map(dead, leases))
    await c.enqueue(submit("c", queue="far"), submit("d", "other", "far"))
    found = await broker.snapshot(tenant="a", now=NOW)
    assert {name: set(queue.tenants) for name, queue in found.queues.items()} == {
        "default": {"a"},
        "far": {"a"},
    }
    stats = await broker.stats(tenant="a", now=NOW)
    assert {name: set(each) for name, each in stats.tenants.items()} == {
        "default": {"a"},
        "far": {"a"},
    }
    listed: list[str] = []
    cursor = None
    while True:
        page = await broker.page(state=State.DEAD, limit=1, cursor=cursor, now=NOW)
        listed += [record.message.id for record in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(listed) == ["a", "b"]
    assert [each.weight for each in (await broker.settings(tenant="a", now=NOW)).tenants] == [3.0]
    limiters = (await broker.settings(limiter="gpu", now=NOW)).limiters
    assert [each.failures for each in limiters] == [2]


async def test_a_flow_tells_its_graph_wherever_it_lies(broker: ShardedBroker) -> None:
    c = Client(broker)
    await c.enqueue(submit("outside"))
    await make(
        c, "f", submit("x", queue="far", after=["outside"]), submit("y", queue="far", after=["x"])
    )
    assert [(each.id, each.depends_on) for each in await broker.graph("f", now=NOW)] == [
        ("x", ("outside",)),
        ("y", ("x",)),
    ]
