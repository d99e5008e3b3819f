"""Schedules are kept, handed out when they are due, and each slot fires once, whoever asks."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Call, Fetch, Firing, QueueChange, Receipt
from fairlead.broker.schedules import (
    CLAIM,
    MAX_SCHEDULES,
    MAX_SPEC,
    Scheduled,
    ScheduleOrder,
    ScheduleRecord,
)
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from tests.support.fair import WITH_REAL_CLOCK
from tests.support.store import NOW, Client, codes, completed, events, ids, record, states, submit


def firing(
    id: str,
    slot: float,
    revision: int,
    schedule: str = "nightly",
    *,
    delay: float = 0.0,
    next_at: float | None = math.inf,
) -> Firing:
    return Firing(
        schedule=schedule,
        slot=slot,
        submission=submit(id, delay=delay),
        revision=revision,
        next_at=slot + 0.001 if next_at == math.inf else next_at,
    )


def create(name: str, next_at: float | None = NOW + 60, **more: object) -> ScheduleOrder:
    return order(name, "create", queue="default", next_at=next_at, **more)


def put(name: str, next_at: float | None = NOW + 60, **more: object) -> ScheduleOrder:
    return order(name, "put", **{"queue": "default", "next_at": next_at, **more})


def order(name: str, action: str, **more: object) -> ScheduleOrder:
    return ScheduleOrder(name=name, action=action, **more)  # type: ignore[arg-type]


def plan_codes(answers: list[Scheduled]) -> list[str]:
    return [answer.code for answer in answers]


async def stored(broker: Store, name: str = "nightly") -> ScheduleRecord:
    [found] = await broker.schedules([name])
    return found


async def names_due(broker: Store, now: float) -> list[str]:
    return [record.name for record in (await broker.tick(now=now)).due]


# -- fire -------------------------------------------------------------------------------------


async def test_fire_enqueues_for_a_slot_of_a_schedule(broker: Store, c: Client) -> None:
    r = await c.planned("nightly")
    assert await c.fire(firing("t1", NOW, r)) == [
        Receipt(id="t1", code="accepted", state=State.QUEUED)
    ]
    assert ids(await c.fetch(1)) == ["t1"]
    assert [(e.kind, e.task) for e in await events(broker, "enqueued")] == [("enqueued", "t1")]


async def test_a_slot_that_was_fired_is_stale(broker: Store, c: Client) -> None:
    r = await c.planned("nightly")
    await c.fire(firing("t1", NOW, r))
    other = Client(broker, "another-scheduler")
    assert await other.fire(firing("t2", NOW, r)) == [Receipt(id="t2", code="stale")]
    assert await states(broker, "t2") == [None]


async def test_a_slot_earlier_than_the_last_one_fired_is_stale(broker: Store, c: Client) -> None:
    r = await c.planned("nightly")
    await c.fire(firing("t1", NOW, r))
    assert codes(await c.fire(firing("t0", NOW - 60, r))) == ["stale"]
    assert await states(broker, "t0") == [None]
    assert codes(await c.fire(firing("t1b", NOW - 0.001, r))) == ["stale"]


async def test_a_slot_later_than_the_last_one_fired_fires(c: Client) -> None:
    r = await c.planned("nightly")
    await c.fire(firing("t1", NOW, r))
    assert codes(await c.fire(firing("t2", NOW + 0.001, r))) == ["accepted"]
    assert codes(await c.fire(firing("t3", NOW + 60, r))) == ["accepted"]


async def test_a_slot_before_the_next_one_was_let_pass_and_is_stale(c: Client) -> None:
    r = await c.planned("nightly")
    await c.fire(firing("t1", NOW, r, next_at=NOW + 60))
    assert codes(await c.fire(firing("t2", NOW + 59, r))) == ["stale"]
    assert codes(await c.fire(firing("t3", NOW + 60, r))) == ["accepted"]


async def test_a_schedule_that_is_unknown_or_over_fires_nothing(broker: Store, c: Client) -> None:
    assert codes(await c.fire(firing("t1", NOW, 1))) == ["stale"]
    r = await c.planned("nightly")
    assert codes(await c.fire(firing("t2", NOW, r, next_at=None))) == ["accepted"]
    assert codes(await c.fire(firing("t3", NOW + 60, r))) == ["stale"]
    assert (await stored(broker)).next_at is None


async def test_who_knows_an_old_revision_fires_nothing(broker: Store, c: Client) -> None:
    r = await c.planned("nightly")
    await c.plan(put("nightly", NOW, spec=b"other"))
    assert codes(await c.fire(firing("t1", NOW, r))) == ["stale"]
    now = (await stored(broker)).revision
    assert now > r
    assert codes(await c.fire(firing("t1", NOW, now))) == ["accepted"]


async def test_a_paused_schedule_fires_nothing(broker: Store, c: Client) -> None:
    await c.planned("nightly")
    [paused] = await c.plan(order("nightly", "pause"))
    assert codes(await c.fire(firing("t1", NOW, paused.revision))) == ["stale"]
    assert await states(broker, "t1") == [None]


async def test_a_schedule_that_was_deleted_and_made_anew_has_another_revision(c: Client) -> None:
    r = await c.planned("nightly")
    await c.plan(order("nightly", "delete"))
    assert await c.planned("nightly") > r
    assert codes(await c.fire(firing("t1", NOW, r))) == ["stale"]


async def test_each_schedule_has_its_own_slots(c: Client) -> None:
    one, two, three = [await c.planned(name) for name in ("one", "two", "three")]
    receipts = await c.fire(
        firing("t1", NOW, one, "one"),
        firing("t2", NOW, two, "two"),
        firing("t3", NOW - 60, three, "three"),
    )
    assert codes(receipts) == ["accepted"] * 3
    receipts = await c.fire(firing("t4", NOW, three, "three"), firing("t5", NOW, one, "one"))
    assert codes(receipts) == ["accepted", "stale"]


async def test_there_is_one_answer_per_firing_and_they_go_in_order(c: Client) -> None:
    r = await c.planned("nightly")
    receipts = await c.fire(
        firing("t1", NOW, r),
        firing("t2", NOW + 60, r),
        firing("t3", NOW + 60, r),
        firing("t4", NOW + 30, r),
        firing("t5", NOW + 120, r),
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
    r = await c.planned("nightly")
    await c.fire(firing("t1", NOW, r))
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease, keep=0))
    assert codes(await c.fire(firing("t2", NOW, r), now=NOW + 100_000)) == ["stale"]


async def test_a_slot_stays_fired_when_the_schedule_is_replaced(c: Client) -> None:
    await c.fire(firing("t1", NOW, await c.planned("nightly")))
    [changed] = await c.plan(put("nightly", NOW - 60, spec=b"other"))
    r = changed.revision
    assert codes(await c.fire(firing("t2", NOW, r), firing("t3", NOW + 1, r))) == [
        "stale",
        "accepted",
    ]


async def test_a_new_schedule_may_bring_its_last_slot_along(broker: Store, c: Client) -> None:
    made, other = await c.plan(
        create("nightly", NOW, last_slot=NOW), put("other", NOW, last_slot=NOW)
    )
    assert [(await stored(broker, name)).last_slot for name in ("nightly", "other")] == [NOW, NOW]
    again = firing("b", NOW, other.revision, "other")
    assert codes(await c.fire(firing("a", NOW, made.revision), again)) == ["stale", "stale"]
    assert codes(await c.fire(firing("a", NOW + 1, made.revision))) == ["accepted"]
    await c.plan(put("nightly", NOW, spec=b"new", last_slot=NOW))  # known here already
    assert (await stored(broker)).last_slot == NOW + 1


async def test_a_slot_whose_task_was_refused_may_be_fired_again(broker: Store, c: Client) -> None:
    r = await c.planned("nightly", next_at=NOW)
    await c.configure(QueueChange(queue="default", max_waiting=0))
    assert codes(await c.fire(firing("t1", NOW, r))) == ["queue_full"]

    await c.configure(QueueChange(queue="default", max_waiting=None))
    assert codes(await c.fire(firing("t1", NOW, r))) == ["accepted"]
    assert await states(broker, "t1") == [State.QUEUED]


async def test_a_slot_that_found_no_room_comes_again_after_the_claim(
    broker: Store, c: Client
) -> None:
    r = await c.planned("nightly", next_at=NOW)
    await c.configure(QueueChange(queue="default", max_waiting=0))
    assert await names_due(broker, NOW) == ["nightly"]
    await c.fire(firing("t1", NOW, r), now=NOW + 2)
    assert await names_due(broker, NOW + 2 + CLAIM - 0.01) == []
    assert await names_due(broker, NOW + 2 + CLAIM) == ["nightly"]
    assert (await stored(broker)).next_at == NOW


async def test_no_later_slot_goes_before_one_that_was_refused(broker: Store, c: Client) -> None:
    """The last of them is known already, and needs no room: it must wait all the same."""
    r = await c.planned("nightly", next_at=NOW)
    await c.enqueue(submit("t3"))
    await c.configure(QueueChange(queue="default", max_waiting=1))
    slots = [
        firing("t1", NOW, r, next_at=NOW + 1),
        firing("t2", NOW + 1, r, next_at=NOW + 2),
        firing("t3", NOW + 2, r, next_at=NOW + 3),
    ]
    receipts = await c.fire(*slots)
    assert [(receipt.id, receipt.code, receipt.limit) for receipt in receipts] == [
        (id, "queue_full", 1) for id in ("t1", "t2", "t3")
    ]
    await c.configure(QueueChange(queue="default", max_waiting=2))
    assert codes(await c.fire(*slots)) == ["accepted", "queue_full", "queue_full"]
    assert ((await stored(broker)).last_slot, (await stored(broker)).next_at) == (NOW, NOW + 1)
    assert await names_due(broker, NOW + 1) == []
    assert await names_due(broker, NOW + CLAIM) == ["nightly"]


async def test_a_refused_slot_of_the_future_is_not_due_before_its_time(
    broker: Store, c: Client
) -> None:
    r = await c.planned("nightly", next_at=NOW + 600)
    await c.configure(QueueChange(queue="default", max_waiting=0))
    assert codes(await c.fire(firing("t1", NOW + 600, r))) == ["queue_full"]
    assert await names_due(broker, NOW + 599) == []
    assert await names_due(broker, NOW + 600) == ["nightly"]


async def test_a_slot_may_lie_in_the_past_or_the_future_of_the_brokers_time(c: Client) -> None:
    r = await c.planned("nightly")
    receipts = await c.fire(firing("t1", NOW - 86_400.0, r), firing("t2", NOW + 86_400.0, r))
    assert codes(receipts) == ["accepted", "accepted"]
    assert ids(await c.fetch(10)) == ["t1", "t2"]


async def test_what_is_fired_follows_the_rules_of_enqueue(broker: Store, c: Client) -> None:
    await c.enqueue(submit("known"), submit("taken"))
    one, two, three, four = [await c.planned(name) for name in ("one", "two", "three", "four")]
    taken = submit("taken", body=b"other")
    orphan = submit("orphan", after=["ghost"])
    receipts = await c.fire(
        firing("later", NOW, one, "one", delay=60),
        firing("known", NOW, two, "two"),
        Firing(schedule="three", slot=NOW, submission=taken, revision=three),
        Firing(schedule="four", slot=NOW, submission=orphan, revision=four),
    )
    assert codes(receipts) == ["accepted", "duplicate", "conflict", "unknown_dependency"]
    later = await record(broker, "later")
    assert (later.state, later.due_at) == (State.SCHEDULED, NOW + 60)


async def test_a_slot_that_is_no_moment_raises_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    r = await c.planned("nightly")
    wrong = [
        firing("t2", math.nan, r, next_at=None),
        firing("t2", math.inf, r, next_at=None),
        firing("t2", NOW, r, next_at=NOW),
        firing("t2", NOW, r, next_at=math.nan),
    ]
    for each in wrong:
        with pytest.raises(InvalidInput):
            await c.fire(firing("t1", NOW, r), each)
    assert await states(broker, "t1", "t2") == [None, None]
    assert codes(await c.fire(firing("t3", NOW, r))) == ["accepted"]


async def test_more_than_500_firings_raise_and_change_nothing(broker: Store, c: Client) -> None:
    r = await c.planned("s0")
    with pytest.raises(InvalidInput):
        await c.fire(*(firing(f"t{i}", NOW + i, r, "s0") for i in range(501)))
    assert await states(broker, "t0", "t500") == [None, None]
    assert codes(await c.fire(firing("t0", NOW, r, "s0"))) == ["accepted"]


async def test_the_last_number_again_returns_the_same_receipts_and_fires_nothing(
    broker: Store, c: Client
) -> None:
    r = await c.planned("nightly")
    first = await c.fire(firing("t1", NOW, r))
    again = await broker.fire(Call(c.incarnation, c.number), [firing("t1", NOW, r)], now=NOW)
    assert again == first
    assert codes(again) == ["accepted"]
    assert len(await c.fetch(10)) == 1


# -- plan -------------------------------------------------------------------------------------


async def test_a_schedule_is_stored_as_it_was_given(broker: Store, c: Client) -> None:
    spec = bytes(range(256))
    [answer] = await c.plan(create("nightly", NOW + 60.25, spec=spec), now=NOW + 1)
    assert (answer.name, answer.code) == ("nightly", "done")
    assert await broker.schedules() == [
        ScheduleRecord(
            name="nightly",
            queue="default",
            spec=spec,
            revision=answer.revision,
            next_at=NOW + 60.25,
            changed_at=NOW + 1,
        )
    ]


async def test_create_refuses_a_name_that_is_taken(broker: Store, c: Client) -> None:
    [first, second] = await c.plan(create("nightly"), create("nightly", spec=b"other"))
    assert (second.code, second.revision) == ("exists", first.revision)
    assert (await stored(broker)).spec == b""


async def test_put_creates_and_replaces_and_says_what_is_unchanged(
    broker: Store, c: Client
) -> None:
    answers = await c.plan(
        put("nightly", spec=b"one"),
        put("nightly", NOW + 90, spec=b"one"),
        put("nightly", NOW + 120, spec=b"two"),
        put("nightly", NOW + 120, spec=b"two", queue="other"),
    )
    assert plan_codes(answers) == ["done", "unchanged", "done", "done"]
    found = await stored(broker)
    assert (found.spec, found.queue, found.next_at) == (b"two", "other", NOW + 120)
    assert found.revision == answers[-1].revision > answers[0].revision


async def test_a_revision_that_is_not_the_stored_one_is_stale(broker: Store, c: Client) -> None:
    r = await c.planned("nightly", next_at=NOW + 60)
    answers = await c.plan(
        put("nightly", spec=b"mine", revision=r),
        put("nightly", spec=b"theirs", revision=r),
        order("nightly", "pause", revision=r),
        order("nightly", "delete", revision=r),
        put("unknown", revision=r),
    )
    assert plan_codes(answers) == ["done", "stale", "stale", "stale", "stale"]
    assert (await stored(broker)).spec == b"mine"
    assert [record.name for record in await broker.schedules()] == ["nightly"]


async def test_pause_and_resume(broker: Store, c: Client) -> None:
    await c.planned("nightly", next_at=NOW + 60)
    assert plan_codes(await c.plan(order("nightly", "pause"), order("nightly", "pause"))) == [
        "done",
        "unchanged",
    ]
    assert (await stored(broker)).paused
    assert await names_due(broker, NOW + 61) == []
    resume = order("nightly", "resume", next_at=NOW + 120)
    assert plan_codes(await c.plan(resume, resume, now=NOW + 61)) == ["done", "unchanged"]
    assert not (await stored(broker)).paused
    assert await names_due(broker, NOW + 119) == []
    assert await names_due(broker, NOW + 120) == ["nightly"]


async def test_what_is_paused_stays_so_when_it_is_replaced(broker: Store, c: Client) -> None:
    await c.planned("nightly")
    await c.plan(order("nightly", "pause"), put("nightly", NOW, spec=b"other"))
    assert (await stored(broker)).paused
    assert await names_due(broker, NOW + 1) == []


async def test_skip_lets_slots_pass_and_never_goes_back(broker: Store, c: Client) -> None:
    r = await c.planned("nightly", next_at=NOW)

    def skip(next_at: float | None) -> ScheduleOrder:
        return order("nightly", "skip", next_at=next_at, revision=r)

    answers = await c.plan(skip(NOW + 60), skip(NOW + 60), skip(NOW + 30))
    assert plan_codes(answers) == ["done", "unchanged", "unchanged"]
    assert (await stored(broker)).revision == r  # nobody's change
    assert codes(await c.fire(firing("t1", NOW, r))) == ["stale"]
    assert await names_due(broker, NOW + 59) == []
    assert plan_codes(await c.plan(skip(None), skip(None))) == ["done", "unchanged"]
    assert await names_due(broker, NOW + 600) == []


async def test_a_deleted_schedule_is_gone(broker: Store, c: Client) -> None:
    await c.fire(firing("t1", NOW, await c.planned("nightly")))
    answers = await c.plan(order("nightly", "delete"), order("nightly", "delete"))
    assert plan_codes(answers) == ["done", "unknown"]
    assert await broker.schedules() == []
    assert await names_due(broker, NOW + 600) == []
    r = await c.planned("nightly")
    assert codes(await c.fire(firing("t2", NOW, r))) == ["accepted"]  # its slots are new, too


async def test_orders_about_nothing_are_unknown(c: Client) -> None:
    answers = await c.plan(
        *(order("x", action) for action in ("pause", "resume", "skip", "delete"))
    )
    assert plan_codes(answers) == ["unknown"] * 4


async def test_bad_orders_raise_and_change_nothing(broker: Store, c: Client) -> None:
    wrong = [
        create("no spaces"),
        create("x" * 101),
        order("x", "create", queue="no spaces"),
        order("x", "create"),
        create("x", math.nan),
        create("x", last_slot=math.inf),
        create("x", spec=bytes(MAX_SPEC + 1)),
        order("x", "explode"),
    ]
    for each in wrong:
        with pytest.raises(InvalidInput):
            await c.plan(create("fine"), each)
    with pytest.raises(InvalidInput):
        await c.plan(*(create(f"s{i}") for i in range(MAX_STEP + 1)))
    assert await broker.schedules() == []


async def test_the_last_plan_again_returns_the_same_answers(broker: Store, c: Client) -> None:
    orders = [create("one"), create("one"), order("two", "pause")]
    first = await c.plan(*orders)
    assert await broker.plan(Call(c.incarnation, c.number), orders, now=NOW) == first


# -- tick and reading -------------------------------------------------------------------------


async def test_tick_hands_out_what_is_due_with_the_brokers_time(broker: Store, c: Client) -> None:
    await c.plan(create("later", NOW + 2), create("soon", NOW + 1), create("never", None))
    assert (await broker.tick(now=NOW)).due == []
    ticked = await broker.tick(now=NOW + 2)
    assert (ticked.now, ticked.more) == (NOW + 2, False)
    assert [record.name for record in ticked.due] == ["soon", "later"]
    assert ticked.due[0] == await stored(broker, "soon")


async def test_what_was_handed_out_is_not_due_until_the_claim_is_over(
    broker: Store, c: Client
) -> None:
    await c.planned("nightly", next_at=NOW)
    assert await names_due(broker, NOW) == ["nightly"]
    assert await names_due(broker, NOW) == []
    assert await names_due(broker, NOW + CLAIM - 0.01) == []
    assert await names_due(broker, NOW + CLAIM) == ["nightly"]


async def test_what_was_fired_is_due_at_its_next_slot(broker: Store, c: Client) -> None:
    r = await c.planned("nightly", next_at=NOW)
    await broker.tick(now=NOW)
    await c.fire(firing("t1", NOW, r, next_at=NOW + 1))
    assert await names_due(broker, NOW + 1) == ["nightly"]
    found = await stored(broker)
    assert (found.last_slot, found.next_at) == (NOW, NOW + 1)


async def test_a_change_is_due_at_once_whoever_had_claimed_it(broker: Store, c: Client) -> None:
    await c.planned("nightly", next_at=NOW)
    await broker.tick(now=NOW)
    await c.plan(put("nightly", NOW + 1, spec=b"other"))
    assert await names_due(broker, NOW + 1) == ["nightly"]


async def test_tick_takes_fifty_at_a_time(broker: Store, c: Client) -> None:
    names = [f"s{i:03}" for i in range(70)]
    await c.planned(*names[:50], next_at=NOW)
    await c.planned(*names[50:], next_at=NOW)
    first = await broker.tick(now=NOW)
    assert [record.name for record in first.due] == names[:50]
    assert first.more
    second = await broker.tick(now=NOW)
    assert [record.name for record in second.due] == names[50:]
    assert not second.more


async def test_promote_and_exchange_tell_that_a_schedule_is_due(broker: Store, c: Client) -> None:
    await c.planned("nightly", next_at=NOW + 60)
    assert not (await broker.promote(now=NOW)).ticks
    assert (await c.exchange(now=NOW + 20)).due_in == 40.0
    assert (await c.exchange(fetch=Fetch(queues=("x",), max=1), now=NOW + 60)).due_in == 0.0
    assert (await broker.promote(now=NOW + 60)).ticks
    await broker.tick(now=NOW + 60)
    assert not (await broker.promote(now=NOW + 60)).ticks
    assert (await c.exchange(now=NOW + 60)).due_in == CLAIM


async def test_due_in_forgets_a_schedule_that_is_paused_or_gone(broker: Store, c: Client) -> None:
    await c.planned("nightly", "weekly", next_at=NOW + 60)
    await c.plan(order("nightly", "pause"), order("weekly", "delete"))
    assert (await c.exchange(now=NOW)).due_in is None


async def test_wait_returns_for_a_schedule_that_is_due_whatever_its_queue(
    broker: Store, c: Client
) -> None:
    await c.planned("nightly", next_at=NOW)
    assert await broker.wait(["another"], 5.0)
    await broker.tick(now=NOW)
    assert not await broker.wait(["another"], 0.05)


async def test_schedules_are_listed_by_name(broker: Store, c: Client) -> None:
    names = [f"s{i:03}" for i in range(300)]
    for start in range(0, 300, MAX_STEP):
        await c.planned(*reversed(names[start : start + MAX_STEP]))
    assert [record.name for record in await broker.schedules()] == names
    found = await broker.schedules(["s007", "ghost", "s001", "s007"])
    assert [record.name for record in found] == ["s001", "s007"]
    assert await broker.schedules([]) == []


async def test_one_schedule_too_many_is_full(broker: Store, c: Client) -> None:
    for start in range(0, MAX_SCHEDULES, MAX_STEP):
        await c.planned(*(f"s{i}" for i in range(start, start + MAX_STEP)), next_at=None)
    answers = await c.plan(
        create("more"),
        put("more"),
        put("s7", spec=b"other"),
        order("s8", "delete"),
        create("more"),
        create("most"),
    )
    assert plan_codes(answers) == ["full", "full", "done", "done", "done", "full"]


@pytest.mark.parametrize("make", WITH_REAL_CLOCK.values(), ids=WITH_REAL_CLOCK)
async def test_whoever_waits_is_woken_when_a_schedule_is_due(make: Callable[[], Store]) -> None:
    broker = make()
    c = Client(broker)
    began = time.monotonic()
    waiting = asyncio.create_task(broker.wait(["other"], 10.0))
    await asyncio.sleep(0.05)
    now = (await broker.hello()).now
    [answer] = await broker.plan(c.call(), [create("nightly", now + 0.3)])
    assert await waiting
    assert 0.3 <= time.monotonic() - began < 2.0
    [due] = (await broker.tick()).due
    assert due.revision == answer.revision
    await broker.close()
