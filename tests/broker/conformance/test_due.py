"""What is due is promoted tenant by tenant, and tenants share the workers as ever."""

from __future__ import annotations

from collections import Counter

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Fetch, TenantChange
from fairlead.model.lifecycle import State
from fairlead.runtime.ids import new_id
from tests.support.fair import taken
from tests.support.store import NOW, Client, completed, events, ids, record, snoozed, states, submit

BULK = 5 * MAX_STEP  # what a call promotes
FETCH = Fetch(queues=("default",), max=1)


async def enqueue(c: Client, tenant: str, count: int, *, delay: float = 1.0) -> list[str]:
    names = [f"{tenant}.{n:05}" for n in range(count)]
    for start in range(0, count, 500):
        await c.enqueue(*(submit(id, tenant, delay=delay) for id in names[start : start + 500]))
    return names


async def test_tasks_of_a_tenant_are_promoted_in_the_order_of_time(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t3", delay=3), submit("t1", delay=1), submit("t2", delay=2))

    assert (await broker.promote(now=NOW + 10)).count == 3
    assert ids(await c.fetch(10, now=NOW + 10)) == ["t1", "t2", "t3"]


async def test_equal_times_of_a_tenant_go_in_the_order_they_came(broker: Store, c: Client) -> None:
    """In one call or in several. Those of equal times stand in the order that was theirs."""
    await c.enqueue(submit("c", delay=1), submit("a", delay=1), submit("b", delay=1))
    await c.enqueue(submit("d", delay=9), submit("0", delay=1))
    await c.enqueue(submit("B", delay=0.5), now=NOW + 0.5)
    assert {(await record(broker, id)).due_at for id in "cab0B"} == {NOW + 1}

    await broker.promote(now=NOW + 2)
    assert ids(await c.fetch(10, now=NOW + 2)) == ["c", "a", "b", "0", "B"]


async def test_tasks_for_one_moment_are_due_then_however_late_their_calls_came(
    broker: Store, c: Client
) -> None:
    """Each call says the moment, and what is left of it where it comes from."""
    await c.enqueue(submit("parent"))
    await c.enqueue(submit("b", delay=60, at=NOW + 60), now=NOW + 0.25)
    await c.enqueue(submit("child", delay=59, at=NOW + 60, after=["parent"]), now=NOW + 0.25)
    await c.enqueue(submit("a", delay=59, at=NOW + 60), now=NOW + 0.5)
    await c.enqueue(submit("0", delay=1, at=NOW + 60), now=NOW + 0.75)
    (lease,) = await c.fetch(10, now=NOW + 1)
    await c.settle(completed(lease), now=NOW + 1)
    tasks = ("b", "child", "a", "0")
    assert {(await record(broker, id)).due_at for id in tasks} == {NOW + 60}
    assert await c.fetch(10, now=NOW + 59) == []
    assert ids(await c.fetch(10, now=NOW + 60)) == list(tasks)


async def test_a_moment_that_has_passed_by_the_time_of_the_broker_is_now(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("late", delay=60, at=NOW - 1), submit(new_id(), delay=60, at=NOW))
    await c.enqueue(submit("early", at=NOW + 1))  # it has passed where it comes from
    assert await states(broker, "late") == [State.QUEUED]
    assert len(await c.fetch(5)) == 2
    assert ids(await c.fetch(5, now=NOW + 1)) == ["early"]


async def test_a_batch_with_one_delay_runs_in_its_order(broker: Store, c: Client) -> None:
    """With chosen ids, with those that Fairlead makes, and more of them than a call promotes."""
    chosen = [f"job{n}" for n in range(BULK + 20)]
    await c.enqueue(*(submit(id, delay=1) for id in chosen))
    made = [new_id() for _ in range(50)]
    await c.enqueue(*(submit(id, "b", delay=1) for id in made))
    assert await broker.audit(now=NOW) == []

    found = ids(await taken(c, len(chosen) + len(made), 100, now=NOW + 2))
    assert [id for id in found if id in set(chosen)] == chosen
    assert [id for id in found if id in set(made)] == made


async def test_a_cancelled_task_of_equal_times_leaves_the_others_due(
    broker: Store, c: Client
) -> None:
    await c.enqueue(*(submit(id, delay=1) for id in "zyx"))
    await c.cancel("z")
    assert await broker.audit(now=NOW) == []
    assert ids(await c.fetch(5, now=NOW + 2)) == ["y", "x"]


async def test_what_is_past_its_deadline_ends_first(broker: Store, c: Client) -> None:
    await c.enqueue(
        submit("due5", delay=5),
        submit("over3", delay=100, deadline=3),
        submit("due1", delay=1),
        submit("both", delay=2, deadline=4),
    )
    assert (await broker.promote(now=NOW + 10)).count == 4
    assert [(e.kind, e.task) for e in await events(broker, "queued", "dead")] == [
        ("dead", "over3"),
        ("dead", "both"),
        ("queued", "due1"),
        ("queued", "due5"),
    ]


async def test_a_call_promotes_at_most_250(broker: Store, c: Client) -> None:
    names = await enqueue(c, "a", BULK + 1)

    first = await broker.promote(now=NOW + 1)
    assert (first.count, first.more) == (BULK, True)
    assert await states(broker, *names[-2:], now=NOW + 1) == [State.QUEUED, State.SCHEDULED]

    second = await broker.promote(now=NOW + 1)
    assert (second.count, second.more) == (1, False)


async def test_tenants_of_which_much_is_due_take_turns(broker: Store, c: Client) -> None:
    tenants = [f"t{n:03}" for n in range(2 * MAX_STEP + 20)]
    for tenant in tenants:
        await enqueue(c, tenant, 10)

    for number, now in enumerate((NOW + 2, NOW + 3, NOW + 4)):
        moved = await broker.promote(now=now)
        assert (moved.count, moved.more) == (BULK, True), number
    first = [f"{tenant}.00000" for tenant in tenants]
    assert set(await states(broker, *first, now=NOW + 4)) == {State.QUEUED}


async def test_the_queued_event_of_each_task_tells_of_it(broker: Store, c: Client) -> None:
    (one,) = await c.run(submit("made", "b"))
    await c.settle(snoozed(one, 5))
    await c.enqueue(submit("x", "b", delay=5, level=0), submit("y", "b", delay=6))
    await broker.promote(now=NOW + 6)
    told = [(e.task, e.tenant, e.state) for e in await events(broker, "queued")]
    assert told == [(id, "b", State.QUEUED) for id in ("made", "x", "y")]


async def test_tenants_share_by_weight_what_is_due_at_once(broker: Store, c: Client) -> None:
    await c.configure(TenantChange(tenant="t01", weight=3.0))
    tenants = [f"t{n:02}" for n in range(1, 10)]
    left = Counter({"huge": len(await enqueue(c, "huge", 1000))})
    for tenant in tenants:
        left[tenant] = len(await enqueue(c, tenant, 100))

    served: list[str] = []
    while leases := await c.fetch(100, now=NOW + 2):
        served += [lease.message.tenant for lease in leases]
        await c.settle(*(completed(lease) for lease in leases), now=NOW + 2)
    assert Counter(served) == left
    # While all have work: of 12 dispatches three for t01, one for each of the others.
    for start in range(0, 396, 12):
        assert Counter(served[start : start + 12]) == Counter({"huge": 1, "t01": 3}) + Counter(
            tenants[1:]
        )


async def test_one_fetch_of_due_tasks_gives_the_same_sequence_as_many(
    broker: Store, c: Client
) -> None:
    sizes = {"one": 96, "many": 1}
    for queue in sizes:
        for tenant in "abc":
            names = (f"{queue}.{tenant}.{n:02}" for n in range(60))
            await c.enqueue(*(submit(id, tenant, queue, delay=1) for id in names))
        await c.configure(TenantChange(tenant="b", queue=queue, weight=2.0))
    orders = []
    for queue, size in sizes.items():
        served: list[str] = []
        for _ in range(0, 96, size):
            served += ids(await c.fetch(size, [queue], now=NOW + 2))
        orders.append([id.partition(".")[2] for id in served])
    assert len(orders[0]) == 96
    assert orders[0] == orders[1]


async def test_a_tenant_that_runs_out_while_it_is_served_goes_on_with_what_is_due(
    broker: Store, c: Client
) -> None:
    others = [f"t{n:02}" for n in range(MAX_STEP + 10)]
    for tenant in ("a", *others):
        await enqueue(c, tenant, 200 if tenant == "a" else 10)
    await c.configure(TenantChange(tenant="a", weight=1000.0))

    leases = await c.fetch(100, now=NOW + 2)
    # The call finds 50 tenants, of each five tasks. All but one begin with one task each.
    assert Counter(lease.message.tenant for lease in leases)["a"] == 100 - (MAX_STEP - 1)
    assert (await broker.audit(now=NOW + 2)) == []


async def test_what_is_due_after_all_was_cancelled_is_not_waited_for(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("early", delay=5), submit("late", delay=50))
    assert (await c.exchange(fetch=FETCH)).due_in == 5
    await c.cancel("early")
    assert (await c.exchange(fetch=FETCH)).due_in == 50
    await c.cancel("late")
    assert (await c.exchange(fetch=FETCH)).due_in is None
