"""A snapshot says since when the task can run that has waited the longest."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Alter, QueueChange, Setting, TenantChange
from tests.support.store import NOW, Client, completed, failed, released, submit


async def oldest(broker: Store, queue: str = "default", *, tenants: bool = True) -> float | None:
    snapshot = await broker.snapshot(tenants=tenants)
    counts = snapshot.queues.get(queue)
    return None if counts is None else counts.oldest_at


async def test_a_queue_without_queued_tasks_has_none(c: Client) -> None:
    await c.enqueue(submit("later", delay=60.0))
    assert await oldest(c.broker) is None
    (lease,) = await c.run(submit("t1"))
    assert await oldest(c.broker) is None
    await c.settle(completed(lease))
    assert await oldest(c.broker) is None


async def test_the_first_in_line_has_waited_since_it_came(c: Client) -> None:
    for n in range(3):
        await c.enqueue(submit(f"t{n}"), now=NOW + n)
    assert await oldest(c.broker) == NOW
    assert await oldest(c.broker, tenants=False) == NOW
    snapshot = await c.broker.snapshot("default")
    assert snapshot.queues["default"].oldest_at == NOW
    await c.fetch(1, now=NOW + 3)
    assert await oldest(c.broker) == NOW + 1


async def test_each_tenant_and_each_level_is_looked_at(c: Client) -> None:
    await c.enqueue(submit("b1", "b", level=1), now=NOW + 2)
    await c.enqueue(submit("a1", "a", level=0), now=NOW + 3)
    assert await oldest(c.broker) == NOW + 2
    await c.enqueue(submit("c1", "c", level=3, delay=0.0), now=NOW + 4)
    await c.enqueue(submit("other", "c", "other"), now=NOW + 5)
    assert await oldest(c.broker) == NOW + 2
    assert await oldest(c.broker, "other") == NOW + 5
    await c.cancel("b1")
    assert await oldest(c.broker) == NOW + 3


async def test_what_was_given_another_priority_stands_in_its_new_line_only(c: Client) -> None:
    await c.enqueue(submit("moved", level=1))
    await c.enqueue(submit("stays", level=1), now=NOW + 1)
    await c.enqueue(submit("first", level=0), now=NOW + 2)
    await c.alter(Alter(id="moved", action="prioritize", level=0), now=NOW + 3)
    assert await oldest(c.broker) == NOW + 1


async def test_what_was_due_has_waited_since_then(c: Client) -> None:
    await c.enqueue(submit("t1", delay=5.0))
    await c.broker.promote(now=NOW + 9)
    assert await oldest(c.broker) == NOW + 5


async def test_what_was_released_has_waited_since_then(c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(released(lease), now=NOW + 7)
    assert await oldest(c.broker) == NOW + 7


async def test_a_retry_has_waited_since_it_was_due(c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(failed(lease, delay=5.0), now=NOW + 1)
    await c.broker.promote(now=NOW + 20)
    assert await oldest(c.broker) == NOW + 6


async def test_entries_of_tasks_that_are_gone_are_passed_over(c: Client) -> None:
    await c.enqueue(*(submit(f"t{n}") for n in range(10)))
    await c.enqueue(submit("last", level=3), now=NOW + 5)
    await c.enqueue(submit("stays"), now=NOW + 6)
    for n in range(10):
        await c.cancel(f"t{n}")
    assert await oldest(c.broker) == NOW + 5
    await c.alter(Alter(id="last", action="prioritize", level=0), now=NOW + 8)
    assert await oldest(c.broker) == NOW + 5


@pytest.mark.parametrize(
    "change", [QueueChange(queue="default", paused=True), TenantChange(tenant="a", paused=True)]
)
async def test_what_is_paused_waits(c: Client, change: Setting) -> None:
    await c.enqueue(submit("t1"))
    await c.configure(change, now=NOW + 1)
    assert await oldest(c.broker) == NOW


async def test_of_many_tenants_some_are_looked_at(c: Client) -> None:
    for start in range(0, 300, 100):
        tasks = (submit(f"t{start + n}", f"tenant-{start + n}") for n in range(100))
        await c.enqueue(*tasks, now=NOW + start)
    found = await oldest(c.broker)
    assert found in (NOW, NOW + 100, NOW + 200)
    assert len((await c.broker.snapshot()).queues["default"].tenants) == 300
    small = (await c.broker.snapshot(tenants=False)).queues["default"]
    assert small.oldest_at in (NOW, NOW + 100, NOW + 200)
    assert (small.tenants, small.more_tenants) == ({}, True)
