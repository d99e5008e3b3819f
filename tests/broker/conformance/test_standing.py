"""Where a task stands: everything that may keep it from running, and its place in the order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.requests import LimiterChange, QueueChange, TenantChange
from fairlead.broker.standing import Room, Standing, Waits
from fairlead.model.lifecycle import State
from tests.support.fair import WITH_TEST_CLOCK, examples, opened
from tests.support.store import NOW, Client, completed, dead, failed, submit


async def stand(broker: Store, id: str, now: float = NOW) -> Standing:
    found = await broker.standing(id, now=now)
    assert found is not None, f"{id} is unknown"
    assert (await broker.find([id], now=now)) == [found.record]
    return found


async def test_an_unknown_task_stands_nowhere(broker: Store, c: Client) -> None:
    assert await broker.standing("nobody", now=NOW) is None
    (lease,) = await c.run(submit("a"))
    await c.settle(completed(lease))
    assert (await stand(broker, "a")).record.state is State.COMPLETED
    assert await broker.standing("a", now=NOW + 3_601) is None


async def test_a_task_that_nothing_keeps(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"))
    found = await stand(broker, "a")
    assert found == Standing(now=NOW, record=found.record, tenants_ready=1)


async def test_pauses_of_queue_and_tenant(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"), submit("b", "b"))
    await c.configure(QueueChange(queue="default", paused=True))
    await c.configure(TenantChange(tenant="b", paused=True))
    found = await stand(broker, "a")
    assert (found.queue_paused, found.tenant_paused) == (True, False)
    found = await stand(broker, "b")
    assert (found.queue_paused, found.tenant_paused) == (True, True)
    assert (found.tenants_ahead, found.tenants_ready) == (0, 1)


async def test_what_it_waits_for_with_states_at_most_twenty(broker: Store, c: Client) -> None:
    _, gone = await c.run(submit("running"), submit("dead"))
    await c.enqueue(submit("later", delay=60))
    await c.settle(dead(gone))
    await c.enqueue(submit("child", after=["running", "later", "dead"], policy="wait"))
    found = await stand(broker, "child")
    assert set(found.waits_for) == {
        Waits("running", State.RUNNING),
        Waits("later", State.SCHEDULED),
        Waits("dead", State.DEAD),
    }
    await c.enqueue(*(submit(f"p{i}", delay=60) for i in range(30)))
    await c.enqueue(submit("wide", after=[f"p{i}" for i in range(30)]))
    found = await stand(broker, "wide")
    assert len(found.waits_for) == 20
    assert {each.state for each in found.waits_for} == {State.SCHEDULED}


async def test_a_task_in_hand_is_held_until_it_is_started(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"), submit("b"))
    one, other = await c.fetch(2, start=1)
    assert not (await stand(broker, one.message.id)).held
    assert (await stand(broker, other.message.id)).held
    await c.exchange(started=[c.ref(other)])
    assert not (await stand(broker, other.message.id)).held


async def test_attempts_of_the_last_minute(broker: Store, c: Client) -> None:
    start = NOW - NOW % 60 + 60
    await c.enqueue(*(submit(f"t{i}") for i in range(40)), now=start)
    await c.fetch(10, now=start)
    await c.fetch(20, now=start + 60)
    for passed, wanted in ((0, 10 + 20), (30, 5 + 20), (59, 20), (60, 20), (90, 10), (120, 0)):
        found = await stand(broker, "t39", now=start + 60 + passed)
        assert found.started_last_minute == wanted, passed


# -- limits -----------------------------------------------------------------------------------


async def rooms(broker: Store, id: str, now: float = NOW) -> dict[str, Room]:
    return {room.kind: room for room in (await stand(broker, id, now)).rooms}


async def test_the_concurrency_of_a_tenant(broker: Store, c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=2))
    await c.enqueue(*(submit(f"t{i}") for i in range(3)))
    await c.fetch(3)
    found = await stand(broker, "t2")
    assert found.rooms == (Room(kind="tenant", name="a", used=2, concurrency=2),)
    assert found.rooms[0].closed
    assert (found.parked, found.parked_at) == ("tenant", "")


async def test_the_rate_of_a_tenant_and_of_a_queue(broker: Store, c: Client) -> None:
    await c.configure(
        TenantChange(tenant="a", rate=0.5), QueueChange(queue="default", rate=0.25, concurrency=9)
    )
    await c.enqueue(submit("t0"), submit("t1"))
    await c.fetch(1)
    found = await rooms(broker, "t1", now=NOW + 1)
    assert found["queue"] == Room(
        kind="queue", name="default", used=1, concurrency=9, next_at=NOW + 4, rate=0.25
    )
    assert found["tenant"] == Room(kind="tenant", name="a", used=1, next_at=NOW + 2, rate=0.5)
    found = await rooms(broker, "t1", now=NOW + 3)
    assert (found["tenant"].closed, found["queue"].closed) == (False, True)


async def test_a_limiter_that_is_full(broker: Store, c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.enqueue(*(submit(f"t{i}", limiters=("gpu", "free")) for i in range(2)))
    await c.enqueue(submit("behind"))
    await c.fetch(3)
    found = await stand(broker, "t1")
    gpu, free = found.rooms
    assert gpu == Room(kind="limiter", name="gpu", used=1, concurrency=1, waiting=1)
    assert (free.name, free.concurrency, free.closed) == ("free", None, False)
    assert (found.parked, found.parked_at) == ("limiter", "gpu")
    # Its own task needs no room there, but the one before it does.
    found = await stand(broker, "behind")
    (gpu,) = found.rooms
    assert (gpu.name, gpu.closed, gpu.needed) == ("gpu", True, False)
    assert (found.parked_at, found.tasks_ahead) == ("gpu", 1)


async def test_a_breaker_from_open_to_half_open(broker: Store, c: Client) -> None:
    await c.configure(LimiterChange(name="api", failures=1, cooldown=10))
    (lease,) = await c.run(submit("t0", limiters=("api",)))
    await c.enqueue(submit("t1", limiters=("api",)), submit("t2", limiters=("api",)))
    await c.settle(failed(lease, 600))
    await c.fetch()
    (room,) = (await stand(broker, "t1", now=NOW + 4)).rooms
    assert (room.circuit, room.open_until, room.closed) == ("open", NOW + 10, True)
    await c.fetch(2, now=NOW + 11)
    (room,) = (await stand(broker, "t2", now=NOW + 11)).rooms
    assert (room.circuit, room.probing, room.probes, room.closed) == ("half_open", 1, 1, True)


# -- the order --------------------------------------------------------------------------------


async def test_tenants_that_are_served_before_its_own(broker: Store, c: Client) -> None:
    await c.enqueue(*(submit(f"{name}{i}", name) for i in range(3) for name in "cab"))
    assert [(await stand(broker, f"{x}0")).tenants_ahead for x in "abc"] == [0, 1, 2]
    await c.fetch(1)
    assert [(await stand(broker, f"{x}1")).tenants_ahead for x in "abc"] == [2, 0, 1]


async def test_tasks_of_its_own_tenant_by_level(broker: Store, c: Client) -> None:
    await c.enqueue(*(submit(f"n{i}") for i in range(3)), submit("low", level=3))
    await c.enqueue(submit("high", level=1), submit("critical", level=0))
    ahead = {
        id: (await stand(broker, id)).tasks_ahead for id in ("critical", "high", "n0", "n2", "low")
    }
    assert ahead == {"critical": 0, "high": 1, "n0": 2, "n2": 4, "low": 5}


async def test_no_more_than_ten_thousand_are_counted(broker: Store, c: Client) -> None:
    for i in range(0, 10_500, 500):
        await c.enqueue(*(submit(f"{i + k:032}") for k in range(500)))
    assert (await stand(broker, f"{10_499:032}")).tasks_ahead == 10_000
    assert (await stand(broker, f"{9_999:032}")).tasks_ahead == 9_999


async def test_cancelled_tasks_may_be_counted_but_none_is_left_out(
    broker: Store, c: Client
) -> None:
    await c.enqueue(*(submit(f"t{i}") for i in range(9)))
    for i in (1, 3, 5):
        await c.cancel(f"t{i}")
    said = (await stand(broker, "t8")).tasks_ahead
    assert 5 <= said <= 8


TASKS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.sampled_from([1.0, 2.5])),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("make", WITH_TEST_CLOCK.values(), ids=WITH_TEST_CLOCK)
@given(
    tasks=TASKS,
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4),
    before=st.integers(0, 20),
    pick=st.integers(0, 29),
)
@examples(40)
def test_the_order_that_is_told_is_the_order_of_fetches_of_one(
    make: Callable[[], Store],
    tasks: list[tuple[str, int, float]],
    weights: list[float],
    before: int,
    pick: int,
) -> None:
    async def check() -> None:
        async with opened(make) as broker:
            c = Client(broker)
            for tenant, weight in zip("abcd", weights, strict=True):
                await c.configure(TenantChange(tenant=tenant, weight=weight))
            half = len(tasks) // 2
            subs = [submit(f"t{i}", t, level=v, cost=k) for i, (t, v, k) in enumerate(tasks)]
            await c.enqueue(*subs[:half])
            gone = {lease.message.id for lease in await c.fetch(min(before, half))}
            await c.enqueue(*subs[half:])
            waiting = [each.message.id for each in subs if each.message.id not in gone]
            await _compare(c, waiting[pick % len(waiting)])

    asyncio.run(check())


async def _compare(c: Client, id: str) -> None:
    """Who is served before a task is, one fetch after the other."""
    found = await stand(c.broker, id)
    own = found.record.message.tenant
    others: set[str] = set()
    mine = 0
    while True:
        (lease,) = await c.fetch(1)
        if lease.message.id == id:
            break
        if lease.message.tenant == own:
            mine += 1
        elif mine == 0:
            others.add(lease.message.tenant)
    assert (len(others), mine) == (found.tenants_ahead, found.tasks_ahead)
