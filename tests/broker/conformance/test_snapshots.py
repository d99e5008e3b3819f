"""Counts of more than one call tells: many queues, tenants, limiters and workers."""

from __future__ import annotations

import asyncio

from fairlead.broker import Store
from fairlead.broker.records import (
    Counts,
    LimiterState,
    QueueCounts,
    Snapshot,
    TenantCounts,
    WorkerRecord,
)
from fairlead.broker.requests import LimiterChange, TenantChange
from tests.support.store import NOW, Client, complete_all, completed, submit

MANY = 450


def totals(found: Snapshot) -> list[int]:
    return [getattr(found, field) for field in Counts.__struct_fields__]


def summed(found: Snapshot) -> list[int]:
    return [
        sum(getattr(queue, field) for queue in found.queues.values())
        for field in Counts.__struct_fields__
    ]


def of_tenants(queue: QueueCounts) -> tuple[int, int]:
    """What waits and what runs, by its tenants."""
    tenants = queue.tenants.values()
    return sum(each.depth for each in tenants), sum(each.running for each in tenants)


async def many_queues(c: Client, count: int = MANY) -> list[str]:
    """One task in each, of which every third is completed."""
    names = [f"q.{n}" for n in range(count)]
    await c.enqueue(*(submit(f"{name}.t", queue=name) for name in names))
    for start in range(0, count, 300):
        leases = await c.fetch(100, names[start : start + 300 : 3])
        await c.settle(*(completed(lease) for lease in leases))
    return names


# -- everything -------------------------------------------------------------------------------


async def test_the_snapshot_has_every_queue_however_many_there_are(
    broker: Store, c: Client
) -> None:
    names = await many_queues(c)
    found = await broker.snapshot(now=NOW)
    assert sorted(found.queues) == sorted(names)
    assert totals(found) == summed(found)
    assert (found.completed, found.ready) == (MANY // 3, MANY - MANY // 3)
    assert found.now == NOW


async def test_the_snapshot_has_the_tenants_of_many_queues(broker: Store, c: Client) -> None:
    tenants = {f"t{n}" for n in range(20)}
    names = [f"q.{n}" for n in range(60)]
    for start in range(0, len(names), 20):
        part = names[start : start + 20]
        await c.enqueue(*(submit(f"{q}.{name}", name, q) for q in part for name in tenants))
    found = await broker.snapshot(now=NOW)
    assert sorted(found.queues) == sorted(names)
    for queue in found.queues.values():
        assert set(queue.tenants) == tenants
        assert (of_tenants(queue), queue.more_tenants) == ((20, 0), False)
    assert (found.depth, totals(found)) == (1_200, summed(found))


async def test_the_snapshot_has_limiters_for_which_many_queues_wait(
    broker: Store, c: Client
) -> None:
    names = [f"q.{n}" for n in range(300)]
    limiters = ("gpu", "api", "disk")
    await c.configure(*(LimiterChange(name=name, concurrency=1) for name in limiters))
    for limiter in limiters:
        await c.enqueue(
            *(submit(f"{name}.{limiter}", limiter, name, limiters=(limiter,)) for name in names)
        )
    held = [lease for _ in limiters for lease in await c.fetch(100, names)]
    assert len(held) == len(limiters)
    found = await broker.snapshot(now=NOW)
    assert set(found.limiters) == set(limiters)
    assert {each.used for each in found.limiters.values()} == {1}
    assert [found.limiters[name].waiting for name in limiters] == [299] * len(limiters)
    assert not found.more_limiters


# -- one queue, and no tenants ----------------------------------------------------------------


async def test_the_snapshot_of_one_queue_has_that_one_and_no_limiter(
    broker: Store, c: Client
) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.enqueue(submit("t1", "a", "one"), submit("t2", "b", "one"), submit("t3", "a", "two"))
    assert (await broker.snapshot(now=NOW)).limiters == {"gpu": LimiterState()}
    found = await broker.snapshot("one", now=NOW)
    assert (set(found.queues), found.limiters, found.depth) == ({"one"}, {}, 2)
    assert found.queues == {"one": (await broker.snapshot(now=NOW)).queues["one"]}


async def test_the_snapshot_of_a_queue_that_nobody_knows_is_empty(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    found = await broker.snapshot("ghost", now=NOW)
    assert (found.queues, found.limiters, set(totals(found))) == ({}, {}, {0})


async def test_a_snapshot_without_tenants_has_all_but_them(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", "a", "one"), submit("t2", "b", "one"), submit("t3", "a", "two"))
    await complete_all(c, ["two"])
    whole = await broker.snapshot(now=NOW)
    for queue in (None, "one"):
        found = await broker.snapshot(queue, tenants=False, now=NOW)
        for name, each in found.queues.items():
            assert [getattr(each, field) for field in Counts.__struct_fields__] == [
                getattr(whole.queues[name], field) for field in Counts.__struct_fields__
            ]
            assert (each.tenants, each.more_tenants) == ({}, name == "one")


# -- while others write -----------------------------------------------------------------------


async def test_a_queue_is_of_one_moment_with_its_tenants_while_others_write(
    broker: Store, c: Client
) -> None:
    names = [f"q.{n}" for n in range(8)]
    tenants = [f"t{n}" for n in range(90)]
    for name in names:
        tasks = [submit(f"{name}.{tenant}", tenant, name) for tenant in tenants]
        await c.enqueue(*tasks)

    async def work() -> None:
        for round in range(20):
            name = names[round % len(names)]
            leases = await c.fetch(40, [name])
            await c.settle(*(completed(lease) for lease in leases[::2]))
            more = [submit(f"{name}.{round}.{tenant}", tenant, name) for tenant in tenants[:50]]
            await c.enqueue(*more)

    working, looks = asyncio.create_task(work()), 0
    while not working.done() or looks < 3:
        found = await broker.snapshot(now=NOW)
        looks += 1
        assert set(found.queues) == set(names)
        for queue in found.queues.values():
            assert of_tenants(queue) == (queue.depth, queue.running)
        assert totals(found) == summed(found)
        await asyncio.sleep(0)
    await working


async def test_a_queue_that_is_there_all_the_while_is_counted_once_while_others_come_and_go(
    broker: Store, c: Client
) -> None:
    steady = await many_queues(c)

    async def come_and_go() -> None:
        for round in range(3):
            names = [f"guest.{round}.{n}" for n in range(150)]
            await c.enqueue(*(submit(f"{name}.t", queue=name) for name in names))
            for name in names[::3]:
                await c.purge(name)
                await broker.delete_queue(c.call(), name, now=NOW)

    moving, looks = asyncio.create_task(come_and_go()), 0
    while not moving.done() or looks < 3:
        found = await broker.snapshot(now=NOW)
        looks += 1
        counted = [found.queues[name] for name in steady]
        assert sum(each.ready + each.completed for each in counted) == MANY
        assert totals(found) == summed(found)
        await asyncio.sleep(0)
    await moving


# -- other reads of many ----------------------------------------------------------------------


async def test_the_stats_have_every_queue_however_many_there_are(broker: Store, c: Client) -> None:
    names = await many_queues(c)
    found = (await broker.stats(now=NOW)).queues
    assert sorted(found) == sorted(names)
    assert sum(each.enqueued for each in found.values()) == MANY
    assert sum(each.completed for each in found.values()) == MANY // 3


async def test_all_workers_are_listed_once_however_many_there_are(broker: Store) -> None:
    names = [f"w{n}" for n in range(MANY)]
    for name in names:
        await broker.beat(name, worker=WorkerRecord(incarnation=name, host="h" * 60), now=NOW)
    assert sorted(each.incarnation for each in await broker.workers(now=NOW + 14)) == sorted(names)
    assert await broker.workers(now=NOW + 15) == []


# -- one tenant --------------------------------------------------------------------------------


async def test_one_tenant_can_be_asked_for_in_all_queues(broker: Store, c: Client) -> None:
    await c.enqueue(
        submit("a.1", "acme", "mail"), submit("a.2", "acme", "web"), submit("b.1", "big", "mail")
    )
    await c.settle(*(completed(lease) for lease in await c.fetch(1, ["web"])))
    found = await broker.snapshot(tenant="acme", now=NOW)
    assert set(found.queues["mail"].tenants) == set(found.queues["web"].tenants) == {"acme"}
    assert found.queues["mail"].tenants["acme"].ready == 1
    assert found.queues["web"].tenants["acme"].completed == 1  # though it has no work there
    assert not found.queues["mail"].more_tenants
    none = await broker.snapshot(tenant="nobody", now=NOW)
    assert [queue.tenants for queue in none.queues.values()] == [{}, {}]
    assert none.queues["mail"].depth == 2


async def test_a_tenant_says_what_keeps_it(broker: Store, c: Client) -> None:
    await c.configure(
        TenantChange(tenant="limited", concurrency=0),
        TenantChange(tenant="paused", paused=True),
        LimiterChange(name="gpu", concurrency=0),
    )
    await c.enqueue(
        submit("a", "limited"),
        submit("b", "paused"),
        submit("c", "held", limiters=("gpu",)),
        submit("d", "free"),
    )
    await c.fetch(10)
    told = (await broker.snapshot(now=NOW)).queues["default"].tenants
    assert (told["limited"].parked, told["limited"].parked_at) == ("tenant", "")
    assert (told["held"].parked, told["held"].parked_at) == ("limiter", "gpu")
    assert (told["paused"].paused, told["paused"].parked) == (True, "")
    assert (told["free"].paused, told["free"].parked) == (False, "")


async def test_one_tenant_can_be_asked_for_however_many_there_are(broker: Store, c: Client) -> None:
    for start in range(0, 1_200, 200):
        await c.enqueue(*(submit(f"t.{n}", f"tenant-{n}") for n in range(start, start + 200)))
    await c.enqueue(submit("own", "mine"), submit("far", "mine", "far"), submit("not", "x", "far"))
    (lease,) = await c.fetch(1, ["far"])
    await c.settle(completed(lease))

    everybody = await broker.snapshot()
    assert everybody.queues["default"].more_tenants
    found = await broker.snapshot(tenants=False, tenant="mine")
    assert found.queues["default"].tenants == {"mine": TenantCounts(depth=1, ready=1)}
    assert found.queues["far"].tenants == {"mine": TenantCounts(completed=1)}
    assert (found.depth, found.queues["default"].depth) == (1_202, 1_201)
    assert not found.queues["default"].more_tenants
    assert (await broker.snapshot("far", tenant="nobody")).queues["far"].tenants == {}
