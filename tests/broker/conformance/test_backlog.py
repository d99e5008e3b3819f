"""How many tasks may wait: limits of queues and tenants, and the warning before them."""

from __future__ import annotations

import math

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Call, QueueChange, Receipt
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.model.options import Unique
from tests.support.store import (
    NOW,
    Client,
    codes,
    dead,
    events,
    failed,
    ids,
    record,
    released,
    snoozed,
    states,
    submit,
)


async def test_a_queue_that_is_at_its_limit_refuses(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=3))

    assert codes(await c.enqueue(*(submit(f"t{i}") for i in range(3)))) == ["accepted"] * 3
    assert await c.enqueue(submit("t3", "b")) == [Receipt(id="t3", code="queue_full", limit=3)]
    assert await states(broker, "t3") == [None]
    assert (await broker.snapshot(now=NOW)).depth == 3


async def test_a_tenants_part_of_a_queue_that_is_at_its_limit_refuses(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", max_tenant_waiting=2))

    assert await c.enqueue(submit("a1"), submit("a2"), submit("a3"), submit("b1", "b")) == [
        Receipt(id="a1", code="accepted", state=State.QUEUED),
        Receipt(id="a2", code="accepted", state=State.QUEUED),
        Receipt(id="a3", code="tenant_full", limit=2),
        Receipt(id="b1", code="accepted", state=State.QUEUED),
    ]
    assert await states(broker, "a3") == [None]


async def test_items_that_fit_are_accepted_while_others_are_refused(c: Client) -> None:
    await c.configure(
        QueueChange(queue="default", max_waiting=4, max_tenant_waiting=2),
        QueueChange(queue="tiny", max_waiting=1),
    )
    receipts = await c.enqueue(
        submit("a1"),
        submit("x1", queue="tiny"),
        submit("a2"),
        submit("a3"),  # a has two
        submit("x2", queue="tiny"),  # tiny has one
        submit("b1", "b"),
        submit("free", queue="open"),
        submit("c1", "c"),
        submit("d1", "d"),  # default has four
    )
    assert codes(receipts) == [
        "accepted",
        "accepted",
        "accepted",
        "tenant_full",
        "queue_full",
        "accepted",
        "accepted",
        "accepted",
        "queue_full",
    ]
    assert [receipt.limit for receipt in receipts] == [0, 0, 0, 2, 1, 0, 0, 0, 4]


async def test_a_limit_holds_for_its_own_queue_only(c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1, max_tenant_waiting=1))
    await c.enqueue(submit("t1"))

    assert codes(await c.enqueue(submit("t2"))) != ["accepted"]
    assert codes(await c.enqueue(submit("o1", queue="o"), submit("o2", queue="o"))) == [
        "accepted",
        "accepted",
    ]


async def test_all_that_is_not_yet_running_counts_as_waiting(broker: Store, c: Client) -> None:
    (retried, _) = await c.run(submit("retried"), submit("running"))
    await c.settle(failed(retried, 60))
    await c.configure(QueueChange(queue="default", max_waiting=5, max_tenant_waiting=5))

    assert (
        codes(
            await c.enqueue(
                submit("scheduled", delay=60),
                submit("deferred", after=["running"]),
                submit("queued"),
                submit("fifth"),
            )
        )
        == ["accepted"] * 4
    )
    assert codes(await c.enqueue(submit("sixth"))) != ["accepted"]
    assert await states(broker, "retried", "scheduled", "deferred", "queued", "running") == [
        State.RETRYING,
        State.SCHEDULED,
        State.DEFERRED,
        State.QUEUED,
        State.RUNNING,
    ]


async def test_a_task_that_is_handed_out_makes_room_for_exactly_one(c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=2))
    await c.enqueue(submit("t1"), submit("t2"))
    await c.fetch(1)

    assert codes(await c.enqueue(submit("t3"), submit("t4"))) == ["accepted", "queue_full"]


@pytest.mark.parametrize("limit", ["max_waiting", "max_tenant_waiting"])
async def test_a_waiting_task_that_ends_makes_room_for_exactly_one(c: Client, limit: str) -> None:
    await c.configure(
        QueueChange(queue="default", max_waiting=2)
        if limit == "max_waiting"
        else QueueChange(queue="default", max_tenant_waiting=2)
    )
    refused = "queue_full" if limit == "max_waiting" else "tenant_full"
    await c.enqueue(submit("t1", deadline=5), submit("t2"))
    await c.cancel("t2")
    assert codes(await c.enqueue(submit("t3"), submit("t4"))) == ["accepted", refused]

    await c.broker.promote(now=NOW + 6)  # t1 is past its deadline
    assert codes(await c.enqueue(submit("t5"), submit("t6"), now=NOW + 6)) == ["accepted", refused]

    assert (await c.purge(now=NOW + 6)).count == 2
    receipts = await c.enqueue(submit("t7"), submit("t8"), submit("t9"), now=NOW + 6)
    assert codes(receipts) == ["accepted", "accepted", refused]


async def test_what_the_broker_knows_already_is_a_duplicate_even_in_a_full_queue(
    c: Client,
) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1, max_tenant_waiting=1))
    await c.enqueue(submit("t1", unique=Unique(key="k")))

    assert await c.enqueue(submit("t1"), submit("t2", unique=Unique(key="k"))) == [
        Receipt(id="t1", code="duplicate", state=State.QUEUED),
        Receipt(id="t1", code="duplicate", state=State.QUEUED),
    ]


async def test_a_retry_is_never_refused(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=3, max_tenant_waiting=3))
    leases = await c.run(submit("t1"), submit("t2"), submit("t3"))
    await c.enqueue(submit("t4"), submit("t5"), submit("t6"))

    assert await c.settle(failed(leases[0], 5), released(leases[1]), snoozed(leases[2], 5)) == [
        "applied",
        "applied",
        "applied",
    ]
    assert await states(broker, "t1", "t2", "t3") == [
        State.RETRYING,
        State.QUEUED,
        State.SCHEDULED,
    ]
    assert (await broker.snapshot(now=NOW)).depth == 6
    assert (await broker.promote(now=NOW + 5)).count == 2
    assert codes(await c.enqueue(submit("t7"), now=NOW + 5)) != ["accepted"]
    assert len(await c.fetch(10, now=NOW + 5)) == 6


async def test_a_task_given_back_is_never_refused(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1))
    await c.run(submit("t1"))
    await c.enqueue(submit("t2"))

    assert (await broker.give_back("w1", now=NOW)).count == 1
    assert await states(broker, "t1", "t2") == [State.QUEUED, State.QUEUED]


async def test_a_requeue_is_never_refused(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1))
    (lease,) = await c.run(submit("t1"))
    await c.settle(dead(lease))
    await c.enqueue(submit("t2"))

    assert (await c.requeue("t1")).code == "done"
    assert (await broker.snapshot(now=NOW)).ready == 2


# -- switching --------------------------------------------------------------------------------


async def test_limits_hold_for_the_existing_backlog_from_now_on(broker: Store, c: Client) -> None:
    await c.enqueue(*(submit(f"t{i}") for i in range(5)))
    await c.configure(QueueChange(queue="default", max_waiting=3))

    assert await c.enqueue(submit("more")) == [Receipt(id="more", code="queue_full", limit=3)]
    assert (await broker.snapshot(now=NOW)).ready == 5  # what was accepted stays

    await c.fetch(2)
    assert codes(await c.enqueue(submit("more"))) == ["queue_full"]  # three wait: at the limit
    await c.fetch(1)
    assert codes(await c.enqueue(submit("more"))) == ["accepted"]


async def test_a_limit_of_zero_refuses_everything(c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=0))
    assert codes(await c.enqueue(submit("t1"))) == ["queue_full"]


async def test_none_lifts_a_limit_and_what_is_unset_stays(c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1, max_tenant_waiting=2))
    await c.configure(QueueChange(queue="default", max_waiting=None))
    assert codes(await c.enqueue(submit("t1"), submit("t2"), submit("t3"))) == [
        "accepted",
        "accepted",
        "tenant_full",
    ]

    await c.configure(QueueChange(queue="default", max_tenant_waiting=None))
    assert codes(await c.enqueue(submit("t3"), submit("t4"))) == ["accepted", "accepted"]


@pytest.mark.parametrize(
    "bad",
    [
        QueueChange(queue="default", max_waiting=-1),
        QueueChange(queue="default", max_tenant_waiting=-1),
        QueueChange(queue="default", warn_depth=-1),
        QueueChange(queue="default", keep_completed=math.nan),
    ],
    ids=["max_waiting", "max_tenant_waiting", "warn_depth", "keep_completed"],
)
async def test_a_change_that_breaks_its_types_rules_raises_and_changes_nothing(
    broker: Store, c: Client, bad: QueueChange
) -> None:
    with pytest.raises(InvalidInput):
        await c.configure(QueueChange(queue="default", max_waiting=0), bad)
    assert codes(await c.enqueue(submit("t1"))) == ["accepted"]
    assert await events(broker, "configured") == []


async def test_without_changes_nothing_is_configured(broker: Store, c: Client) -> None:
    await c.configure()
    assert await events(broker) == []


async def test_the_last_number_again_does_not_configure_again(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1))
    again = Call(c.incarnation, c.number)

    await broker.configure(again, [QueueChange(queue="default", max_waiting=9)], now=NOW)
    assert codes(await c.enqueue(submit("t1"), submit("t2"))) == ["accepted", "queue_full"]


async def test_a_paused_queue_still_takes_tasks_in_up_to_its_limit(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", paused=True, max_waiting=2))

    assert codes(await c.enqueue(submit("t1"), submit("t2"), submit("t3"))) == [
        "accepted",
        "accepted",
        "queue_full",
    ]
    assert await c.fetch(10) == []

    await c.configure(QueueChange(queue="default", paused=False))
    assert ids(await c.fetch(10)) == ["t1", "t2"]


# -- the warning ------------------------------------------------------------------------------


async def test_a_queue_that_reaches_its_warn_depth_says_so_once(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", warn_depth=3))
    await c.enqueue(submit("t1"), submit("t2"))
    assert await events(broker, "warned") == []

    await c.enqueue(submit("t3"), now=NOW + 1)
    (warned,) = await events(broker, "warned")
    assert (warned.queue, warned.task, warned.at) == ("default", "", NOW + 1)

    await c.enqueue(submit("t4"), submit("t5"), now=NOW + 2)
    assert await events(broker, "warned") == [warned]


async def test_a_queue_warns_again_when_it_crosses_its_warn_depth_again(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", warn_depth=3))
    await c.enqueue(*(submit(f"t{i}") for i in range(4)))
    await c.fetch(1)  # three wait: still there
    await c.enqueue(submit("t4"))
    assert len(await events(broker, "warned")) == 1

    await c.fetch(2)  # two wait: below
    await c.enqueue(submit("t5"))
    assert len(await events(broker, "warned")) == 2


async def test_a_batch_that_crosses_the_warn_depth_warns_once(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", warn_depth=3))
    await c.enqueue(*(submit(f"t{i}") for i in range(10)))
    assert len(await events(broker, "warned")) == 1


async def test_the_warn_depth_refuses_nothing(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", warn_depth=1))
    assert codes(await c.enqueue(submit("t1"), submit("t2"))) == ["accepted", "accepted"]
    assert (await record(broker, "t2")).state is State.QUEUED
