"""Waiting for the end of tasks, their results, and how long finished tasks are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Mail, QueueChange, Watched
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.ends import ENDS, End
from tests.support.store import (
    ERROR,
    NOW,
    Client,
    codes,
    complete_all,
    completed,
    dead,
    events,
    failed,
    record,
    released,
    states,
    submit,
)

HOUR = 3600.0
DAY = 24 * HOUR


def told(mail: list[Mail]) -> list[tuple[str, State | None]]:
    assert {one.kind for one in mail} <= {"finished"}
    return [(one.id, one.state) for one in mail]


# -- watch and collect ------------------------------------------------------------------------


async def test_watch_answers_at_once_for_final_and_unknown_tasks(broker: Store, c: Client) -> None:
    (one, two) = await c.run(submit("good"), submit("bad"))
    await c.settle(completed(one), dead(two))
    await c.enqueue(submit("gone"))
    await c.cancel("gone")

    assert await broker.watch("me", ["good", "ghost", "bad", "gone"], now=NOW) == [
        Watched("good", State.COMPLETED),
        Watched("ghost", None),
        Watched("bad", State.DEAD),
        Watched("gone", State.CANCELLED),
    ]
    assert await broker.collect("me", 0, 0.0) == []


async def test_watch_answers_with_the_state_of_unfinished_tasks_and_mail_follows(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.enqueue(submit("t2", delay=60))

    assert await broker.watch("me", ["t1", "t2"], now=NOW) == [
        Watched("t1", State.RUNNING),
        Watched("t2", State.SCHEDULED),
    ]
    assert await broker.collect("me", 0, 0.0) == []

    await c.settle(completed(lease))
    (mail,) = await broker.collect("me", 0, 0.0)
    assert mail == Mail(number=mail.number, kind="finished", id="t1", state=State.COMPLETED)
    assert mail.number > 0


async def test_watch_of_nothing_answers_nothing(broker: Store) -> None:
    assert await broker.watch("me", [], now=NOW) == []


@pytest.mark.parametrize(("end", "state"), ENDS)
async def test_watchers_are_told_of_the_end_however_it_comes(
    broker: Store, c: Client, end: End, state: State
) -> None:
    await c.enqueue(submit("t1", deadline=10))
    await broker.watch("me", ["t1"], now=NOW)
    await end(c)
    assert told(await broker.collect("me", 0, 0.0)) == [("t1", state)]


async def test_watchers_are_told_when_a_dependency_ends_a_task(broker: Store, c: Client) -> None:
    await c.enqueue(submit("parent"), submit("child", after=["parent"]))
    await broker.watch("me", ["child"], now=NOW)
    await c.cancel("parent")
    assert told(await broker.collect("me", 0, 0.0)) == [("child", State.DEAD)]


async def test_watchers_are_not_told_of_states_that_are_not_final(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await broker.watch("me", ["t1"], now=NOW)
    await c.settle(failed(lease, 0))
    (lease,) = await c.fetch(1)
    await c.settle(released(lease))
    assert await broker.collect("me", 0, 0.0) == []

    (lease,) = await c.fetch(1)
    await c.settle(completed(lease))
    assert told(await broker.collect("me", 0, 0.0)) == [("t1", State.COMPLETED)]


async def test_two_watchers_of_one_task_are_both_told(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await broker.watch("me", ["t1"], now=NOW)
    await broker.watch("you", ["t1"], now=NOW)
    await c.settle(completed(lease))

    assert told(await broker.collect("me", 0, 0.0)) == [("t1", State.COMPLETED)]
    assert told(await broker.collect("you", 0, 0.0)) == [("t1", State.COMPLETED)]
    assert await broker.collect("other", 0, 0.0) == []


async def test_collect_returns_unconfirmed_mail_again(broker: Store, c: Client) -> None:
    leases = await c.run(submit("t1"), submit("t2"))
    await broker.watch("me", ["t1", "t2"], now=NOW)
    await c.settle(completed(leases[0]))
    first = await broker.collect("me", 0, 0.0)
    assert told(first) == [("t1", State.COMPLETED)]
    assert await broker.collect("me", 0, 0.0) == first

    await c.settle(dead(leases[1]))
    both = await broker.collect("me", 0, 0.0)
    assert told(both) == [("t1", State.COMPLETED), ("t2", State.DEAD)]
    assert both[0] == first[0]
    assert both[1].number > both[0].number


async def test_collect_returns_mail_with_numbers_above_after_and_what_is_up_to_it_is_confirmed(
    broker: Store, c: Client
) -> None:
    leases = await c.run(submit("t1"), submit("t2"), submit("t3"))
    await broker.watch("me", ["t1", "t2", "t3"], now=NOW)
    await c.settle(completed(leases[0]), completed(leases[1]))
    (one, two) = await broker.collect("me", 0, 0.0)

    assert await broker.collect("me", one.number, 0.0) == [two]
    assert await broker.collect("me", 0, 0.0) == [two]  # the first is confirmed, and gone
    assert await broker.collect("me", two.number, 0.0) == []
    assert await broker.collect("me", 0, 0.0) == []

    await c.settle(completed(leases[2]))
    (three,) = await broker.collect("me", two.number, 0.0)
    assert (three.id, three.number > two.number) == ("t3", True)


async def test_collect_waits_for_the_first(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await broker.watch("me", ["t1"], now=NOW)
    waiting = asyncio.ensure_future(broker.collect("me", 0, 60.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()

    await c.settle(completed(lease))
    assert told(await asyncio.wait_for(waiting, 5.0)) == [("t1", State.COMPLETED)]


async def test_collect_returns_nothing_when_its_time_is_over(broker: Store) -> None:
    assert await asyncio.wait_for(broker.collect("me", 0, 0.01), 5.0) == []


# -- results ----------------------------------------------------------------------------------


async def test_a_settlement_carries_the_result(broker: Store, c: Client) -> None:
    (one, two) = await c.run(submit("t1"), submit("t2"))
    await c.settle(completed(one, b"\x00result\xff"), completed(two), now=NOW + 2)

    found = await record(broker, "t1")
    assert (found.state, found.result, found.finished_at) == (
        State.COMPLETED,
        b"\x00result\xff",
        NOW + 2,
    )
    assert (found.attempts, found.error) == (1, None)
    assert (await record(broker, "t2")).result is None


async def test_a_dead_task_keeps_its_error_its_reason_and_its_body(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1", body=b"work"))
    await c.settle(dead(lease, "rejected"), now=NOW + 2)

    found = await record(broker, "t1")
    assert (found.state, found.reason, found.error) == (State.DEAD, "rejected", ERROR)
    assert (found.finished_at, found.message.body) == (NOW + 2, b"work")


# -- retention --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settle", "kept"), [(completed, HOUR), (dead, 7 * DAY)], ids=["completed", "dead"]
)
async def test_completed_tasks_are_kept_an_hour_and_dead_ones_seven_days(
    broker: Store, c: Client, settle: Callable[[Leased], Settlement], kept: float
) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(settle(lease))

    assert (await states(broker, "t1", now=NOW + kept - 1))[0] is not None
    assert await states(broker, "t1", now=NOW + kept + 1) == [None]


@pytest.mark.parametrize("settle", [completed, dead])
async def test_a_queue_has_a_retention_of_its_own(
    broker: Store, c: Client, settle: Callable[[Leased], Settlement]
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0, keep_dead=10.0))
    (lease,) = await c.run(submit("t1"))
    await c.settle(settle(lease), now=NOW + 5)

    assert (await states(broker, "t1", now=NOW + 14))[0] is not None
    assert await states(broker, "t1", now=NOW + 16) == [None]


async def test_a_task_past_its_retention_is_invisible_even_before_it_is_forgotten(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0, keep_dead=10.0))
    (one, two) = await c.run(submit("good"), submit("bad"))
    await c.settle(completed(one), dead(two))

    late = NOW + 11
    assert await broker.find(["good", "bad"], now=late) == [None, None]
    assert (await broker.page(now=late)).tasks == []
    assert (await broker.page(state=State.DEAD, now=late)).tasks == []
    assert await broker.watch("me", ["good"], now=late) == [Watched("good", None)]
    assert (await c.requeue("bad", now=late)).code == "unknown"
    assert (await c.delete("good", now=late)).code == "unknown"
    assert (await c.cancel("good", now=late)).code == "unknown"
    assert await c.settle(completed(one), now=late) == ["unknown"]


async def test_the_id_of_a_task_past_its_retention_may_be_used_again(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(completed(lease, b"old", keep=10))

    receipts = await c.enqueue(submit("t1", body=b"new"), now=NOW + 11)
    assert codes(receipts) == ["accepted"]
    found = await record(broker, "t1")
    assert (found.state, found.message.body, found.result) == (State.QUEUED, b"new", None)
    assert (found.enqueued_at, found.attempts) == (NOW + 11, 0)

    await broker.tidy(now=NOW + 12)  # what is left of the first one takes nothing along
    assert await complete_all(c, now=NOW + 12) == 1
    assert await states(broker, "t1") == [State.COMPLETED]


@pytest.mark.parametrize("settle", [completed, dead])
async def test_keep_goes_before_the_retention_of_the_queue(
    broker: Store, c: Client, settle: Callable[..., Settlement]
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=100.0, keep_dead=100.0))
    (short, long, usual) = await c.run(submit("short"), submit("long"), submit("usual"))
    await c.settle(settle(short, keep=10), settle(long, keep=1000), settle(usual))
    state = settle(short).to

    assert await states(broker, "short", "long", "usual", now=NOW + 9) == [state] * 3
    assert await states(broker, "short", "long", "usual", now=NOW + 11) == [None, state, state]
    await broker.tidy(now=NOW + 101)
    assert await states(broker, "short", "long", "usual", now=NOW + 101) == [None, state, None]
    assert await states(broker, "long", now=NOW + 1001) == [None]


async def test_with_keep_zero_a_task_is_forgotten_at_once(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.enqueue(submit("child", after=["t1"]))
    await broker.watch("me", ["t1"], now=NOW)

    assert await c.settle(completed(lease, b"result", keep=0)) == ["applied"]
    assert await states(broker, "t1", "child") == [None, State.QUEUED]
    assert told(await broker.collect("me", 0, 0.0)) == [("t1", State.COMPLETED)]
    assert await broker.watch("me", ["t1"], now=NOW) == [Watched("t1", None)]
    assert [event.kind for event in await events(broker, "completed")] == ["completed"]
    assert await c.settle(completed(lease)) == ["unknown"]


async def finish(c: Client, *names: str, now: float = NOW, result: bytes = b"") -> None:
    """Complete tasks in the order of their names, one call each."""
    for lease in await c.run(*map(submit, names), now=now):
        await c.settle(completed(lease, result), now=now)


async def test_finished_tasks_beyond_the_queues_count_are_forgotten_oldest_first(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=3))
    await finish(c, "t1", "t2", "t3")
    assert await states(broker, "t1", "t2", "t3") == [State.COMPLETED] * 3

    await finish(c, "t4", "t5")
    assert await states(broker, "t1", "t2", "t3", "t4", "t5") == [
        None,
        None,
        State.COMPLETED,
        State.COMPLETED,
        State.COMPLETED,
    ]
    assert (await broker.snapshot(now=NOW)).completed == 3


async def test_a_queues_count_does_not_touch_other_queues_or_dead_tasks(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=1))
    (lease,) = await c.run(submit("dead"))
    await c.settle(dead(lease))
    (lease,) = await c.run(submit("far", queue="far"), queues=["far"])
    await c.settle(completed(lease))

    await finish(c, "t1", "t2", "t3")
    assert await states(broker, "dead", "far", "t2", "t3") == [
        State.DEAD,
        State.COMPLETED,
        None,
        State.COMPLETED,
    ]


async def test_finished_tasks_are_forgotten_at_most_two_per_settlement(
    broker: Store, c: Client
) -> None:
    names = [f"t{i}" for i in range(10)]
    await finish(c, *names)
    await c.configure(QueueChange(queue="default", keep_completed_count=2))

    await finish(c, "x1")
    assert await states(broker, *names[:3]) == [None, None, State.COMPLETED]
    assert (await broker.snapshot(now=NOW)).completed == 9
    await finish(c, "x2")
    assert await states(broker, *names[:5]) == [None] * 4 + [State.COMPLETED]
    assert (await broker.snapshot(now=NOW)).completed == 8

    (one, two) = await c.run(submit("x3"), submit("x4"))
    await c.settle(completed(one), completed(two))  # two settlements in one call: four
    assert (await broker.snapshot(now=NOW)).completed == 6

    assert (await broker.tidy(now=NOW)).count == 4
    assert await states(broker, "x2", "x3", "x4") == [None, State.COMPLETED, State.COMPLETED]


async def test_finished_tasks_beyond_the_queues_age_are_forgotten_by_settlements(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0))
    await finish(c, "t1", "t2", "t3")
    await finish(c, "x1", now=NOW + 11)
    assert (await broker.snapshot(now=NOW)).completed <= 2  # x1, and t3 unless it is counted out
    assert (await broker.tidy(now=NOW)).count == 1


async def finish_at_once(c: Client, now: float, *names: str) -> None:
    """Complete tasks of as many tenants in one call."""
    leases = await c.run(*(submit(name, f"of-{name}") for name in names), now=now)
    await c.settle(*map(completed, leases), now=now)


async def test_a_full_queue_forgets_what_is_past_its_time_beside_what_is_too_much(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0, keep_completed_count=4))
    await finish_at_once(c, NOW, "t1", "t2", "t3", "t4")
    await finish_at_once(c, NOW + 11, "x1", "x2")  # two are too many, and all four past their time
    assert await states(broker, "x1", "x2", now=NOW + 11) == [State.COMPLETED] * 2
    assert (await broker.snapshot(now=NOW)).completed == 2


async def test_a_full_queue_keeps_nothing_that_is_not_to_be_kept(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0))
    for start in (0, 35):
        await finish_at_once(c, NOW, *(f"x{start + i}" for i in range(35)))
    await c.configure(QueueChange(queue="default", keep_completed=0.0, keep_completed_count=71))
    assert (await broker.tidy(now=NOW + 1)).count == 0
    await finish_at_once(c, NOW + 2, "y1", "y2")  # one is too many
    assert (await broker.snapshot(now=NOW)).completed == 70


async def test_finished_tasks_beyond_the_queues_bytes_are_forgotten_oldest_first(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_bytes=10_000))
    names = [f"t{i:02}" for i in range(30)]
    await finish(c, *names, result=b"r" * 1000)

    kept = sum(state is not None for state in await states(broker, *names))
    assert 5 <= kept <= 10  # results of 1,000 bytes each, and what else there is of a task
    assert await states(broker, *names) == [None] * (30 - kept) + [State.COMPLETED] * kept


async def test_dead_tasks_beyond_the_queues_bytes_are_forgotten_oldest_first(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=10_000))
    names = [f"t{i:02}" for i in range(30)]
    for lease in await c.run(*(submit(id, body=b"b" * 1000) for id in names)):
        await c.settle(dead(lease))

    kept = sum(state is not None for state in await states(broker, *names))
    assert 5 <= kept <= 10
    assert await states(broker, *names) == [None] * (30 - kept) + [State.DEAD] * kept


async def test_tidy_forgets_what_is_past_its_retention(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0, keep_dead=20.0))
    (one, two) = await c.run(submit("good"), submit("bad"))
    await c.settle(completed(one), dead(two))

    early = await broker.tidy(now=NOW + 9)
    assert (early.count, early.more, early.now) == (0, False, NOW + 9)
    assert (await broker.tidy(now=NOW + 11)).count == 1
    assert await states(broker, "good", "bad") == [None, State.DEAD]
    assert (await broker.tidy(now=NOW + 21)).count == 1
    assert (await broker.tidy(now=NOW + 21)).count == 0
    snapshot = await broker.snapshot(now=NOW)
    assert (snapshot.completed, snapshot.dead) == (0, 0)


async def test_tidy_forgets_at_most_a_step_of_things(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0))
    rest = MAX_STEP // 2
    await c.enqueue(*(submit(f"t{i}") for i in range(MAX_STEP + rest)))
    assert await complete_all(c) == MAX_STEP + rest

    first = await broker.tidy(now=NOW + 11)
    assert (first.count, first.more) == (MAX_STEP, True)
    second = await broker.tidy(now=NOW + 11)
    assert (second.count, second.more) == (rest, False)


async def test_tidy_never_touches_unfinished_tasks(broker: Store, c: Client) -> None:
    await c.run(submit("running"))
    await c.enqueue(submit("queued"), submit("scheduled", delay=400 * DAY))
    await broker.tidy(now=NOW + 300 * DAY)
    assert await states(broker, "running", "queued", "scheduled") == [
        State.RUNNING,
        State.QUEUED,
        State.SCHEDULED,
    ]


async def test_an_id_that_was_deleted_and_completed_again_is_the_newest(
    broker: Store, c: Client
) -> None:
    for name in ("x", "y"):
        (lease,) = await c.run(submit(name))
        await c.settle(completed(lease), now=NOW)
    await c.delete("x")
    (lease,) = await c.run(submit("x"))
    await c.settle(completed(lease), now=NOW + 1)

    await c.configure(QueueChange(queue="default", keep_completed_count=1), now=NOW + 1)
    await broker.tidy(now=NOW + 1)

    assert await states(broker, "x", "y", now=NOW + 1) == [State.COMPLETED, None]


async def test_a_lease_that_was_settled_and_forgotten_in_a_call_is_over_in_that_call(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("0123456789abcdef" * 2))

    assert await c.settle(dead(lease, keep=0.0), completed(lease)) == ["applied", "unknown"]
    assert (await broker.snapshot(now=NOW)).running == 0
