"""Unique keys: who holds one, whose it is, and what sets it free."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import LeaseRef, QueueChange, Receipt
from fairlead.model.lifecycle import State
from fairlead.model.options import Unique, UniqueUntil
from tests.support.ends import ENDS, End
from tests.support.store import (
    NOW,
    Client,
    codes,
    completed,
    failed,
    ids,
    released,
    snoozed,
    states,
    submit,
)

DONE = Unique(key="k", until="done")
STARTED = Unique(key="k", until="started")
WINDOW = Unique(key="k", until="window", window=60.0)


@pytest.mark.parametrize("unique", [DONE, STARTED, WINDOW], ids=lambda unique: unique.until)
async def test_a_unique_key_that_is_held_makes_a_duplicate_that_names_the_holder(
    broker: Store, c: Client, unique: Unique
) -> None:
    assert codes(await c.enqueue(submit("t1", unique=unique))) == ["accepted"]

    assert await c.enqueue(submit("t2", body=b"other", unique=unique)) == [
        Receipt(id="t1", code="duplicate", state=State.QUEUED)
    ]
    assert await states(broker, "t2") == [None]
    assert ids(await c.fetch(10)) == ["t1"]


async def test_within_a_batch_the_first_one_takes_the_key(c: Client) -> None:
    assert await c.enqueue(submit("t1", unique=DONE, delay=5), submit("t2", unique=DONE)) == [
        Receipt(id="t1", code="accepted", state=State.SCHEDULED),
        Receipt(id="t1", code="duplicate", state=State.SCHEDULED),
    ]


async def test_keys_belong_to_their_tenant(c: Client) -> None:
    receipts = await c.enqueue(submit("a1", "a", unique=DONE), submit("b1", "b", unique=DONE))
    assert codes(receipts) == ["accepted", "accepted"]

    receipts = await c.enqueue(submit("a2", "a", unique=DONE), submit("b2", "b", unique=DONE))
    assert [(receipt.id, receipt.code) for receipt in receipts] == [
        ("a1", "duplicate"),
        ("b1", "duplicate"),
    ]


async def test_a_key_holds_in_all_queues_of_its_tenant(c: Client) -> None:
    await c.enqueue(submit("t1", queue="one", unique=DONE))
    (receipt,) = await c.enqueue(submit("t2", queue="two", unique=DONE))
    assert (receipt.id, receipt.code) == ("t1", "duplicate")


async def test_different_keys_do_not_meet(c: Client) -> None:
    receipts = await c.enqueue(
        submit("t1", unique=Unique(key="k")),
        submit("t2", unique=Unique(key="K")),
        submit("t3", unique=Unique(key="k:")),
        submit("t4"),
    )
    assert codes(receipts) == ["accepted"] * 4


# -- until started ----------------------------------------------------------------------------


async def test_a_key_is_held_until_the_holder_started(c: Client) -> None:
    await c.enqueue(submit("t1", unique=STARTED))
    (lease,) = await c.fetch(1, start=0)  # held by a worker, not started
    assert await c.enqueue(submit("t2", unique=STARTED)) == [
        Receipt(id="t1", code="duplicate", state=State.RUNNING)
    ]

    assert (await c.exchange(started=[c.ref(lease)])).started == ["applied"]
    assert codes(await c.enqueue(submit("t2", unique=STARTED))) == ["accepted"]


async def test_a_holder_that_is_started_by_the_fetch_frees_the_key(c: Client) -> None:
    await c.run(submit("t1", unique=STARTED))
    assert codes(await c.enqueue(submit("t2", unique=STARTED))) == ["accepted"]


async def test_the_end_of_an_earlier_holder_does_not_free_the_key_of_a_later_one(
    c: Client,
) -> None:
    (first,) = await c.run(submit("t1", unique=STARTED))
    await c.enqueue(submit("t2", unique=STARTED))
    await c.settle(completed(first))

    (receipt,) = await c.enqueue(submit("t3", unique=STARTED))
    assert (receipt.id, receipt.code) == ("t2", "duplicate")


async def test_a_holder_that_ends_before_it_started_frees_the_key(c: Client) -> None:
    await c.enqueue(submit("t1", unique=STARTED))
    await c.cancel("t1")
    assert codes(await c.enqueue(submit("t2", unique=STARTED))) == ["accepted"]


# -- until done -------------------------------------------------------------------------------


async def test_a_key_is_held_until_the_holder_is_done(c: Client) -> None:
    (lease,) = await c.run(submit("t1", unique=DONE))
    assert await c.enqueue(submit("t2", unique=DONE)) == [
        Receipt(id="t1", code="duplicate", state=State.RUNNING)
    ]

    await c.settle(completed(lease))
    assert codes(await c.enqueue(submit("t2", unique=DONE))) == ["accepted"]


async def test_the_holders_own_word_decides_how_long_a_key_is_held(c: Client) -> None:
    await c.run(submit("t1", unique=DONE))
    (receipt,) = await c.enqueue(submit("t2", unique=STARTED))
    assert (receipt.id, receipt.code) == ("t1", "duplicate")


async def test_an_attempt_that_is_not_the_last_does_not_free_the_key(c: Client) -> None:
    async def held(now: float) -> None:
        (receipt,) = await c.enqueue(submit("t2", unique=DONE), now=now)
        assert (receipt.id, receipt.code) == ("t1", "duplicate")

    (lease,) = await c.run(submit("t1", unique=DONE))
    await c.settle(failed(lease, 1))
    await held(NOW)
    (lease,) = await c.fetch(1, now=NOW + 1)
    await c.settle(released(lease), now=NOW + 1)
    await held(NOW + 1)
    (lease,) = await c.fetch(1, now=NOW + 1)
    await c.settle(snoozed(lease, 1), now=NOW + 1)
    await held(NOW + 1)
    await c.fetch(1, now=NOW + 2)
    await c.broker.give_back("w1", now=NOW + 2)
    await held(NOW + 2)


@pytest.mark.parametrize("end", [end for end, _ in ENDS])
@pytest.mark.parametrize("until", ["started", "done"])
async def test_a_key_is_free_however_its_holder_ended(
    c: Client, until: UniqueUntil, end: End
) -> None:
    unique = Unique(key="k", until=until)
    await c.enqueue(submit("t1", deadline=10, unique=unique))
    await end(c)

    assert codes(await c.enqueue(submit("t2", unique=unique), now=NOW + 11)) == ["accepted"]
    (receipt,) = await c.enqueue(submit("t3", unique=unique), now=NOW + 11)
    assert (receipt.id, receipt.code) == ("t2", "duplicate")


async def test_a_key_is_free_when_a_dependency_ended_its_holder(broker: Store, c: Client) -> None:
    await c.enqueue(submit("p"), submit("t1", after=["p"], unique=DONE))
    await c.cancel("p")
    assert await states(broker, "t1") == [State.DEAD]

    assert codes(await c.enqueue(submit("t2", unique=DONE))) == ["accepted"]


async def test_a_task_that_is_dead_from_its_first_moment_holds_no_key(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("p"))
    await c.cancel("p")
    await c.enqueue(submit("t1", after=["p"], unique=DONE))
    assert await states(broker, "t1") == [State.DEAD]

    assert codes(await c.enqueue(submit("t2", unique=DONE))) == ["accepted"]


# -- for a window of time ---------------------------------------------------------------------


async def test_a_key_is_held_for_a_window_of_time_from_its_acceptance(c: Client) -> None:
    await c.enqueue(submit("t1", unique=WINDOW))

    (receipt,) = await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 59.999)
    assert (receipt.id, receipt.code) == ("t1", "duplicate")
    assert codes(await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 60)) == ["accepted"]
    (receipt,) = await c.enqueue(submit("t3", unique=WINDOW), now=NOW + 119.999)
    assert (receipt.id, receipt.code) == ("t2", "duplicate")
    assert codes(await c.enqueue(submit("t3", unique=WINDOW), now=NOW + 120)) == ["accepted"]


async def test_a_window_counts_from_acceptance_and_not_from_when_the_task_is_due(
    c: Client,
) -> None:
    await c.enqueue(submit("t1", delay=50, unique=WINDOW))
    assert codes(await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 60)) == ["accepted"]


async def test_a_window_goes_on_when_its_holder_is_done(c: Client) -> None:
    (lease,) = await c.run(submit("t1", unique=WINDOW))
    await c.settle(completed(lease))

    assert await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 30) == [
        Receipt(id="t1", code="duplicate", state=State.COMPLETED)
    ]


async def test_a_window_names_a_holder_that_is_forgotten(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1", unique=WINDOW))
    await c.settle(completed(lease, keep=0))
    assert await states(broker, "t1") == [None]

    assert await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 30) == [
        Receipt(id="t1", code="duplicate", state=None)
    ]


async def test_a_window_is_over_though_its_holder_still_waits(c: Client) -> None:
    await c.enqueue(submit("t1", unique=WINDOW))
    assert codes(await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 61)) == ["accepted"]

    await c.cancel("t1", now=NOW + 61)  # no longer the holder
    (receipt,) = await c.enqueue(submit("t3", unique=WINDOW), now=NOW + 61)
    assert (receipt.id, receipt.code) == ("t2", "duplicate")


async def test_a_window_is_measured_by_the_brokers_time_which_never_goes_back(c: Client) -> None:
    await c.enqueue(submit("t1", unique=WINDOW))
    await c.broker.promote(now=NOW + 60)
    assert codes(await c.enqueue(submit("t2", unique=WINDOW), now=NOW + 1)) == ["accepted"]


# -- refused tasks ----------------------------------------------------------------------------


async def test_a_refused_task_takes_no_key(c: Client) -> None:
    await c.enqueue(submit("taken"))
    await c.configure(QueueChange(queue="full", max_waiting=0))
    await c.configure(QueueChange(queue="narrow", max_tenant_waiting=0))

    receipts = await c.enqueue(
        submit("full", queue="full", unique=DONE),
        submit("narrow", queue="narrow", unique=DONE),
        submit("taken", body=b"other", unique=DONE),
        submit("orphan", after=["ghost"], unique=DONE),
        submit("late", fence=LeaseRef("ghost", "w1", 1), unique=DONE),
        submit("good", unique=DONE),
    )
    assert codes(receipts) == [
        "queue_full",
        "tenant_full",
        "conflict",
        "unknown_dependency",
        "fenced",
        "accepted",
    ]
    assert [receipt.id for receipt in receipts][-1] == "good"


async def test_a_duplicate_takes_no_key(c: Client) -> None:
    await c.enqueue(submit("t1", unique=Unique(key="k1")))
    assert codes(await c.enqueue(submit("t1", unique=Unique(key="k2")))) == ["duplicate"]
    assert codes(await c.enqueue(submit("t2", unique=Unique(key="k2")))) == ["accepted"]
