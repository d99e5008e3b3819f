"""Emptying a queue, or one tenant's part of it."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Call, Moved, QueueChange
from fairlead.model.lifecycle import DependencyPolicy, State
from tests.support.store import (
    NOW,
    Client,
    codes,
    completed,
    dead,
    drain,
    events,
    failed,
    ids,
    record,
    states,
    submit,
)

KINDS = ("queued", "scheduled", "deferred", "retrying")


async def fill(c: Client, *tenants: str) -> None:
    """For each tenant one waiting task of each kind, and one that runs: ``<tenant>-<state>``."""
    for tenant in tenants:
        (retried, _) = await c.run(
            submit(f"{tenant}-retrying", tenant), submit(f"{tenant}-running", tenant)
        )
        await c.settle(failed(retried, 60))
    for tenant in tenants:
        await c.enqueue(
            submit(f"{tenant}-queued", tenant),
            submit(f"{tenant}-scheduled", tenant, delay=60),
            submit(f"{tenant}-deferred", tenant, after=[f"{tenant}-running"]),
        )


async def test_purge_cancels_what_waits_in_a_queue(broker: Store, c: Client) -> None:
    await fill(c, "a")
    assert await c.purge(now=NOW + 1) == Moved(now=NOW + 1, count=4, more=False)

    assert await states(broker, *(f"a-{kind}" for kind in KINDS)) == [State.CANCELLED] * 4
    queued = await record(broker, "a-queued")
    assert (queued.finished_at, queued.message.body) == (NOW + 1, b"")
    assert await c.fetch(10, now=NOW + 100) == []
    counts = (await broker.snapshot(now=NOW)).queues["default"]
    assert (counts.depth, counts.running, counts.cancelled) == (0, 1, 4)
    assert sorted(e.task for e in await events(broker, "cancelled")) == sorted(
        f"a-{kind}" for kind in KINDS
    )


async def test_purge_leaves_running_and_finished_tasks_as_they_are(
    broker: Store, c: Client
) -> None:
    (one, two, three) = await c.run(submit("done"), submit("bad"), submit("running"))
    await c.settle(completed(one), dead(two))
    before = await broker.find(["done", "bad", "running"], now=NOW)

    assert (await c.purge()).count == 0
    assert await broker.find(["done", "bad", "running"], now=NOW) == before
    assert await c.settle(completed(three)) == ["applied"]


async def test_purge_of_one_tenants_part_leaves_the_others(broker: Store, c: Client) -> None:
    await fill(c, "a", "b")
    assert (await c.purge("default", "a")).count == 4

    assert await states(broker, *(f"a-{kind}" for kind in KINDS)) == [State.CANCELLED] * 4
    assert await states(broker, *(f"b-{kind}" for kind in KINDS)) == [
        State.QUEUED,
        State.SCHEDULED,
        State.DEFERRED,
        State.RETRYING,
    ]
    assert ids(await c.fetch(10)) == ["b-queued"]


async def test_purge_of_one_queue_leaves_the_others(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", queue="one"), submit("t2", queue="two"))
    assert (await c.purge("one")).count == 1
    assert await states(broker, "t1", "t2") == [State.CANCELLED, State.QUEUED]


@pytest.mark.parametrize(("queue", "tenant"), [("ghost", None), ("default", "ghost")])
async def test_purge_of_what_is_empty_or_unknown_does_nothing(
    broker: Store, c: Client, queue: str, tenant: str | None
) -> None:
    await c.enqueue(submit("t1"))
    moved = await c.purge(queue, tenant)
    assert (moved.count, moved.more) == (0, False)
    assert await states(broker, "t1") == [State.QUEUED]


async def test_purge_cancels_at_most_a_step_in_a_call(broker: Store, c: Client) -> None:
    rest = MAX_STEP // 2
    many = 2 * MAX_STEP + rest
    await c.enqueue(*(submit(f"t{i}") for i in range(many)))

    steps = [await c.purge() for _ in range(3)]
    full = (MAX_STEP, True)
    assert [(step.count, step.more) for step in steps] == [full, full, (rest, False)]
    assert (await broker.snapshot(now=NOW)).depth == 0
    assert (await c.purge()).count == 0
    assert len(await events(broker, "cancelled")) == many


async def test_every_step_of_a_purge_leaves_a_consistent_state(broker: Store, c: Client) -> None:
    rest = MAX_STEP // 2
    many = 2 * MAX_STEP + rest
    await c.enqueue(*(submit(f"t{i}", delay=60 * (i % 2)) for i in range(many)))
    for left in (MAX_STEP + rest, rest, 0):
        await c.purge()
        assert (await broker.snapshot(now=NOW)).depth == left
        assert await broker.audit(now=NOW) == []


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("dead", State.DEAD),
        ("cancel", State.CANCELLED),
        ("wait", State.DEFERRED),
        ("run", State.QUEUED),
    ],
)
async def test_tasks_that_depend_on_purged_ones_follow_their_policy(
    broker: Store, c: Client, policy: DependencyPolicy, state: State
) -> None:
    await c.enqueue(submit("parent", queue="one"))
    await c.enqueue(submit("child", queue="two", after=["parent"], policy=policy))
    await c.purge("one")
    await drain(broker)
    assert await states(broker, "parent", "child") == [State.CANCELLED, state]


async def test_a_purge_frees_the_parents_of_deferred_tasks(broker: Store, c: Client) -> None:
    await fill(c, "a")
    assert (await record(broker, "a-running")).dependents == 1
    await c.purge()
    assert (await record(broker, "a-running")).dependents == 0


async def test_a_paused_queue_can_be_purged_and_stays_paused(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", paused=True))
    await c.enqueue(submit("t1"))
    assert (await c.purge()).count == 1
    await c.enqueue(submit("t2"))
    assert await c.fetch(10) == []


async def test_a_purged_queue_takes_tasks_in_again(c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=2))
    await c.enqueue(submit("t1"), submit("t2"))
    await c.purge()
    assert codes(await c.enqueue(submit("t3"), submit("t4"))) == ["accepted", "accepted"]
    assert ids(await c.fetch(10)) == ["t3", "t4"]


async def test_the_last_number_again_returns_the_same_answer_and_purges_nothing(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"))
    first = await c.purge()
    number = Call(c.incarnation, c.number)
    await Client(broker, "other").enqueue(submit("t2"))

    assert await broker.purge(number, "default", now=NOW) == first
    assert await states(broker, "t1", "t2") == [State.CANCELLED, State.QUEUED]
