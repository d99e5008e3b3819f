"""Slots of schedules: each fires once, whoever asks."""

from __future__ import annotations

import math

import pytest

from fairlead.broker import Store
from fairlead.broker.verbs import Call, Firing, QueueChange, Receipt
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, codes, completed, events, ids, record, states, submit


def firing(id: str, slot: float, schedule: str = "nightly", delay: float = 0.0) -> Firing:
    return Firing(schedule=schedule, slot=slot, submission=submit(id, delay=delay))


async def test_fire_enqueues_for_a_slot_of_a_schedule(broker: Store, c: Client) -> None:
    assert await c.fire(firing("t1", NOW)) == [
        Receipt(id="t1", code="accepted", state=State.QUEUED)
    ]
    assert ids(await c.fetch(1)) == ["t1"]
    assert [(e.kind, e.task) for e in await events(broker, "enqueued")] == [("enqueued", "t1")]


async def test_a_slot_that_was_fired_is_stale(broker: Store, c: Client) -> None:
    await c.fire(firing("t1", NOW))
    other = Client(broker, "another-leader")
    assert await other.fire(firing("t2", NOW)) == [Receipt(id="t2", code="stale")]
    assert await states(broker, "t2") == [None]


async def test_a_slot_earlier_than_the_last_one_fired_is_stale(broker: Store, c: Client) -> None:
    await c.fire(firing("t1", NOW))
    assert codes(await c.fire(firing("t0", NOW - 60))) == ["stale"]
    assert await states(broker, "t0") == [None]
    assert codes(await c.fire(firing("t1b", NOW - 0.001))) == ["stale"]


async def test_a_slot_later_than_the_last_one_fired_fires(c: Client) -> None:
    await c.fire(firing("t1", NOW))
    assert codes(await c.fire(firing("t2", NOW + 0.001))) == ["accepted"]
    assert codes(await c.fire(firing("t3", NOW + 60))) == ["accepted"]


async def test_each_schedule_has_its_own_slots(c: Client) -> None:
    receipts = await c.fire(
        firing("t1", NOW, "one"), firing("t2", NOW, "two"), firing("t3", NOW - 60, "three")
    )
    assert codes(receipts) == ["accepted"] * 3
    assert codes(await c.fire(firing("t4", NOW, "three"), firing("t5", NOW, "one"))) == [
        "accepted",
        "stale",
    ]


async def test_there_is_one_answer_per_firing_and_they_go_in_order(c: Client) -> None:
    receipts = await c.fire(
        firing("t1", NOW),
        firing("t2", NOW + 60),
        firing("t3", NOW + 60),
        firing("t4", NOW + 30),
        firing("t5", NOW + 120),
    )
    assert [(receipt.id, receipt.code) for receipt in receipts] == [
        ("t1", "accepted"),
        ("t2", "accepted"),
        ("t3", "stale"),
        ("t4", "stale"),
        ("t5", "accepted"),
    ]
    assert await c.fire() == []


async def test_a_slot_stays_fired_when_its_task_is_forgotten(c: Client) -> None:
    await c.fire(firing("t1", NOW))
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease, keep=0))
    assert codes(await c.fire(firing("t2", NOW), now=NOW + 100_000)) == ["stale"]


async def test_a_slot_whose_task_was_refused_may_be_fired_again(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=0))
    assert codes(await c.fire(firing("t1", NOW))) == ["queue_full"]

    await c.configure(QueueChange(queue="default", max_waiting=None))
    assert codes(await c.fire(firing("t1", NOW))) == ["accepted"]
    assert await states(broker, "t1") == [State.QUEUED]


async def test_a_slot_may_lie_in_the_past_or_the_future_of_the_brokers_time(c: Client) -> None:
    receipts = await c.fire(firing("t1", NOW - 86_400.0), firing("t2", NOW + 86_400.0))
    assert codes(receipts) == ["accepted", "accepted"]
    assert ids(await c.fetch(10)) == ["t1", "t2"]


async def test_what_is_fired_follows_the_rules_of_enqueue(broker: Store, c: Client) -> None:
    await c.enqueue(submit("known"), submit("taken"))
    receipts = await c.fire(
        firing("later", NOW, "one", delay=60),
        firing("known", NOW, "two"),
        Firing(schedule="three", slot=NOW, submission=submit("taken", body=b"other")),
        Firing(schedule="four", slot=NOW, submission=submit("orphan", after=["ghost"])),
    )
    assert codes(receipts) == ["accepted", "duplicate", "conflict", "unknown_dependency"]
    later = await record(broker, "later")
    assert (later.state, later.due_at) == (State.SCHEDULED, NOW + 60)


async def test_a_slot_that_is_no_moment_raises_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    for slot in (math.nan, math.inf):
        with pytest.raises(InvalidInput):
            await c.fire(firing("t1", NOW, "other"), firing("t2", slot))
    assert await states(broker, "t1", "t2") == [None, None]
    assert codes(await c.fire(firing("t3", NOW))) == ["accepted"]


async def test_more_than_500_firings_raise_and_change_nothing(broker: Store, c: Client) -> None:
    with pytest.raises(InvalidInput):
        await c.fire(*(firing(f"t{i}", NOW, f"s{i}") for i in range(501)))
    assert await states(broker, "t0", "t500") == [None, None]
    assert codes(await c.fire(firing("t0", NOW, "s0"))) == ["accepted"]


async def test_the_last_number_again_returns_the_same_receipts_and_fires_nothing(
    broker: Store, c: Client
) -> None:
    first = await c.fire(firing("t1", NOW))
    again = await broker.fire(Call(c.incarnation, c.number), [firing("t1", NOW)], now=NOW)
    assert again == first
    assert codes(again) == ["accepted"]
    assert len(await c.fetch(10)) == 1
