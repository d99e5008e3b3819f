"""What is kept of one tenant does not depend on what others do."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Alter, QueueChange, Submission
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.store import NOW, Client, completed, dead, events, states, submit

KB = 1000


def made(number: int) -> str:
    """An id as Fairlead makes them: such tasks go the short ways."""
    return f"{number:032x}"


async def ended(
    c: Client, *submissions: Submission, bad: bool = False, now: float = NOW, result: bytes = b""
) -> None:
    """Run tasks to their end, 50 in a call."""

    def outcome(lease: Leased) -> Settlement:
        return dead(lease) if bad else completed(lease, result)

    for start in range(0, len(submissions), 50):
        leases = await c.run(*submissions[start : start + 50], now=now)
        await c.settle(*map(outcome, leases), now=now)


def many(first: int, last: int, tenant: str, body: bytes = b"") -> list[Submission]:
    return [submit(made(i), tenant, body=body) for i in range(first, last)]


async def test_a_flood_of_completed_tasks_does_not_push_out_what_others_keep(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=320))
    mine = [made(i) for i in range(5)]
    await ended(c, *many(0, 5, "victim"), result=b"r")
    await ended(c, *many(1000, 2000, "noisy"), now=NOW + 1)

    assert await states(broker, *mine, now=NOW + 1) == [State.COMPLETED] * 5
    assert (await broker.snapshot(now=NOW)).completed == 320
    newest = [made(i) for i in range(1990, 2000)]
    assert await states(broker, *newest, now=NOW + 1) == [State.COMPLETED] * 10
    assert await states(broker, made(1010), made(1500), now=NOW + 1) == [None, None]


async def test_what_is_cancelled_is_kept_although_another_holds_all_the_room(
    broker: Store, c: Client
) -> None:
    """It never ran, so that nothing is stored of it by which it would be known as another's."""
    await c.configure(QueueChange(queue="default", keep_completed_count=320))
    await ended(c, *many(1000, 1400, "noisy"))
    await c.enqueue(submit(made(1), "victim"), submit(made(2), "victim"))
    orders = [Alter(id=made(number), action="cancel") for number in (1, 2)]
    assert [each.code for each in await c.alter(*orders)] == ["done"] * 2
    assert await states(broker, made(1), made(2)) == [State.CANCELLED] * 2
    assert await states(broker, made(1080), made(1081), made(1082)) == [
        None,
        None,
        State.COMPLETED,
    ]


async def test_a_flood_of_large_results_does_not_push_out_what_others_keep(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_bytes=320 * KB))
    await ended(c, submit("mine", "victim"), result=b"r" * 4 * KB)
    await ended(c, *many(1000, 1200, "noisy"), result=b"r" * 10 * KB, now=NOW + 1)

    assert await states(broker, "mine", made(1000), made(1199), now=NOW + 1) == [
        State.COMPLETED,
        None,
        State.COMPLETED,
    ]


async def test_a_flood_of_dead_tasks_does_not_push_out_those_of_others(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=320 * KB))
    await ended(c, submit("mine", "victim"), bad=True)
    await ended(c, *many(1000, 1200, "noisy", b"b" * 10 * KB), bad=True, now=NOW + 1)

    assert await states(broker, "mine", made(1000), made(1199), now=NOW + 1) == [
        State.DEAD,
        None,
        State.DEAD,
    ]


async def test_of_two_that_keep_much_the_one_that_keeps_more_gives_first(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=320))
    await ended(c, *many(0, 140, "second"))
    await ended(c, *many(1000, 2000, "first"), now=NOW + 1)

    kept = await states(broker, *map(made, range(140)), now=NOW + 1)
    assert kept == [State.COMPLETED] * 140

    await ended(c, *many(140, 400, "second"), now=NOW + 2)  # now both want more than half
    kept = await states(broker, *map(made, range(400)), now=NOW + 2)
    assert kept == [None] * 240 + [State.COMPLETED] * 160
    assert (await broker.snapshot(now=NOW)).completed == 320


async def test_where_nobody_keeps_much_the_oldest_of_all_goes(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=100))
    await ended(c, *(submit(made(i), f"tenant-{i}") for i in range(150)))

    kept = await states(broker, *map(made, range(150)))
    assert kept == [None] * 50 + [State.COMPLETED] * 100


@pytest.mark.parametrize("options", [{}, {"deadline": 1000.0}], ids=["plain", "deadlines"])
@pytest.mark.parametrize("size", [30, 70])
async def test_of_many_that_keep_about_the_same_the_oldest_of_all_go(
    broker: Store, c: Client, options: dict[str, Any], size: int
) -> None:
    """Each keeps enough to have an order of its own, and too little to give before others."""
    await c.configure(QueueChange(queue="default", keep_completed_count=320))
    calls = 900 // size
    for call in range(calls):
        numbers = range(call * size, (call + 1) * size)
        tasks = (submit(made(n), f"tenant-{n * 7 % 40}", **options) for n in numbers)
        leases = await c.run(*tasks, now=NOW + call)
        await c.settle(*map(completed, leases), now=NOW + call)

    kept = await states(broker, *map(made, range(calls * size)), now=NOW + calls)
    assert kept.count(State.COMPLETED) == 320
    whole = 320 // size * size  # what ended in one call ended at the same time
    assert kept[-whole:] == [State.COMPLETED] * whole
    assert not any(kept[: -whole - size])
    assert await broker.audit() == []


async def test_tasks_with_chosen_ids_are_kept_beside_a_flood_of_others_like_them(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=320))
    await ended(c, submit("mine", "victim"))
    await ended(c, *(submit(f"n{i}", "noisy") for i in range(500)), now=NOW + 1)

    assert await states(broker, "mine", "n10", "n499", now=NOW + 1) == [
        State.COMPLETED,
        None,
        State.COMPLETED,
    ]
    assert (await broker.snapshot(now=NOW)).completed == 320


async def test_what_a_tenant_keeps_in_an_order_of_its_own_is_forgotten_at_its_time(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=320, keep_completed=10.0))
    await ended(c, *many(0, 100, "much"), submit("little", "other"))
    await ended(c, *many(100, 110, "much"), now=NOW + 5)

    while (await broker.tidy(now=NOW + 11)).more:
        pass
    assert (await broker.snapshot(now=NOW)).completed == 10
    while (await broker.tidy(now=NOW + 16)).more:
        pass
    assert (await broker.snapshot(now=NOW)).completed == 0


async def test_tasks_of_an_order_of_its_own_can_be_deleted_and_requeued(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=10 * KB))
    await c.configure(QueueChange(queue="default", keep_completed_count=64))
    await ended(c, *many(0, 10, "much"), bad=True)
    for i in range(5):
        await c.requeue(made(i))
    await c.delete(made(9))
    leases = await c.fetch(10)
    await c.settle(*map(completed, leases))
    for i in range(5):
        await c.delete(made(i))
    for i in range(5, 9):
        await c.delete(made(i))
    snapshot = await broker.snapshot(now=NOW)
    assert (snapshot.completed, snapshot.dead) == (0, 0)


async def test_a_dead_task_that_is_dropped_for_want_of_room_leaves_an_event(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=5 * KB))
    await ended(c, *many(0, 4, "a", b"b" * 2 * KB), bad=True)

    dropped = [e for e in await events(broker) if e.kind == "dropped"]
    assert [(e.task, e.tenant, e.state, e.reason) for e in dropped] == [
        (made(0), "a", "dead", "keep_dead_bytes"),
        (made(1), "a", "dead", "keep_dead_bytes"),
    ]
    assert (await broker.stats()).queues["default"].dropped == 2


async def test_a_dead_task_that_is_past_its_time_leaves_no_event(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_dead=10.0))
    await ended(c, submit("t"), bad=True)
    await broker.tidy(now=NOW + 11)

    assert await states(broker, "t", now=NOW + 11) == [None]
    assert "dropped" not in {e.kind for e in await events(broker)}
    assert (await broker.stats()).queues["default"].dropped == 0


# -- chosen ids ---------------------------------------------------------------------------------


async def test_a_chosen_id_is_known_for_its_own_time_though_its_task_was_forgotten_for_want_of_room(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0, keep_dead_bytes=0))
    await ended(c, submit("good", body=b"b"), submit("made".ljust(32, "x"), body=b"b"))
    await ended(c, submit("bad", body=b"b"), bad=True)
    assert await states(broker, "good", "bad") == [None, None]

    again = await c.enqueue(
        submit("good", body=b"b"), submit("good", body=b"other"), submit("bad", body=b"b")
    )
    assert [(r.code, r.state) for r in again] == [
        ("duplicate", State.COMPLETED),
        ("conflict", State.COMPLETED),
        ("duplicate", State.DEAD),
    ]
    (other,) = await c.enqueue(submit("good", "another", body=b"b"), now=NOW + 3599)
    assert other.code == "conflict"
    (later,) = await c.enqueue(submit("good", body=b"b"), now=NOW + 3601)
    assert later.code == "accepted"


async def test_a_cancelled_task_that_was_forgotten_is_known_by_its_content(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t", body=b"b"))
    await c.cancel("t")
    await c.configure(QueueChange(queue="default", keep_completed_count=0))
    await broker.tidy(now=NOW)
    assert await states(broker, "t") == [None]

    same, other = await c.enqueue(submit("t", body=b"b"), submit("t", body=b"other"))
    assert (same.code, same.state, other.code) == ("duplicate", State.CANCELLED, "conflict")


async def test_an_id_that_is_known_without_its_task_can_be_deleted(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0))
    await ended(c, submit("t"))
    assert (await c.delete("t", tenant="another")).code == "unknown"
    assert (await c.delete("t")).code == "done"
    assert (await c.delete("t")).code == "unknown"
    (again,) = await c.enqueue(submit("t"))
    assert again.code == "accepted"


async def test_tidy_forgets_ids_whose_time_is_over(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0, keep_completed=10.0))
    await ended(c, submit("t1"), submit("t2", "other"))
    assert (await broker.tidy(now=NOW + 9)).count == 0
    assert (await broker.tidy(now=NOW + 11)).count == 2
    assert (await broker.tidy(now=NOW + 11)).count == 0


async def test_an_id_that_another_tenant_uses_after_its_time_is_known_for_its_new_time(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=1, keep_completed=5.0))
    for id, tenant, at in (
        ("chosen", "a", 0), ("a1", "a", 0), ("a2", "a", 1),  # "chosen" is known until 5
        ("chosen", "b", 6), ("b1", "b", 7), ("b2", "b", 7),  # and then until 11
    ):  # fmt: skip
        await ended(c, submit(id, tenant), now=NOW + at)

    for _ in range(2):
        await broker.tidy(now=NOW + 8)

    [receipt] = await c.enqueue(submit("chosen", "b"), now=NOW + 8)
    assert receipt.code == "duplicate"


async def test_an_id_whose_task_was_deleted_or_kept_for_no_time_is_free(
    broker: Store, c: Client
) -> None:
    (one, two) = await c.run(submit("t1"), submit("t2"))
    await c.settle(completed(one, keep=0.0), completed(two))
    await c.delete("t2")
    receipts = await c.enqueue(submit("t1"), submit("t2"))
    assert [receipt.code for receipt in receipts] == ["accepted", "accepted"]
