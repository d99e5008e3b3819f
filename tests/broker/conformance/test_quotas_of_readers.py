"""How much is kept of a tenant because others will read it."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.requests import QueueChange
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.store import NOW, Client, completed, drain, states, submit

EACH = 100  # bytes that a task counts for beside what is stored of it
READ = 600  # what a task counts for whose result is read


async def pinned(c: Client, *names: str, tenant: str = "a", now: float = NOW) -> list[Leased]:
    """Running tasks whose results another one will read, which waits for an hour."""
    leases = await c.run(*(submit(id, tenant) for id in names), now=now)
    reader = submit("reader-of-" + "-".join(names), tenant, after=names, uses=True, delay=3_600.0)
    await c.enqueue(reader, now=now)
    return leases


def read(lease: Leased) -> Settlement:
    return completed(lease, b"r" * (READ - EACH - len(lease.message.body)))


async def tight(c: Client, room: int | None) -> None:
    """Keep nothing that is finished but what others will read, and so much of that."""
    await c.configure(
        QueueChange(queue="default", keep_completed_count=0, max_tenant_pinned_bytes=room)
    )


async def test_a_tenant_has_so_much_room_for_what_others_will_read(
    broker: Store, c: Client
) -> None:
    await tight(c, 2 * READ + READ - 1)
    leases = await pinned(c, "p1", "p2", "p3")
    await c.settle(*(read(lease) for lease in leases))
    assert await states(broker, "p1", "p2", "p3") == [State.COMPLETED, State.COMPLETED, None]

    others = await pinned(c, "o1", "o2", tenant="b")
    await c.settle(*(read(lease) for lease in others))
    assert await states(broker, "o1", "o2") == [State.COMPLETED] * 2


async def test_a_reader_that_is_over_makes_room_for_others(broker: Store, c: Client) -> None:
    await tight(c, READ)
    (lease,) = await c.run(submit("one"))
    await c.enqueue(submit("reader", after=["one"], uses=True, delay=3_600.0))
    await c.settle(read(lease))
    (lease,) = await pinned(c, "two")
    await c.cancel("reader")
    await drain(broker)
    assert await states(broker, "one") == [None]
    await c.settle(read(lease))
    assert await states(broker, "two") == [State.COMPLETED]


async def test_what_is_beyond_the_room_is_kept_like_any_other(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=READ))
    within, beyond = await pinned(c, "within", "beyond")
    await c.settle(read(within), read(beyond))
    later = NOW + 3_600.0
    assert await states(broker, "within", "beyond", now=later - 1) == [State.COMPLETED] * 2
    assert await states(broker, "within", "beyond", now=later) == [State.COMPLETED, None]
    while (await broker.tidy(now=later)).more:
        pass
    await broker.promote(now=later + 1)
    (reader,) = await c.fetch(now=later + 1)  # it goes on, and finds out what is gone
    await c.settle(completed(reader), now=later + 1)
    await drain(broker, now=later + 1)
    assert await states(broker, "within", "beyond", now=later + 2) == [State.COMPLETED, None]


async def test_what_had_ended_before_is_kept_for_a_reader_if_there_is_room(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=READ))
    one, two = await c.run(submit("one"), submit("two"))
    await c.settle(read(one), read(two))
    await c.enqueue(submit("reader", after=["one", "two"], uses=True, delay=9_000.0))
    later = NOW + 3_600.0
    assert await states(broker, "one", "two", now=later) == [State.COMPLETED, None]


async def test_pins_come_and_go_beyond_the_room(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=0))
    (lease,) = await pinned(c, "p")
    await c.settle(read(lease))
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=None))
    await c.enqueue(submit("more", after=["p"], uses=True, delay=9_000.0))  # it stays where it is
    await c.cancel("more")
    await c.cancel("reader-of-p")
    await drain(broker)
    assert await states(broker, "p") == [State.COMPLETED]
    await c.enqueue(submit("late", after=["p"], uses=True, delay=9_000.0))  # now there is room
    later = NOW + 3_600.0
    await broker.tidy(now=later)
    assert await states(broker, "p", now=later) == [State.COMPLETED]


async def test_a_task_beyond_the_room_takes_its_pins_with_it(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=0))
    deleted, old = await pinned(c, "deleted", "old")
    await c.settle(read(deleted), read(old))
    assert (await c.delete("deleted")).code == "done"
    later = NOW + 3_600.0
    await broker.tidy(now=later)
    assert await states(broker, "deleted", "old", now=later) == [None, None]
    (again,) = await c.run(submit("deleted"), now=later)  # another task of that id
    await c.settle(read(again), now=later)
    assert await states(broker, "deleted", now=later) == [State.COMPLETED]


async def test_none_is_no_limit_for_what_others_will_read(broker: Store, c: Client) -> None:
    await tight(c, None)
    leases = await pinned(c, *(f"p{n}" for n in range(10)))
    await c.settle(*(read(lease) for lease in leases))
    assert await states(broker, *(f"p{n}" for n in range(10))) == [State.COMPLETED] * 10
