"""Taking tasks in: ids, batches, delays, deadlines, children, and a broker that is closed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Call, Firing, LeaseRef, Receipt, Submission
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.model.options import Unique
from tests.support.store import (
    NOW,
    Client,
    codes,
    completed,
    events,
    failed,
    ids,
    record,
    released,
    snoozed,
    states,
    submit,
)

# -- ids and content --------------------------------------------------------------------------


async def test_a_new_task_is_accepted_and_committed(broker: Store, c: Client) -> None:
    assert await c.enqueue(submit("t1", "acme", body=b"work")) == [
        Receipt(id="t1", code="accepted", state=State.QUEUED, durability="committed")
    ]

    found = await record(broker, "t1")
    assert found.message == submit("t1", "acme", body=b"work").message
    assert (found.state, found.enqueued_at) == (State.QUEUED, NOW)
    assert (found.attempts, found.generation, found.crashes) == (0, 0, 0)
    assert (found.due_at, found.deadline_at, found.started_at, found.finished_at) == (None,) * 4


async def test_an_id_the_broker_knows_with_the_same_content_is_a_duplicate(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"))

    assert await c.enqueue(submit("t1"), now=NOW + 5) == [
        Receipt(id="t1", code="duplicate", state=State.QUEUED)
    ]
    assert (await record(broker, "t1")).enqueued_at == NOW
    assert ids(await c.fetch(10, now=NOW + 5)) == ["t1"]


async def test_a_duplicate_tells_where_the_task_is_now(c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    assert await c.enqueue(submit("t1")) == [
        Receipt(id="t1", code="duplicate", state=State.RUNNING)
    ]

    await c.settle(completed(lease))
    assert await c.enqueue(submit("t1")) == [
        Receipt(id="t1", code="duplicate", state=State.COMPLETED)
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"y"},
        {"queue": "other"},
        {"tenant": "b"},
        {"level": 1},
        {"cost": 2.0},
        {"limiters": ("api",)},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_an_id_the_broker_knows_with_other_content_is_a_conflict_and_the_first_one_stands(
    broker: Store, c: Client, other: dict[str, Any]
) -> None:
    await c.enqueue(submit("t1"))

    (receipt,) = await c.enqueue(submit("t1", **other))
    assert (receipt.id, receipt.code) == ("t1", "conflict")
    assert (await record(broker, "t1")).message == submit("t1").message
    assert ids(await c.fetch(10, ("default", "other"))) == ["t1"]


async def test_where_a_task_came_from_is_not_part_of_its_content(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", trace=b"first"))

    assert codes(await c.enqueue(submit("t1", trace=b"second"))) == ["duplicate"]
    assert (await record(broker, "t1")).message.trace == b"first"


async def test_when_a_task_should_run_is_not_part_of_its_content(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))

    assert await c.enqueue(submit("t1", delay=60, deadline=90)) == [
        Receipt(id="t1", code="duplicate", state=State.QUEUED)
    ]
    assert (await record(broker, "t1")).deadline_at is None


# -- batches ----------------------------------------------------------------------------------


async def test_there_is_one_answer_per_item_in_order(c: Client) -> None:
    await c.enqueue(submit("known"), submit("taken"))

    receipts = await c.enqueue(
        submit("new"),
        submit("known"),
        submit("later", delay=5),
        submit("taken", body=b"other"),
        submit("child", after=["ghost"]),
    )
    assert [receipt.id for receipt in receipts] == ["new", "known", "later", "taken", "child"]
    assert codes(receipts) == [
        "accepted",
        "duplicate",
        "accepted",
        "conflict",
        "unknown_dependency",
    ]


async def test_the_items_of_a_batch_are_carried_out_in_order(c: Client) -> None:
    receipts = await c.enqueue(
        submit("t2"), submit("t1"), submit("t2"), submit("t1", body=b"other"), submit("t3")
    )
    assert codes(receipts) == ["accepted", "accepted", "duplicate", "conflict", "accepted"]
    assert ids(await c.fetch(10)) == ["t2", "t1", "t3"]


async def test_an_empty_batch_has_no_answers(broker: Store, c: Client) -> None:
    assert await c.enqueue() == []
    assert await events(broker) == []


async def test_up_to_500_tasks_are_taken_in(broker: Store, c: Client) -> None:
    receipts = await c.enqueue(*(submit(f"t{i}") for i in range(500)))
    assert codes(receipts) == ["accepted"] * 500
    assert (await broker.snapshot(now=NOW)).ready == 500


async def test_a_batch_of_more_than_500_raises_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    with pytest.raises(InvalidInput):
        await c.enqueue(*(submit(f"t{i}") for i in range(501)))

    assert await states(broker, "t0", "t500") == [None, None]
    assert await events(broker) == []
    assert (await broker.snapshot(now=NOW)).depth == 0


async def test_up_to_200_tenants_are_taken_in(broker: Store, c: Client) -> None:
    batch = [submit(f"t{i}", f"tenant{i % 200}") for i in range(400)]
    assert codes(await c.enqueue(*batch)) == ["accepted"] * 400


async def test_a_batch_of_more_than_200_tenants_raises_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    with pytest.raises(InvalidInput):
        await c.enqueue(*(submit(f"t{i}", f"tenant{i}") for i in range(201)))

    assert await states(broker, "t0", "t200") == [None, None]
    assert (await broker.snapshot(now=NOW)).depth == 0


@pytest.mark.parametrize(
    "bad",
    [
        submit("bad", delay=-1.0),
        submit("bad", delay=math.nan),
        submit("bad", delay=math.inf),
        submit("bad", deadline=math.nan),
        submit("bad", level=8),
        submit("bad", level=-1),
        submit("bad", cost=0.0),
        submit("bad", cost=math.nan),
        submit("bad", limiters=("a", "b", "c", "d", "e")),
        submit("bad", after=[f"t{i}" for i in range(1001)]),
        submit("bad", unique=Unique(key="k", until="window", window=math.nan)),
    ],
)
async def test_input_that_breaks_its_types_rules_raises_and_changes_nothing(
    broker: Store, c: Client, bad: Submission
) -> None:
    with pytest.raises(InvalidInput):
        await c.enqueue(submit("good"), bad)

    assert await states(broker, "good", "bad") == [None, None]
    assert await events(broker) == []


async def test_a_batch_that_raised_leaves_its_number_free(broker: Store, c: Client) -> None:
    with pytest.raises(InvalidInput):
        await c.enqueue(*(submit(f"t{i}") for i in range(501)))

    again = Call(c.incarnation, c.number)
    assert codes(await broker.enqueue(again, [submit("t0")], now=NOW)) == ["accepted"]


async def test_the_last_number_again_returns_the_same_receipts_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    batch = [submit("t1"), submit("t1"), submit("t2", delay=5)]
    first = await c.enqueue(*batch)
    before = await events(broker)

    again = await broker.enqueue(Call(c.incarnation, c.number), batch, now=NOW + 1)
    assert again == first
    assert codes(again) == ["accepted", "duplicate", "accepted"]
    assert await events(broker) == before


# -- delays -----------------------------------------------------------------------------------


async def test_a_delay_makes_a_task_scheduled(broker: Store, c: Client) -> None:
    assert await c.enqueue(submit("t1", delay=5)) == [
        Receipt(id="t1", code="accepted", state=State.SCHEDULED)
    ]
    found = await record(broker, "t1")
    assert (found.state, found.due_at, found.enqueued_at) == (State.SCHEDULED, NOW + 5, NOW)


async def test_a_scheduled_task_is_handed_out_when_it_is_due_and_not_before(c: Client) -> None:
    await c.enqueue(submit("t1", delay=5))

    assert await c.fetch(1, now=NOW + 4.999) == []
    assert ids(await c.fetch(1, now=NOW + 5)) == ["t1"]


async def test_a_delay_counts_from_the_moment_of_acceptance_by_the_brokers_time(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("first"), now=NOW + 100)
    await c.enqueue(submit("late", delay=5), now=NOW)  # counts as NOW + 100

    found = await record(broker, "late")
    assert (found.enqueued_at, found.due_at) == (NOW + 100, NOW + 105)


# -- promote ----------------------------------------------------------------------------------


async def test_promote_makes_due_tasks_queued(broker: Store, c: Client) -> None:
    (one, two) = await c.run(submit("retried"), submit("snoozed"))
    await c.enqueue(submit("scheduled", delay=5), submit("later", delay=5.001))
    await c.settle(failed(one, 5), snoozed(two, 5))

    early = await broker.promote(now=NOW + 4.999)
    assert (early.count, early.more, early.now) == (0, False, NOW + 4.999)

    moved = await broker.promote(now=NOW + 5)
    assert (moved.count, moved.more, moved.now) == (3, False, NOW + 5)
    assert await states(broker, "retried", "snoozed", "scheduled", "later") == [
        State.QUEUED,
        State.QUEUED,
        State.QUEUED,
        State.SCHEDULED,
    ]
    assert (await record(broker, "scheduled")).due_at is None

    again = await broker.promote(now=NOW + 5)
    assert (again.count, again.more) == (0, False)


async def test_a_task_that_is_due_later_never_holds_back_one_that_is_ready(c: Client) -> None:
    await c.enqueue(submit("later", delay=100, level=0), submit("ready"))
    assert ids(await c.fetch(10)) == ["ready"]

    await c.enqueue(submit("due", delay=5))
    assert ids(await c.fetch(10, now=NOW + 5)) == ["due"]


async def test_a_moment_before_the_last_one_counts_as_the_last_one(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1", delay=5))
    await broker.promote(now=NOW + 3)

    assert (await broker.promote(now=NOW)).now == NOW + 3
    assert ids(await c.fetch(1, now=NOW + 5)) == ["t1"]
    assert (await broker.promote(now=NOW)).now == NOW + 5


# -- deadlines --------------------------------------------------------------------------------


async def test_a_task_may_start_up_to_its_deadline(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", deadline=10))

    (lease,) = await c.fetch(1, now=NOW + 10)
    assert lease.deadline_at == NOW + 10
    assert (await record(broker, "t1")).deadline_at == NOW + 10


async def test_a_task_past_its_deadline_is_not_handed_out_but_dead(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1", deadline=10), submit("t2"))

    assert ids(await c.fetch(10, now=NOW + 10.001)) == ["t2"]
    found = await record(broker, "t1")
    assert (found.state, found.reason, found.finished_at) == (State.DEAD, "expired", NOW + 10.001)
    assert found.attempts == 0


async def test_promote_makes_tasks_past_their_deadline_dead_wherever_they_wait(
    broker: Store, c: Client
) -> None:
    await c.run(submit("parent"))
    await c.enqueue(
        submit("queued", deadline=3),
        submit("scheduled", delay=60, deadline=3),
        submit("deferred", after=["parent"], deadline=3),
        submit("in_time", deadline=4),
    )
    moved = await broker.promote(now=NOW + 3.001)
    assert (moved.count, moved.more) == (3, False)
    waited = ("queued", "scheduled", "deferred")
    assert await states(broker, *waited) == [State.DEAD] * 3
    assert [(await record(broker, id)).reason for id in waited] == ["expired"] * 3
    assert await states(broker, "in_time", "parent") == [State.QUEUED, State.RUNNING]
    assert (await record(broker, "parent")).dependents == 0


async def test_a_task_that_started_in_time_is_not_ended_by_its_deadline(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1", deadline=3))

    assert (await broker.promote(now=NOW + 5)).count == 0
    assert await states(broker, "t1") == [State.RUNNING]
    assert await c.settle(completed(lease), now=NOW + 5) == ["applied"]


async def test_a_later_attempt_must_start_by_the_deadline_as_well(broker: Store, c: Client) -> None:
    retried, returned = await c.run(submit("t1", deadline=3), submit("t2", deadline=3))
    await c.settle(failed(retried, 2.0), released(returned), now=NOW + 2)

    await broker.promote(now=NOW + 4)
    assert await states(broker, "t1", "t2") == [State.DEAD, State.DEAD]
    found = await record(broker, "t1")
    assert (found.reason, found.attempts) == ("expired", 1)


# -- children of running tasks ----------------------------------------------------------------


async def test_with_a_fence_the_task_is_accepted_while_that_lease_is_in_force(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("parent"))

    receipts = await c.enqueue(submit("child", fence=c.ref(lease)))
    assert receipts == [Receipt(id="child", code="accepted", state=State.QUEUED)]
    assert await states(broker, "child") == [State.QUEUED]


@pytest.mark.parametrize("end", [completed, failed, released])
async def test_with_a_fence_the_task_is_refused_once_that_lease_is_over(
    broker: Store, c: Client, end: Callable[..., Any]
) -> None:
    (lease,) = await c.run(submit("parent"))
    await c.settle(end(lease))

    assert await c.enqueue(submit("child", fence=c.ref(lease)), submit("free")) == [
        Receipt(id="child", code="fenced"),
        Receipt(id="free", code="accepted", state=State.QUEUED),
    ]
    assert await states(broker, "child") == [None]


async def test_a_fence_must_match_in_id_incarnation_and_token(broker: Store, c: Client) -> None:
    (one, _) = await c.run(submit("one"), submit("two"))
    await c.enqueue(submit("waiting"))

    wrong = [
        LeaseRef("one", "w2", one.token),
        LeaseRef("one", "w1", one.token + 1),
        LeaseRef("one", "w1", one.token - 1),
        LeaseRef("waiting", "w1", one.token),
        LeaseRef("ghost", "w1", one.token),
    ]
    receipts = await c.enqueue(*(submit(f"c{i}", fence=fence) for i, fence in enumerate(wrong)))
    assert codes(receipts) == ["fenced"] * 5
    assert await states(broker, *(f"c{i}" for i in range(5))) == [None] * 5


async def test_a_fence_of_an_earlier_lease_of_the_same_task_is_over(c: Client) -> None:
    (first,) = await c.run(submit("parent"))
    await c.settle(released(first))
    (second,) = await c.fetch(1)
    assert second.token > first.token

    receipts = await c.enqueue(
        submit("old", fence=c.ref(first)), submit("new", fence=c.ref(second))
    )
    assert codes(receipts) == ["fenced", "accepted"]


# -- close ------------------------------------------------------------------------------------


async def test_a_closed_broker_refuses_new_tasks_with_closed(broker: Store, c: Client) -> None:
    await broker.close()

    assert await c.enqueue(submit("t1"), submit("t2")) == [
        Receipt(id="t1", code="closed"),
        Receipt(id="t2", code="closed"),
    ]
    firing = Firing(schedule="nightly", slot=NOW, submission=submit("t3"))
    assert await c.fire(firing) == [Receipt(id="t3", code="closed")]


async def test_a_closed_broker_lends_nothing_more(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    await broker.close()

    assert await c.fetch(1) == []
    assert await broker.wait(["default"], 60.0) is False
    assert await states(broker, "t1") == [State.QUEUED]


async def test_what_runs_when_the_broker_is_closed_can_still_be_settled(
    broker: Store, c: Client
) -> None:
    first, second = await c.run(submit("t1"), submit("t2"))
    await broker.close()

    assert await c.settle(completed(first, b"r"), failed(second, 5.0)) == ["applied", "applied"]
    assert await states(broker, "t1", "t2") == [State.COMPLETED, State.RETRYING]
    assert (await broker.snapshot(now=NOW)).shutdown is True


async def test_close_may_be_repeated(broker: Store) -> None:
    await broker.close()
    await broker.close()


# -- what is lent -----------------------------------------------------------------------------


async def test_each_loan_of_a_call_is_the_task_as_it_was_enqueued(c: Client) -> None:
    kinds = (
        submit("t1"),
        submit("t2", body=b"other"),
        submit("t3", "b", level=0, cost=2.0, trace=b"trace"),
        submit("t4", flags=5),
        submit("t5", "b", body=b"", trace=b"trace"),
        submit("t6", "b"),
        submit("t7", queue="other"),
        submit("t8", body=b"the first again"),
    )
    await c.enqueue(*kinds)

    lent = await c.fetch(128, ("default", "other"))

    found = sorted((lease.message for lease in lent), key=lambda message: message.id)
    assert found == [each.message for each in kinds]
