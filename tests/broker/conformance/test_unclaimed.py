"""A beat compares: what answered exchanges lent and the worker does not name goes back."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, LimiterChange, QueueChange, TenantChange
from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, completed, events, ids, record, states, submit


async def lent(c: Client, *names: str) -> int:
    """Lend these in one exchange whose reply gets lost; the number of the call."""
    await c.enqueue(*(submit(name) for name in names))
    await c.fetch(len(names))
    return c.number


async def test_what_an_answered_exchange_lent_and_nobody_names_goes_back_uncharged(
    broker: Store, c: Client
) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=2))
    await c.enqueue(*(submit(f"t.{i}", limiters=("gpu",)) for i in range(3)))
    await c.fetch(3)
    assert await states(broker, "t.0", "t.1", "t.2") == [State.RUNNING, State.RUNNING, State.QUEUED]

    reply = await broker.beat("w1", answered=c.number, now=NOW + 10)

    assert (reply.unclaimed, reply.more, reply.lost) == (2, False, [])
    for id in ("t.0", "t.1"):
        task = await record(broker, id, now=NOW + 10)
        assert (task.state, task.attempts, task.crashes) == (State.QUEUED, 0, 0)
        assert task.reason == "unclaimed"
    again = await Client(broker, "w2").fetch(3, now=NOW + 10)
    assert ids(again) == ["t.0", "t.1"]
    assert [lease.attempt for lease in again] == [1, 1]


async def test_what_is_named_stays(broker: Store, c: Client) -> None:
    first, second, third = await c.run(*(submit(f"t.{i}") for i in range(3)))
    reply = await broker.beat("w1", [c.ref(third), c.ref(first)], answered=c.number, now=NOW + 10)

    assert reply.unclaimed == 1
    assert await states(broker, "t.0", "t.1", "t.2") == [State.RUNNING, State.QUEUED, State.RUNNING]
    assert await c.settle(completed(first), completed(second), completed(third)) == [
        "applied",
        "fenced",
        "applied",
    ]


async def test_what_a_later_exchange_lent_stays_its_reply_may_be_on_its_way(
    broker: Store, c: Client
) -> None:
    number = await lent(c, "early")
    await lent(c, "late")
    reply = await broker.beat("w1", answered=number, now=NOW + 3600)

    assert reply.unclaimed == 1
    assert await states(broker, "early", "late") == [State.QUEUED, State.RUNNING]


async def test_without_a_number_a_beat_takes_nothing_back(broker: Store, c: Client) -> None:
    await lent(c, "t")
    assert (await broker.beat("w1", now=NOW + 3600)).unclaimed == 0
    assert await states(broker, "t") == [State.RUNNING]


async def test_what_another_incarnation_has_on_loan_stays(broker: Store, c: Client) -> None:
    number = await lent(c, "t")
    assert (await broker.beat("w2", answered=number, now=NOW + 10)).unclaimed == 0
    assert await states(broker, "t") == [State.RUNNING]


async def test_unclaimed_tasks_go_back_in_their_old_order_50_at_a_time(
    broker: Store, c: Client
) -> None:
    many = 2 * MAX_STEP + 20
    await c.enqueue(*(submit(f"t.{i:03}") for i in range(many + 5)))
    for size in (60, many - 61, 1):
        await c.fetch(size)
    replies = [await broker.beat("w1", answered=c.number, now=NOW + 10)]
    while replies[-1].more:
        replies.append(await broker.beat("w1", answered=c.number, now=NOW + 10))
    counts = [reply.unclaimed for reply in replies]

    assert counts == [MAX_STEP, MAX_STEP, 20]
    left = await Client(broker, "w2").fetch(128, now=NOW + 10)
    assert many + 5 <= 128
    assert ids(left) == [f"t.{i:03}" for i in range(many + 5)]


async def test_an_unclaimed_task_for_which_cancel_was_asked_is_cancelled(
    broker: Store, c: Client
) -> None:
    number = await lent(c, "t")
    await c.cancel("t")
    reply = await broker.beat("w1", answered=number, now=NOW + 10)
    assert (reply.unclaimed, reply.cancelled) == (1, [])
    assert await states(broker, "t") == [State.CANCELLED]


async def test_an_unclaimed_task_is_told_of_as_recovered(broker: Store, c: Client) -> None:
    number = await lent(c, "t")
    await broker.beat("w1", answered=number, now=NOW + 10)
    (event,) = await events(broker, "recovered")
    assert (event.task, event.reason) == ("t", "unclaimed")


async def test_an_unclaimed_task_makes_room_for_its_tenant(broker: Store, c: Client) -> None:
    await c.configure(
        QueueChange(queue="default", max_waiting=100), TenantChange(tenant="a", concurrency=1)
    )
    await c.enqueue(submit("t.0", "a"), submit("t.1", "a"))
    await c.fetch(2)
    await broker.beat("w1", answered=c.number, now=NOW + 10)
    assert ids(await Client(broker, "w2").fetch(2, now=NOW + 10)) == ["t.0"]


async def test_a_beat_with_thousands_of_leases_names_each_of_them(broker: Store, c: Client) -> None:
    leases = []
    for batch in range(5):
        await c.enqueue(*(submit(f"t.{batch}.{i}") for i in range(500)))
    while found := await c.fetch(128):
        leases += found
    gone, known = leases[1200:1203], leases[:1200] + leases[1203:]
    foreign = c.ref(gone[0])
    await c.settle(completed(leases[7]))

    reply = await broker.beat("w1", [*map(c.ref, known)], answered=c.number, now=NOW + 10)

    assert reply.lost == [c.ref(leases[7])]
    assert (reply.unclaimed, reply.more) == (3, False)
    assert await states(broker, *(lease.message.id for lease in gone)) == [State.QUEUED] * 3
    assert (await broker.beat("w1", [foreign], now=NOW + 10)).lost == [foreign]
