"""Releases that outlast their parent: forgotten, deleted, replaced by another task of its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import get_args

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Alter, Moved, QueueChange
from fairlead.model.lifecycle import DependencyPolicy, State
from fairlead.model.message import Leased
from tests.support.fair import enqueue_all
from tests.support.store import (
    NOW,
    Client,
    codes,
    completed,
    dead,
    drain,
    events,
    ids,
    record,
    states,
    submit,
)

REST = MAX_STEP // 2
CHILDREN = [f"child.{i:03}" for i in range(3 * MAX_STEP + REST)]
LATER = NOW + 100
POLICIES = get_args(DependencyPolicy)


async def parent_of_many(c: Client, policy: DependencyPolicy) -> Leased:
    """A running task that others wait for: a step of them at once, the rest by deliver."""
    (parent,) = await c.run(submit("parent"))
    receipts = await c.enqueue(*(submit(id, after=["parent"], policy=policy) for id in CHILDREN))
    assert {receipt.state for receipt in receipts} == {State.DEFERRED}
    return parent


async def counted(broker: Store, names: Sequence[str]) -> dict[State | None, int]:
    """How many of these tasks there are, by state."""
    return dict(Counter(await states(broker, *names)))


# -- how a parent is forgotten ----------------------------------------------------------------


async def keep_nothing(c: Client, parent: Leased, end: Callable[..., object]) -> float:
    assert await c.settle(end(parent, keep=0)) == ["applied"]  # type: ignore[arg-type]
    return NOW


async def delete(c: Client, parent: Leased, end: Callable[..., object]) -> float:
    assert await c.settle(end(parent)) == ["applied"]  # type: ignore[arg-type]
    assert (await c.delete("parent")).code == "done"
    return NOW


async def outlive(c: Client, parent: Leased, end: Callable[..., object]) -> float:
    """Its retention is over, and nobody has tidied up."""
    assert await c.settle(end(parent, keep=10)) == ["applied"]  # type: ignore[arg-type]
    return LATER


Forget = Callable[[Client, Leased, Callable[..., object]], Awaitable[float]]
FORGOTTEN: dict[str, Forget] = {
    "kept for no time": keep_nothing,
    "deleted": delete,
    "past its retention": outlive,
}


# -- a parent that completed ------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["unknown", "enqueued again"])
@pytest.mark.parametrize("forget", FORGOTTEN.values(), ids=FORGOTTEN)
@pytest.mark.parametrize("policy", POLICIES)
async def test_children_of_a_completed_parent_are_released_whatever_became_of_its_id(
    broker: Store, c: Client, policy: DependencyPolicy, forget: Forget, again: bool
) -> None:
    parent = await parent_of_many(c, policy)
    now = await forget(c, parent, completed)
    if again:
        assert codes(await c.enqueue(submit("parent", "b"), now=now)) == ["accepted"]

    assert await drain(broker, now=now) > 0

    assert await counted(broker, CHILDREN) == {State.QUEUED: len(CHILDREN)}
    if again:
        found = await record(broker, "parent")
        assert (found.state, found.dependents) == (State.QUEUED, 0)
    assert len(await c.fetch(MAX_STEP, now=now)) == MAX_STEP


@pytest.mark.parametrize("forget", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_release_that_is_outstanding_does_not_reach_children_of_the_next_task(
    broker: Store, c: Client, forget: Forget
) -> None:
    parent = await parent_of_many(c, "dead")
    now = await forget(c, parent, completed)
    receipts = await c.enqueue(
        submit("parent", "b"), submit("next", "b", after=["parent"]), now=now
    )
    assert [receipt.state for receipt in receipts] == [State.QUEUED, State.DEFERRED]

    await drain(broker, now=now)

    assert await states(broker, "parent", "next") == [State.QUEUED, State.DEFERRED]
    assert (await record(broker, "parent")).dependents == 1
    leases = {lease.message.id: lease for lease in await c.fetch(128, now=now)}
    await c.settle(completed(leases["parent"]), now=now)
    assert await states(broker, "next") == [State.QUEUED]


@pytest.mark.parametrize("forget", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_the_end_of_the_next_task_does_not_end_children_of_the_one_before(
    broker: Store, c: Client, forget: Forget
) -> None:
    parent = await parent_of_many(c, "dead")
    now = await forget(c, parent, completed)
    await c.enqueue(submit("parent", "b"), now=now)
    assert (await c.cancel("parent", now=now)).code == "done"

    await drain(broker, now=now)

    assert await counted(broker, CHILDREN) == {State.QUEUED: len(CHILDREN)}


async def test_a_release_that_is_outstanding_is_due_at_once(broker: Store, c: Client) -> None:
    parent = await parent_of_many(c, "dead")
    reply = await c.exchange([completed(parent, keep=0)])

    assert reply.due_in == 0.0
    assert await counted(broker, CHILDREN) == {
        State.QUEUED: MAX_STEP,
        State.DEFERRED: 2 * MAX_STEP + REST,
    }
    steps = [await broker.deliver(now=NOW) for _ in range(3)]
    assert [step.count for step in steps] == [MAX_STEP, MAX_STEP, REST]
    assert [step.more for step in steps] == [True, True, False]
    assert (await c.exchange()).due_in is None


# -- a parent that is dead --------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["unknown", "enqueued again"])
@pytest.mark.parametrize("forget", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_children_that_wait_for_a_dead_parent_are_dead_once_it_is_forgotten(
    broker: Store, c: Client, forget: Forget, again: bool
) -> None:
    parent = await parent_of_many(c, "wait")
    now = await forget(c, parent, dead)
    if again:
        assert codes(await c.enqueue(submit("parent", "b"), now=now)) == ["accepted"]
        assert (await record(broker, "parent")).dependents == 0
    else:
        await broker.tidy(now=now)
    await drain(broker, now=now)

    found = await broker.find(CHILDREN, now=now)
    assert {(one.state, one.reason) for one in found if one is not None} == {
        (State.DEAD, "dependency_failed: parent")
    }
    assert None not in found
    if again:
        assert (await record(broker, "parent")).dependents == 0
        (lease,) = await c.fetch(128, now=now)
        await c.settle(completed(lease), now=now)
        await drain(broker, now=now)
        assert await counted(broker, CHILDREN) == {State.DEAD: len(CHILDREN)}


async def test_children_that_wait_for_a_dead_parent_follow_it_when_it_is_requeued(
    broker: Store, c: Client
) -> None:
    parent = await parent_of_many(c, "wait")
    await c.settle(dead(parent))
    assert (await c.requeue("parent")).code == "done"  # while some have not been told

    await drain(broker)
    assert await counted(broker, CHILDREN) == {State.DEFERRED: len(CHILDREN)}
    assert (await record(broker, "parent")).dependents == len(CHILDREN)

    (lease,) = await c.fetch(128)
    await c.settle(completed(lease))
    await drain(broker)
    assert await counted(broker, CHILDREN) == {State.QUEUED: len(CHILDREN)}


async def test_children_of_a_parent_that_the_retention_forgets_are_not_left_behind(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=0))
    (parent,) = await c.run(submit("parent"))
    await c.enqueue(submit("child", queue="other", after=["parent"], policy="wait"))

    reply = await c.exchange([dead(parent)])

    found = await states(broker, "parent", "child")
    assert found == [None, State.DEAD] or reply.due_in == 0.0, "nobody knows of the release"
    await drain(broker)
    assert await states(broker, "child") == [State.DEAD]


@pytest.mark.parametrize("known", [1, 2 * MAX_STEP], ids=["at once", "in steps"])
async def test_a_child_that_also_waits_for_another_is_told_of_both(
    broker: Store, c: Client, known: int
) -> None:
    first, second = await c.run(submit("first"), submit("second"))
    names = CHILDREN[:known]
    await c.enqueue(*(submit(id, after=["first", "second"]) for id in names))

    await c.settle(completed(first, keep=0), completed(second, keep=0))
    assert codes(await c.enqueue(submit("first"), submit("second"))) == ["accepted", "accepted"]
    await drain(broker)

    assert await counted(broker, names) == {State.QUEUED: known}


# -- diamonds and duplicates ------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 2 * MAX_STEP + REST], ids=["narrow", "wide"])
async def test_the_last_task_of_a_diamond_is_released_once(
    broker: Store, c: Client, width: int
) -> None:
    middle = [f"middle.{i}" for i in range(width)]
    (top,) = await c.run(submit("top"))
    await c.enqueue(*(submit(id, after=["top"]) for id in middle))
    await c.enqueue(submit("bottom", after=["top", *middle]))

    await c.settle(completed(top, keep=0))
    await drain(broker)
    assert await counted(broker, middle) == {State.QUEUED: width}
    assert await states(broker, "bottom") == [State.DEFERRED]
    assert (await record(broker, "bottom")).waiting_for == tuple(middle)

    done = 0
    while done < width:
        assert await states(broker, "bottom") == [State.DEFERRED]
        leases = await c.fetch(min(100, width - done))
        await c.settle(*(completed(lease, keep=0) for lease in leases))
        done += len(leases)
    await drain(broker)
    assert ids(await c.fetch(5)) == ["bottom"]
    told = [event.kind for event in await events(broker) if event.task == "bottom"]
    assert told == ["enqueued", "queued", "started"]


@pytest.mark.parametrize("width", [2, 2 * MAX_STEP + REST], ids=["narrow", "wide"])
async def test_the_last_task_of_a_diamond_ends_once(broker: Store, c: Client, width: int) -> None:
    middle = [f"middle.{i}" for i in range(width)]
    (top,) = await c.run(submit("top"))
    await c.enqueue(*(submit(id, after=["top"]) for id in middle))
    await c.enqueue(submit("bottom", after=[*middle, "top"]))
    await broker.watch("me", ["bottom"], now=NOW)

    await c.settle(dead(top, keep=0))
    await drain(broker)

    assert await counted(broker, [*middle, "bottom"]) == {State.DEAD: width + 1}
    told = [event.kind for event in await events(broker) if event.task == "bottom"]
    assert told == ["enqueued", "dead"]
    assert [mail.id for mail in await broker.collect("me", 0, 0.0)] == ["bottom"]


async def test_a_child_that_ended_by_one_parent_is_left_alone_by_the_other(
    broker: Store, c: Client
) -> None:
    good, bad = await c.run(submit("good"), submit("bad"))
    await c.enqueue(submit("child", after=["good", "bad"], policy="cancel"))

    await c.settle(dead(bad))
    assert await states(broker, "child") == [State.CANCELLED]
    assert [(await record(broker, id)).dependents for id in ("good", "bad")] == [0, 0]
    await c.settle(completed(good))
    assert await states(broker, "child") == [State.CANCELLED]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_parent_named_several_times_releases_its_children_once(
    broker: Store, c: Client, policy: DependencyPolicy
) -> None:
    (parent,) = await c.run(submit("parent"))
    await c.enqueue(*(submit(id, after=["parent"] * 3, policy=policy) for id in CHILDREN))
    assert (await record(broker, "parent")).dependents == len(CHILDREN)

    await c.settle(completed(parent, keep=0))
    await c.enqueue(submit("parent", "b"))
    assert await drain(broker) > 0

    assert await counted(broker, CHILDREN) == {State.QUEUED: len(CHILDREN)}
    queued = Counter(event.task for event in await events(broker, "queued"))
    assert queued == dict.fromkeys(CHILDREN, 1)


# -- long chains ------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [None, 0.0], ids=["kept", "forgotten"])
async def test_an_end_goes_down_a_chain_in_bounded_steps(
    broker: Store, c: Client, keep: float | None
) -> None:
    names = [f"link.{i:03}" for i in range(4 * MAX_STEP)]
    (head,) = await c.run(submit(names[0]))
    await enqueue_all(
        c,
        (
            submit(id, after=[before], policy="cancel" if i % 2 else "dead")
            for i, (before, id) in enumerate(pairwise(names))
        ),
    )
    await c.settle(dead(head, keep=keep))

    left = [(await broker.snapshot(now=NOW)).depth]
    assert 3 * MAX_STEP - 1 <= left[0] < 4 * MAX_STEP - 1
    more = True
    while more:
        moved = await broker.deliver(now=NOW)
        more = moved.more
        left.append((await broker.snapshot(now=NOW)).depth)
        assert 0 < left[-2] - left[-1] <= moved.count <= MAX_STEP
        assert await broker.audit(now=NOW) == []

    assert left[-1] == 0
    assert len(left) == 4
    ends = [State.DEAD, State.CANCELLED] * (2 * MAX_STEP)
    assert await states(broker, *names[1:]) == ends[: len(names) - 1]


async def test_a_chain_of_2000_completes_link_by_link(broker: Store, c: Client) -> None:
    names = [f"link.{i:04}" for i in range(2_000)]
    await c.enqueue(submit(names[0]))
    await enqueue_all(c, (submit(id, after=[before]) for before, id in pairwise(names)))
    for id in names:
        (lease,) = await c.fetch(2)
        assert lease.message.id == id
        assert await c.settle(completed(lease, keep=0)) == ["applied"]

    assert await c.fetch(2) == []
    assert (await broker.snapshot(now=NOW)).depth == 0


async def test_an_end_goes_down_a_wide_tree_in_bounded_steps(broker: Store, c: Client) -> None:
    (root,) = await c.run(submit("root"))
    branches = [f"branch.{i}" for i in range(MAX_STEP // 5)]
    leaves = [f"{branches[i % len(branches)]}.{i}" for i in range(4 * MAX_STEP)]
    await c.enqueue(*(submit(id, after=["root"]) for id in branches))
    await enqueue_all(c, (submit(id, after=[id.rpartition(".")[0]]) for id in leaves))

    await c.settle(dead(root))
    moves: list[Moved] = []
    while not moves or moves[-1].more:
        moves.append(await broker.deliver(now=NOW))

    counts = [moved.count for moved in moves]
    assert counts == [MAX_STEP, MAX_STEP, MAX_STEP, len(branches)]
    tasks = [*branches, *leaves]
    assert await counted(broker, tasks) == {State.DEAD: len(tasks)}


async def test_many_parents_that_end_in_one_call_release_in_bounded_steps(
    broker: Store, c: Client
) -> None:
    parents = [f"parent.{i:03}" for i in range(MAX_STEP)]
    await c.enqueue(*map(submit, parents))
    await enqueue_all(
        c, (submit(f"{id}.{k}", after=[id], policy="run") for id in parents for k in range(3))
    )

    answers = await c.alter(*(Alter(id=id, action="cancel") for id in parents))
    assert {answer.code for answer in answers} == {"done"}
    assert (await broker.snapshot(now=NOW)).ready == MAX_STEP
    assert await drain(broker) == 2 * MAX_STEP
    assert (await broker.snapshot(now=NOW)).ready == 3 * MAX_STEP
