"""Tasks that others will read the results of are kept until the last of those is over."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, QueueChange, Write
from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import Leased
from fairlead.model.options import Dependency
from tests.support.ends import ENDS, End
from tests.support.store import (
    NOW,
    Client,
    codes,
    complete_all,
    completed,
    dead,
    drain,
    failed,
    record,
    released,
    states,
    submit,
)

HOUR, DAY = 3600.0, 86_400.0
MADE = "a" * 32  # as Fairlead makes ids: what has one is kept in a list once it is completed


async def tidied(broker: Store, *ids: str, now: float) -> list[State | None]:
    """The states that are left of these tasks once everything overdue is forgotten."""
    while (await broker.tidy(now=now)).more:
        pass
    return await states(broker, *ids, now=now)


# -- from acceptance to the end of the child ---------------------------------------------------


@pytest.mark.parametrize("parent", ["parent", MADE])
@pytest.mark.parametrize("keep", [None, 5.0, 0.0])
async def test_a_task_whose_result_will_be_read_is_not_forgotten_for_its_age(
    broker: Store, c: Client, parent: str, keep: float | None
) -> None:
    (lease,) = await c.run(submit(parent))
    await c.enqueue(submit("child", after=[parent], delay=DAY, uses=True))
    await c.settle(completed(lease, b"result", keep=keep))

    later = NOW + 10 * HOUR
    assert await tidied(broker, parent, now=later) == [State.COMPLETED]
    assert (await record(broker, parent, now=later)).result == b"result"


async def test_without_the_flag_a_dependency_is_forgotten_in_its_time(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"], delay=DAY))
    await c.settle(completed(lease))
    assert await tidied(broker, "parent", now=NOW + 2 * HOUR) == [None]


@pytest.mark.parametrize("parent", ["parent", MADE])
async def test_a_dependency_that_is_completed_already_is_pinned_too(
    broker: Store, c: Client, parent: str
) -> None:
    (lease,) = await c.run(submit(parent))
    await c.settle(completed(lease, b"result"))
    await c.enqueue(submit("child", after=[parent], delay=DAY, uses=True), now=NOW + HOUR / 2)
    assert await tidied(broker, parent, now=NOW + 3 * HOUR) == [State.COMPLETED]


@pytest.mark.parametrize("parent", ["parent", MADE])
async def test_when_the_last_pin_goes_a_task_is_kept_as_if_it_had_ended_then(
    broker: Store, c: Client, parent: str
) -> None:
    (lease,) = await c.run(submit(parent))
    children = [submit(f"child-{n}", after=[parent], uses=True) for n in range(2)]
    await c.enqueue(*children)
    await c.settle(completed(lease, b"result"))
    (one, two) = await c.fetch(2)
    later = NOW + 2 * HOUR
    await c.settle(completed(one), now=later)
    assert await tidied(broker, parent, now=later + 2 * HOUR) == [State.COMPLETED]

    last = later + 3 * HOUR
    await c.settle(completed(two), now=last)
    assert await tidied(broker, parent, now=last + HOUR - 1) == [State.COMPLETED]
    assert await tidied(broker, parent, now=last + HOUR) == [None]


@pytest.mark.parametrize("parent", ["parent", MADE])
@pytest.mark.parametrize("late", [False, True])
async def test_a_time_of_its_own_counts_from_the_last_pin(
    broker: Store, c: Client, parent: str, late: bool
) -> None:
    child = submit("child", after=[parent], uses=True, queue="other")
    await c.enqueue(submit(parent))
    if not late:
        await c.enqueue(child)
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease, keep=100.0))
    if late:
        await c.enqueue(child, now=NOW + 50)
    await complete_all(c, ["other"], now=NOW + HOUR)
    assert await tidied(broker, parent, now=NOW + HOUR + 99) == [State.COMPLETED]
    assert await tidied(broker, parent, now=NOW + HOUR + 101) == [None]


async def test_what_is_kept_for_no_time_goes_with_its_last_pin(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"], uses=True))
    await c.settle(completed(lease, b"result", keep=0.0))
    assert await states(broker, "parent") == [State.COMPLETED]
    await complete_all(c)
    assert await states(broker, "parent", "child") == [None, State.COMPLETED]


@pytest.mark.parametrize(("end", "state"), ENDS)
async def test_pins_go_however_the_child_ends(
    broker: Store, c: Client, end: End, state: State
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))
    await c.enqueue(submit("t1", after=["parent"], deadline=10, uses=True))
    await end(c)
    assert await states(broker, "t1") in ([state], [None])
    assert await tidied(broker, "parent", now=NOW + 2 * HOUR) == [None]


async def test_retries_snoozes_and_releases_keep_the_pins(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))
    (child,) = await c.run(submit("child", after=["parent"], uses=True))
    await c.settle(failed(child, HOUR))
    (child,) = await c.fetch(1, now=NOW + 3 * HOUR)
    await c.settle(released(child), now=NOW + 3 * HOUR)
    assert await tidied(broker, "parent", now=NOW + 9 * HOUR) == [State.COMPLETED]


async def test_a_crash_keeps_the_pins(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))
    await c.run(submit("child", after=["parent"], uses=True))
    await broker.give_back("w1", now=NOW)
    assert await states(broker, "child") == [State.QUEUED]
    assert await tidied(broker, "parent", now=NOW + 9 * HOUR) == [State.COMPLETED]


async def test_a_child_that_is_dead_from_the_start_pins_nothing(broker: Store, c: Client) -> None:
    (good, bad) = await c.run(submit("good"), submit("bad"))
    await c.settle(completed(good), dead(bad))
    (receipt,) = await c.enqueue(submit("child", after=["good", "bad"], uses=True))
    assert receipt.state is State.DEAD
    assert await tidied(broker, "good", now=NOW + 2 * HOUR) == [None]


async def test_a_dependency_that_is_named_twice_is_pinned_once(broker: Store, c: Client) -> None:
    await c.enqueue(submit("parent"))
    handle = Dependency("parent", known=True)
    await c.enqueue(submit("child", after=["parent", handle, "parent"], uses=True))
    await complete_all(c)
    assert await tidied(broker, "parent", now=NOW + 2 * HOUR) == [None]


async def test_a_dependency_that_is_unknown_is_no_obstacle(broker: Store, c: Client) -> None:
    handle = Dependency("gone", known=True)
    assert codes(await c.enqueue(submit("child", after=[handle], uses=True))) == ["accepted"]
    await complete_all(c)
    assert await states(broker, "child") == [State.COMPLETED]


async def test_a_refused_submission_pins_nothing(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))
    refused = submit("child", after=["parent", "ghost"], uses=True)
    assert codes(await c.enqueue(refused)) == ["unknown_dependency"]
    child = submit("other", after=["parent"])
    assert codes(await c.enqueue(child, submit("other", after=["parent"], uses=True))) == [
        "accepted",
        "duplicate",
    ]
    assert await tidied(broker, "parent", now=NOW + 2 * HOUR) == [None]


@pytest.mark.parametrize("policy", ["run", "wait"])
async def test_dead_and_cancelled_dependencies_are_kept_as_long_as_any_other(
    broker: Store, c: Client, policy: DependencyPolicy
) -> None:
    (lease,) = await c.run(submit("dead"))
    await c.enqueue(submit("cancelled"))
    child = submit("child", after=["dead", "cancelled"], policy=policy, delay=30 * DAY, uses=True)
    await c.enqueue(child)
    await c.settle(dead(lease))
    await c.cancel("cancelled")
    assert await tidied(broker, "dead", "cancelled", now=NOW + 8 * DAY) == [None, None]
    await drain(broker, now=NOW + 8 * DAY)
    end = State.DEAD if policy == "wait" else State.SCHEDULED  # nothing that it waits for is left
    assert await states(broker, "child", now=NOW + 8 * DAY) == [end]


# -- limits of the retention --------------------------------------------------------------------


@pytest.mark.parametrize(
    "cap",
    [
        QueueChange(queue="default", keep_completed_count=2),
        QueueChange(queue="default", keep_completed_bytes=250),
    ],
    ids=["count", "bytes"],
)
@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("made", [True, False])
async def test_pinned_tasks_do_not_count_for_the_caps(
    broker: Store, c: Client, cap: QueueChange, early: bool, made: bool
) -> None:
    def name(n: int) -> str:
        return f"task-{n}".ljust(32, "-") if made else f"task-{n}"

    await c.configure(cap)
    names = [name(n) for n in range(6)]
    children = [
        submit(f"child-{n}", after=[names[n]], uses=True, queue="other", delay=DAY)
        for n in range(2)
    ]
    leases = await c.run(*(submit(id) for id in names))
    if early:
        await c.enqueue(*children)
        await c.settle(*map(completed, leases))
    else:
        await c.settle(completed(leases[0]), completed(leases[1]))
        await c.enqueue(*children)
        await c.settle(*map(completed, leases[2:]))
    kept = [State.COMPLETED, State.COMPLETED]
    assert await tidied(broker, *names, now=NOW) == [*kept, None, None, *kept]

    # Once they are over the two are the last that ended, and the caps hold for all.
    await complete_all(c, ["other"], now=NOW + DAY)
    assert await tidied(broker, *names[:2], now=NOW + DAY) == kept
    (one, two) = await c.run(submit("next-1"), submit("next-2"), now=NOW + DAY + 1)
    await c.settle(completed(one), completed(two), now=NOW + DAY + 1)
    found = await tidied(broker, *names[:2], "next-1", "next-2", now=NOW + DAY + 1)
    assert found == [None, None, *kept]


async def test_a_call_that_pins_and_forgets_does_not_forget_what_it_pins(
    broker: Store, c: Client
) -> None:
    (first, second, bad) = await c.run(submit(MADE), submit("b" * 32), submit("bad"))
    await c.settle(completed(first), completed(second), dead(bad))
    await c.configure(QueueChange(queue="default", keep_completed_bytes=50))
    child = submit("child", after=[MADE], uses=True, delay=DAY)
    await c.enqueue(child, submit("doomed", after=["bad"]))  # its end makes others go
    assert await states(broker, MADE, "b" * 32) == [State.COMPLETED, None]


async def test_the_cap_in_bytes_for_the_dead_counts_pinned_ones(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=200))
    (one, two) = await c.run(submit("one"), submit("two"))
    await c.enqueue(submit("child", after=["one"], policy="run", uses=True, delay=DAY))
    await c.settle(dead(one))
    await c.settle(dead(two))
    assert await tidied(broker, "one", "two", now=NOW) == [None, State.DEAD]


# -- orders of operators -----------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
async def test_delete_of_a_pinned_task_is_obeyed(broker: Store, c: Client, again: bool) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))
    (child,) = await c.run(submit("child", after=["parent"], uses=True))
    assert (await c.delete("parent")).code == "done"
    assert await states(broker, "parent") == [None]

    if again:  # another task of that id is none of the child's business
        (lease,) = await c.run(submit("parent"))
        await c.enqueue(submit("second", after=["parent"], uses=True, delay=DAY))
        await c.settle(completed(lease))
    await c.settle(completed(child))
    found = await tidied(broker, "parent", now=NOW + 2 * HOUR)
    assert found == [State.COMPLETED if again else None]


@pytest.mark.parametrize("how", ["running", "at once"])
async def test_a_dead_child_that_is_put_to_work_again_takes_its_pins_again(
    broker: Store, c: Client, how: str
) -> None:
    (parent, other) = await c.run(submit("parent"), submit("other"))
    if how == "running":
        await c.settle(completed(parent), completed(other))
        (child,) = await c.run(submit("child", after=["parent", "other"], uses=True))
        await c.settle(dead(child))
    else:
        await c.settle(completed(parent), dead(other))
        await c.enqueue(submit("child", after=["parent", "other"], uses=True))
    assert await states(broker, "child") == [State.DEAD]
    await c.delete("other")
    assert (await c.requeue("child")).code == "done"
    assert await tidied(broker, "parent", now=NOW + 9 * HOUR) == [State.COMPLETED]

    await complete_all(c, now=NOW + 9 * HOUR)
    assert await tidied(broker, "parent", now=NOW + 11 * HOUR) == [None]


async def test_a_parent_past_its_time_is_not_pinned_again(broker: Store, c: Client) -> None:
    (parent,) = await c.run(submit("parent"))
    await c.settle(completed(parent))
    (child,) = await c.run(submit("child", after=["parent"], uses=True))
    await c.settle(dead(child))
    later = NOW + 2 * HOUR
    assert (await c.requeue("child", now=later)).code == "done"
    assert await states(broker, "parent", now=later) == [None]


async def test_a_pinned_dead_task_can_be_put_to_work_again(broker: Store, c: Client) -> None:
    (parent,) = await c.run(submit("parent"))
    await c.settle(dead(parent))
    await c.enqueue(submit("child", after=["parent"], policy="wait", uses=True))
    assert (await c.requeue("parent")).code == "done"
    (parent,) = await c.fetch(1)
    await c.settle(completed(parent, b"result"))
    assert await tidied(broker, "parent", "child", now=NOW + 9 * HOUR) == [
        State.COMPLETED,
        State.QUEUED,
    ]
    await complete_all(c, now=NOW + 9 * HOUR)
    assert await tidied(broker, "parent", now=NOW + 11 * HOUR) == [None]


# -- many --------------------------------------------------------------------------------------


async def test_the_pins_of_many_parents_go_in_steps(broker: Store, c: Client) -> None:
    names = [f"parent-{n}" for n in range(2 * MAX_STEP + 7)]
    await c.enqueue(*(submit(id) for id in names))
    await complete_all(c)
    await c.enqueue(submit("child", after=names, uses=True, queue="other"))
    later = NOW + 2 * HOUR
    assert await tidied(broker, *names, now=later) == [State.COMPLETED] * len(names)

    (child,) = await c.fetch(1, ["other"], now=later)
    reply = await c.exchange([dead(child)], now=later)
    assert reply.due_in == 0.0  # there is more to deliver
    # Put to work again before all of that is done, and over once more.
    assert (await c.requeue("child", now=later)).code == "done"
    await drain(broker, now=later)
    assert await tidied(broker, *names, now=later + 2 * HOUR) == [State.COMPLETED] * len(names)
    await complete_all(c, ["other"], now=later + 2 * HOUR)
    await drain(broker, now=later + 2 * HOUR)
    last = later + 3 * HOUR
    assert await tidied(broker, *names, now=last) == [None] * len(names)


async def test_a_repeated_call_pins_nothing_twice(broker: Store, c: Client) -> None:
    (parent,) = await c.run(submit("parent"))
    await c.settle(completed(parent))
    call, batch = c.call(), [submit("child", after=["parent"], uses=True)]
    first = await broker.enqueue(call, batch, now=NOW)
    assert await broker.enqueue(call, batch, now=NOW) == first
    (child,) = await c.fetch(1)
    call = c.call()
    for _ in range(2):
        reply = await broker.exchange(call, [completed(child)], now=NOW)
        assert reply.settled == ["applied"]
    assert await tidied(broker, "parent", now=NOW + 2 * HOUR) == [None]


# -- XCom --------------------------------------------------------------------------------------


async def _wrote(c: Client, lease: Leased, value: bytes, ttl: float, *, now: float = NOW) -> None:
    write = Write(lease=c.ref(lease), kind="xcom", key="k", value=value, ttl=ttl)
    assert await c.write(write, now=now) == ["applied"]


@pytest.mark.parametrize("end", [completed, dead])
async def test_xcom_values_of_a_pinned_task_outlive_their_ttl(
    broker: Store, c: Client, end: object
) -> None:
    (parent,) = await c.run(submit("parent"))
    await _wrote(c, parent, b"short", 10.0)
    await c.enqueue(submit("child", after=["parent"], policy="run", uses=True))
    settlement: Settlement = completed(parent) if end is completed else dead(parent)
    await c.settle(settlement)
    later = NOW + 100
    await tidied(broker, now=later)
    assert await broker.pull("a", ["k"], now=later) == [b"short"]
    assert await broker.pull("b", ["k"], now=later) == [None]

    await complete_all(c, now=later)
    assert await broker.pull("a", ["k"], now=later) == [None]
    await tidied(broker, now=later + 100)
    assert await broker.pull("a", ["k"], now=later + 100) == [None]


async def test_an_xcom_value_within_its_ttl_does_not_need_its_writer(
    broker: Store, c: Client
) -> None:
    (writer,) = await c.run(submit("writer"))
    await _wrote(c, writer, b"long", 100.0)
    await c.settle(completed(writer))
    assert (await c.delete("writer")).code == "done"
    assert await broker.pull("a", ["k"], now=NOW + 99) == [b"long"]
    assert await broker.pull("a", ["k"], now=NOW + 100) == [None]


async def test_a_later_writer_of_a_key_is_the_one_that_counts(broker: Store, c: Client) -> None:
    (parent, other) = await c.run(submit("parent"), submit("other"))
    await _wrote(c, parent, b"first", 10.0)
    await c.enqueue(submit("child", after=["parent"], uses=True))
    await _wrote(c, other, b"second", 20.0)
    assert await broker.pull("a", ["k"], now=NOW + 15) == [b"second"]
    assert await broker.pull("a", ["k"], now=NOW + 25) == [None]
