"""Tasks that wait for others: both directions, the four policies, and releases in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, QueueChange, Receipt
from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import Leased
from fairlead.model.options import Dependency
from tests.support.store import (
    NOW,
    Client,
    cancelled,
    codes,
    complete_all,
    completed,
    dead,
    drain,
    events,
    failed,
    ids,
    record,
    released,
    snoozed,
    states,
    submit,
)


async def test_unfinished_dependencies_make_a_task_deferred(broker: Store, c: Client) -> None:
    await c.run(submit("running"))
    await c.enqueue(submit("queued"), submit("scheduled", delay=60))

    assert await c.enqueue(submit("child", after=["running", "queued", "scheduled"])) == [
        Receipt(id="child", code="accepted", state=State.DEFERRED)
    ]
    assert ids(await c.fetch(10)) == ["queued"]


async def test_both_directions_of_a_dependency_can_be_seen(broker: Store, c: Client) -> None:
    await c.enqueue(submit("mother"), submit("father"))
    await c.enqueue(submit("one", after=["mother", "father"]), submit("two", after=["mother"]))

    assert sorted((await record(broker, "one")).waiting_for) == ["father", "mother"]
    assert (await record(broker, "two")).waiting_for == ("mother",)
    assert (await record(broker, "mother")).dependents == 2
    assert (await record(broker, "father")).dependents == 1
    assert (await record(broker, "mother")).waiting_for == ()


async def test_a_dependency_that_is_met_is_gone_from_both_directions(
    broker: Store, c: Client
) -> None:
    (mother, father) = await c.run(submit("mother"), submit("father"))
    await c.enqueue(submit("child", after=["mother", "father"]))

    await c.settle(completed(mother))
    child = await record(broker, "child")
    assert (child.state, child.waiting_for) == (State.DEFERRED, ("father",))
    assert (await record(broker, "mother")).dependents == 0

    await c.settle(completed(father))
    child = await record(broker, "child")
    assert (child.state, child.waiting_for) == (State.QUEUED, ())
    assert (await record(broker, "father")).dependents == 0


async def test_a_task_is_released_when_its_last_dependency_completes(
    broker: Store, c: Client
) -> None:
    leases = await c.run(submit("p1"), submit("p2"), submit("p3"))
    await c.enqueue(submit("child", after=["p1", "p2", "p3"]))

    await c.settle(completed(leases[2]), completed(leases[0]))
    assert await c.fetch(1) == []
    await c.settle(completed(leases[1]), now=NOW + 1)
    assert ids(await c.fetch(1, now=NOW + 1)) == ["child"]
    assert [(e.task, e.state, e.at) for e in await events(broker, "queued")] == [
        ("child", "queued", NOW + 1)
    ]


@pytest.mark.parametrize(
    "attempt",
    [lambda lease: failed(lease, 5), released, lambda lease: snoozed(lease, 5)],
    ids=["failed", "released", "snoozed"],
)
async def test_an_attempt_that_is_not_the_last_releases_nobody(
    broker: Store, c: Client, attempt: Callable[[Leased], Settlement]
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"], policy="run"))

    await c.settle(attempt(lease))
    assert await states(broker, "child") == [State.DEFERRED]
    (lease,) = await c.fetch(1, now=NOW + 5)
    await c.settle(completed(lease), now=NOW + 5)
    assert await states(broker, "child") == [State.QUEUED]


async def test_a_dependency_named_twice_counts_once(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent", Dependency("parent", known=True)]))

    assert (await record(broker, "child")).waiting_for == ("parent",)
    assert (await record(broker, "parent")).dependents == 1
    await c.settle(completed(lease))
    assert await states(broker, "child") == [State.QUEUED]


async def test_a_task_may_depend_on_one_of_another_queue(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent", queue="one"), queues=["one"])
    await c.enqueue(submit("child", queue="two", after=["parent"]))
    assert await c.fetch(1, ["two"]) == []

    await c.settle(completed(lease))
    assert ids(await c.fetch(1, ["two"])) == ["child"]


async def test_what_is_released_into_a_paused_queue_is_queued_but_not_handed_out(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", queue="quiet", after=["parent"]))
    await c.configure(QueueChange(queue="quiet", paused=True))

    await c.settle(completed(lease))
    assert await states(broker, "child") == [State.QUEUED]
    assert await c.fetch(1, ["quiet"]) == []


# -- finished, unknown and forgotten dependencies, at creation --------------------------------

END: dict[DependencyPolicy, State] = {
    "dead": State.DEAD,
    "cancel": State.CANCELLED,
    "wait": State.DEFERRED,
    "run": State.QUEUED,
}


async def make_dead(c: Client, id: str) -> None:
    (lease,) = await c.fetch(1)
    assert (lease.message.id, await c.settle(dead(lease))) == (id, ["applied"])


async def make_cancelled(c: Client, id: str) -> None:
    assert (await c.cancel(id)).code == "done"


async def make_expired(c: Client, id: str) -> None:
    assert (await c.broker.promote(now=NOW + 11)).count >= 1
    assert await states(c.broker, id) == [State.DEAD]


Make = Callable[[Client, str], Awaitable[None]]
FAILURES = pytest.mark.parametrize("fail", [make_dead, make_cancelled, make_expired])
POLICIES = pytest.mark.parametrize("policy", END)


@POLICIES
async def test_a_completed_dependency_is_met_at_once(
    broker: Store, c: Client, policy: DependencyPolicy
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))

    assert await c.enqueue(submit("child", after=["parent"], policy=policy)) == [
        Receipt(id="child", code="accepted", state=State.QUEUED)
    ]
    assert (await record(broker, "parent")).dependents == 0


@POLICIES
@FAILURES
async def test_finished_dependencies_are_settled_at_once_by_the_tasks_policy(
    broker: Store, c: Client, policy: DependencyPolicy, fail: Make
) -> None:
    await c.enqueue(submit("parent", deadline=10))
    await fail(c, "parent")

    assert await c.enqueue(submit("child", after=["parent"], policy=policy), now=NOW + 11) == [
        Receipt(id="child", code="accepted", state=END[policy])
    ]
    child = await record(broker, "child")
    assert child.state is END[policy]
    assert child.waiting_for == (("parent",) if policy == "wait" else ())
    assert (await record(broker, "parent")).dependents == (1 if policy == "wait" else 0)


@POLICIES
@FAILURES
async def test_a_dependency_that_ends_later_is_settled_by_the_tasks_policy(
    broker: Store, c: Client, policy: DependencyPolicy, fail: Make
) -> None:
    await c.enqueue(submit("parent", deadline=10), submit("child", after=["parent"], policy=policy))
    await fail(c, "parent")

    child = await record(broker, "child")
    assert child.state is END[policy]
    assert child.waiting_for == (("parent",) if policy == "wait" else ())
    assert (await record(broker, "parent")).dependents == (1 if policy == "wait" else 0)


@pytest.mark.parametrize("order", ["before", "after"])
async def test_the_reason_of_a_task_that_is_dead_by_its_dependency_names_the_parent(
    broker: Store, c: Client, order: str
) -> None:
    child = submit("child", after=["mother", "father-7"])
    await c.enqueue(submit("mother"), submit("father-7"))
    if order == "before":
        await c.enqueue(child)
    await c.cancel("father-7", now=NOW + 1)
    if order == "after":
        await c.enqueue(child, now=NOW + 1)

    found = await record(broker, "child")
    assert (found.state, found.finished_at) == (State.DEAD, NOW + 1)
    assert found.reason.startswith("dependency_failed")
    assert "father-7" in found.reason
    assert "mother" not in found.reason
    assert (await record(broker, "mother")).dependents == 0


async def test_a_bare_id_that_is_unknown_refuses_the_task(broker: Store, c: Client) -> None:
    await c.enqueue(submit("parent"))

    (receipt, other) = await c.enqueue(submit("child", after=["parent", "ghost"]), submit("other"))
    assert (receipt.id, receipt.code, receipt.state) == ("child", "unknown_dependency", None)
    assert "ghost" in receipt.detail
    assert other.code == "accepted"
    assert await states(broker, "child") == [None]
    assert (await record(broker, "parent")).dependents == 0


async def test_a_handle_that_is_unknown_counts_as_completed(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    handle = Dependency("ghost", known=True)

    assert await c.enqueue(
        submit("child", after=[handle]), submit("both", after=[handle, "parent"])
    ) == [
        Receipt(id="child", code="accepted", state=State.QUEUED),
        Receipt(id="both", code="accepted", state=State.DEFERRED),
    ]
    assert (await record(broker, "both")).waiting_for == ("parent",)
    await c.settle(completed(lease))
    assert await states(broker, "both") == [State.QUEUED]


async def test_a_dependency_past_its_retention_is_unknown(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease, keep=5))

    receipts = await c.enqueue(
        submit("bare", after=["parent"]),
        submit("handle", after=[Dependency("parent", known=True)]),
        now=NOW + 6,
    )
    assert codes(receipts) == ["unknown_dependency", "accepted"]
    assert await states(broker, "bare", "handle") == [None, State.QUEUED]


async def test_a_dependency_may_be_an_earlier_item_of_the_same_batch(
    broker: Store, c: Client
) -> None:
    receipts = await c.enqueue(submit("p"), submit("q", after=["p"]), submit("r", after=["p", "q"]))
    assert [receipt.state for receipt in receipts] == [
        State.QUEUED,
        State.DEFERRED,
        State.DEFERRED,
    ]
    assert [await complete_all(c), await states(broker, "r")] == [3, [State.COMPLETED]]


async def test_a_dependency_may_not_be_a_later_item_of_the_same_batch_or_the_task_itself(
    broker: Store, c: Client
) -> None:
    receipts = await c.enqueue(
        submit("one", after=["two"]), submit("two", after=["one"]), submit("self", after=["self"])
    )
    assert codes(receipts) == ["unknown_dependency"] * 3  # "one" was refused before "two" came
    assert await states(broker, "one", "two", "self") == [None] * 3


async def test_a_dependency_on_a_refused_item_of_the_same_batch_is_unknown(c: Client) -> None:
    await c.configure(QueueChange(queue="full", max_waiting=0))
    receipts = await c.enqueue(submit("parent", queue="full"), submit("child", after=["parent"]))
    assert codes(receipts) == ["queue_full", "unknown_dependency"]


# -- several dependencies, delays -------------------------------------------------------------


async def test_one_failed_dependency_is_enough_though_others_are_unfinished(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("good"), submit("bad"), submit("child", after=["good", "bad"]))
    await c.cancel("bad")
    assert await states(broker, "child") == [State.DEAD]
    assert (await record(broker, "good")).dependents == 0

    await complete_all(c)
    assert await states(broker, "good", "child") == [State.COMPLETED, State.DEAD]


async def test_the_policy_run_still_waits_for_the_other_dependencies(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("good"), submit("bad"))
    await c.enqueue(submit("child", after=["good", "bad"], policy="run"))
    await c.cancel("bad")

    child = await record(broker, "child")
    assert (child.state, child.waiting_for) == (State.DEFERRED, ("good",))
    assert await complete_all(c) == 2


async def test_a_deferred_task_whose_delay_is_not_over_becomes_scheduled(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"], delay=10))
    assert await states(broker, "child") == [State.DEFERRED]

    await c.settle(completed(lease), now=NOW + 4)
    child = await record(broker, "child")
    assert (child.state, child.due_at) == (State.SCHEDULED, NOW + 10)
    assert await c.fetch(1, now=NOW + 9.999) == []
    assert ids(await c.fetch(1, now=NOW + 10)) == ["child"]


async def test_a_deferred_task_whose_delay_is_over_becomes_queued(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"], delay=10))

    assert (await broker.promote(now=NOW + 10)).count == 0  # due, but not released
    assert await states(broker, "child") == [State.DEFERRED]
    await c.settle(completed(lease), now=NOW + 10)
    assert await states(broker, "child") == [State.QUEUED]


async def test_a_delay_with_dependencies_that_are_met_makes_a_task_scheduled(c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(completed(lease))
    assert await c.enqueue(submit("child", after=["parent"], delay=10)) == [
        Receipt(id="child", code="accepted", state=State.SCHEDULED)
    ]


# -- the policy wait --------------------------------------------------------------------------


async def test_wait_goes_on_until_the_parent_completes_after_all(broker: Store, c: Client) -> None:
    await c.enqueue(submit("parent"), submit("child", after=["parent"], policy="wait"))
    await make_dead(c, "parent")
    assert await states(broker, "child") == [State.DEFERRED]

    await c.requeue("parent")
    assert ids(await c.fetch(10)) == ["parent"]
    await broker.give_back("w1", now=NOW)
    (lease,) = await c.fetch(10)
    await c.settle(completed(lease))
    child = await record(broker, "child")
    assert (child.state, child.waiting_for) == (State.QUEUED, ())


@pytest.mark.parametrize("fail", [make_dead, make_cancelled])
async def test_wait_is_dead_once_the_parent_is_deleted(
    broker: Store, c: Client, fail: Make
) -> None:
    await c.enqueue(submit("parent-7"), submit("child", after=["parent-7"], policy="wait"))
    await fail(c, "parent-7")
    assert (await c.delete("parent-7")).code == "done"
    await drain(broker)

    child = await record(broker, "child")
    assert (child.state, child.waiting_for) == (State.DEAD, ())
    assert child.reason.startswith("dependency_failed")
    assert "parent-7" in child.reason


async def test_wait_is_dead_once_the_parent_is_forgotten(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_dead=10.0))
    await c.enqueue(submit("parent-7"), submit("child", after=["parent-7"], policy="wait"))
    await make_dead(c, "parent-7")

    await broker.tidy(now=NOW + 9)
    assert await states(broker, "child") == [State.DEFERRED]
    await broker.tidy(now=NOW + 11)
    await drain(broker, now=NOW + 11)
    child = await record(broker, "child")
    assert (child.state, "parent-7" in child.reason) == (State.DEAD, True)


async def test_a_requeue_of_the_parent_does_not_bring_back_children_that_are_dead(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("parent"), submit("child", after=["parent"]))
    await make_dead(c, "parent")
    await c.requeue("parent")

    assert await complete_all(c) == 1
    assert await states(broker, "parent", "child") == [State.COMPLETED, State.DEAD]


# -- cancel -----------------------------------------------------------------------------------


async def test_cancel_of_a_deferred_task_cleans_both_directions(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"]), submit("other", after=["parent"]))

    assert (await c.cancel("child")).code == "done"
    child = await record(broker, "child")
    assert (child.state, child.waiting_for) == (State.CANCELLED, ())
    assert (await record(broker, "parent")).dependents == 1

    await c.settle(completed(lease))
    assert await states(broker, "child", "other") == [State.CANCELLED, State.QUEUED]


@POLICIES
async def test_cancel_of_a_running_parent_settles_its_children_when_the_attempt_ends(
    broker: Store, c: Client, policy: DependencyPolicy
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"], policy=policy))

    assert (await c.cancel("parent")).code == "requested"
    assert await states(broker, "child") == [State.DEFERRED]
    await c.settle(cancelled(lease))
    assert await states(broker, "parent", "child") == [State.CANCELLED, END[policy]]
    ends = [e for e in await events(broker, "dead", "cancelled", "queued") if e.task == "child"]
    assert len(ends) == (0 if policy == "wait" else 1)


async def test_a_cancelled_parent_that_succeeds_all_the_same_releases_its_children(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"]))
    await c.cancel("parent")

    await c.settle(completed(lease))
    assert await states(broker, "parent", "child") == [State.COMPLETED, State.QUEUED]


# -- chains and crowds ------------------------------------------------------------------------


async def test_a_failure_goes_down_a_chain_by_the_policy_of_each_task(
    broker: Store, c: Client
) -> None:
    await c.enqueue(
        submit("link-a"),
        submit("link-b", after=["link-a"], policy="cancel"),
        submit("link-c", after=["link-b"], policy="dead"),
        submit("link-d", after=["link-c"], policy="run"),
        submit("link-e", after=["link-d"]),
        submit("link-f", after=["link-c"], policy="wait"),
    )
    await make_dead(c, "link-a")
    await drain(broker)

    assert await states(broker, *(f"link-{x}" for x in "abcdef")) == [
        State.DEAD,
        State.CANCELLED,
        State.DEAD,
        State.QUEUED,
        State.DEFERRED,
        State.DEFERRED,
    ]
    assert "link-b" in (await record(broker, "link-c")).reason


async def test_a_failure_goes_down_a_long_chain(broker: Store, c: Client) -> None:
    names = [f"t{i:03}" for i in range(400)]
    await c.enqueue(
        submit("t000"),
        *(submit(id, after=[above]) for above, id in pairwise(names)),
    )
    await c.cancel("t000")
    await drain(broker)

    assert await states(broker, *names) == [State.CANCELLED] + [State.DEAD] * 399
    assert Counter(e.task for e in await events(broker, "dead")) == Counter(names[1:])


async def test_at_most_a_step_of_dependents_is_released_in_a_settlement_the_rest_by_deliver(
    broker: Store, c: Client
) -> None:
    rest = MAX_STEP // 2
    children = [f"c{i:03}" for i in range(MAX_STEP + rest)]
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(*(submit(id, after=["parent"]) for id in children))
    assert (await record(broker, "parent")).dependents == len(children)

    await c.settle(completed(lease))
    found = Counter(await states(broker, *children))
    assert found == {State.QUEUED: MAX_STEP, State.DEFERRED: rest}
    assert (await record(broker, "parent")).dependents == rest

    moved = await broker.deliver(now=NOW)
    assert (moved.count, moved.more, moved.now) == (rest, False, NOW)
    assert Counter(await states(broker, *children)) == {State.QUEUED: len(children)}
    assert (await broker.deliver(now=NOW)).count == 0

    assert Counter(e.task for e in await events(broker, "queued")) == Counter(children)
    assert await complete_all(c) == len(children)


async def test_deliver_goes_on_where_an_earlier_call_stopped_with_at_most_a_step(
    broker: Store, c: Client
) -> None:
    rest = MAX_STEP // 2
    children = [f"c{i:03}" for i in range(2 * MAX_STEP + rest)]
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(*(submit(id, after=["parent"]) for id in children))
    await c.settle(dead(lease))
    found = Counter(await states(broker, *children))
    assert found == {State.DEAD: MAX_STEP, State.DEFERRED: MAX_STEP + rest}

    steps = [await broker.deliver(now=NOW) for _ in range(2)]
    assert [(step.count, step.more) for step in steps] == [(MAX_STEP, True), (rest, False)]
    assert Counter(await states(broker, *children)) == {State.DEAD: len(children)}


async def test_a_release_that_ends_with_a_full_step_leaves_nothing(
    broker: Store, c: Client
) -> None:
    one, other = await c.run(submit("one"), submit("other"))
    await c.enqueue(*(submit(f"c{i}", after=["one"]) for i in range(MAX_STEP)))
    await c.enqueue(*(submit(f"d{i}", after=["other"]) for i in range(2 * MAX_STEP)))

    assert (await c.exchange([completed(one)])).due_in is None
    assert (await c.exchange([completed(other)])).due_in == 0.0
    moved = await broker.deliver(now=NOW)
    assert (moved.count, moved.more) == (MAX_STEP, False)
    assert (await broker.snapshot(now=NOW)).ready == 3 * MAX_STEP


async def test_deliver_has_nothing_to_do_where_nothing_was_left(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", after=["parent"]))
    await c.settle(completed(lease))

    moved = await broker.deliver(now=NOW + 1)
    assert (moved.count, moved.more, moved.now) == (0, False, NOW + 1)


async def test_a_task_that_ended_between_two_steps_of_a_release_stays_as_it_is(
    broker: Store, c: Client
) -> None:
    children = [f"c{i:03}" for i in range(MAX_STEP + MAX_STEP // 2)]
    (lease,) = await c.run(submit("parent"))
    await c.enqueue(*(submit(id, after=["parent"]) for id in children))
    await c.settle(completed(lease))

    found = await broker.find(children, now=NOW)
    left = [r.message.id for r in found if r is not None and r.state is State.DEFERRED]
    assert len(left) == MAX_STEP // 2
    assert (await c.cancel(left[0])).code == "done"
    await drain(broker)
    assert await states(broker, *left) == [State.CANCELLED] + [State.QUEUED] * (len(left) - 1)


async def test_a_fan_in_waits_for_the_last_of_two_steps(broker: Store, c: Client) -> None:
    parents = [f"p{i:03}" for i in range(2 * MAX_STEP)]
    await c.enqueue(*map(submit, parents), submit("child", after=parents))
    assert sorted((await record(broker, "child")).waiting_for) == parents

    leases = await c.fetch(128) + await c.fetch(128)
    assert len(leases) == len(parents)
    await c.settle(*map(completed, leases[:MAX_STEP]))
    await c.settle(*map(completed, leases[MAX_STEP:-1]))
    assert (await record(broker, "child")).waiting_for == (parents[-1],)
    await c.settle(completed(leases[-1]))
    assert ids(await c.fetch(10)) == ["child"]


async def test_a_task_that_a_dependency_ended_at_once_is_known_by_its_content(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(dead(lease))
    child = submit("child", after=["parent"], policy="cancel", body=b"work")
    (receipt,) = await c.enqueue(child)
    assert receipt.state is State.CANCELLED

    again = await c.enqueue(child, submit("child", body=b"other"))

    assert codes(again) == ["duplicate", "conflict"]
