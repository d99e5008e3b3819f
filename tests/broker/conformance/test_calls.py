"""Numbered calls: a lost reply is simply asked again, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from fairlead.broker import Caller, Store
from fairlead.broker.documents import DocumentChange
from fairlead.broker.records import Page, WorkerRecord
from fairlead.broker.requests import (
    MAX_STEP,
    Alter,
    Call,
    Change,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    LimiterChange,
    QueueChange,
    TenantChange,
    Write,
)
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.errors import InvalidInput, OutOfOrder
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.fair import backlog
from tests.support.store import NOW, Client, codes, completed, events, ids, states, submit

HOUR, MINUTE = 3600.0, 60.0  # a broker may keep answers for a minute longer


async def everything(broker: Store, *, now: float = NOW) -> tuple[Any, ...]:
    """All that can be seen of a broker without changing it."""
    page: Page = await broker.page(limit=1_000, now=now)
    return (
        await broker.snapshot(now=now),
        page.tasks,
        await events(broker),
        await broker.pull("a", ["k"], now=now),
        await broker.workers(now=now),
        await broker.schedules(now=now),
        await broker.documents("kind", now=now),
        await broker.notes("trail", now=now),
    )


async def prepared(broker: Store) -> Leased:
    """Tasks in most states, and one that runs under ``w1``."""
    c = Client(broker, "prepared")
    other = Client(broker, "w1")
    (lease,) = await other.run(submit("running"))
    (dying,) = await c.run(submit("dying"))
    await c.settle(Settlement(id="dying", token=dying.token, to=State.DEAD, reason="rejected"))
    (done,) = await c.run(submit("done"))
    await c.settle(completed(done))
    await c.enqueue(
        submit("later", delay=60.0),
        submit("child", after=["running"]),
        *(submit(f"q.{i}", "ab"[i % 2], level=i % 4) for i in range(12)),
    )
    await c.planned("nightly", next_at=NOW + 3_600)
    old = DocumentChange(kind="kind", name="old", value=b"v")
    await broker.write_documents(c.call(), [old], now=NOW)
    await broker.beat("w1", worker=WorkerRecord(incarnation="w1"), now=NOW)
    return lease


Verb = Callable[[Store, Call, Leased], Awaitable[Any]]


async def do_enqueue(broker: Store, call: Call, lease: Leased) -> Any:
    new = [submit("new"), submit("done"), submit("done", body=b"other"), submit("n", after=["?"])]
    return await broker.enqueue(call, new, now=NOW)


async def do_fetch(broker: Store, call: Call, lease: Leased) -> Any:
    fetch = Fetch(queues=("default",), max=5, start=3)
    return await broker.exchange(call, fetch=fetch, now=NOW)


async def do_settle(broker: Store, call: Call, lease: Leased) -> Any:
    stale = Leased(message=submit("q.0").message, token=1, attempt=1)
    ghost = Leased(message=submit("ghost").message, token=1, attempt=1)
    ends = [completed(lease, b"r"), completed(stale), completed(ghost)]
    return await broker.exchange(call, ends, now=NOW)


async def do_settle_and_fetch(broker: Store, call: Call, lease: Leased) -> Any:
    fetch = Fetch(queues=("default",), max=3)
    mark = LeaseRef("running", "w1", lease.token)
    return await broker.exchange(call, [completed(lease)], started=[mark], fetch=fetch, now=NOW)


async def do_write(broker: Store, call: Call, lease: Leased) -> Any:
    proof = LeaseRef("running", "w1", lease.token)
    writes = [
        Write(lease=proof, kind="progress", value=b"1"),
        Write(lease=proof, kind="xcom", key="k", value=b"2"),
        Write(lease=LeaseRef("q.0", "w1", 1), kind="progress", value=b"3"),
    ]
    return await broker.write(call, writes, now=NOW)


async def do_cancel(broker: Store, call: Call, lease: Leased) -> Any:
    orders = [Alter(id=id, action="cancel") for id in ("running", "q.1", "later", "done", "ghost")]
    return await broker.alter(call, orders, now=NOW)


async def do_requeue_and_delete(broker: Store, call: Call, lease: Leased) -> Any:
    orders = [Alter(id="dying", action="requeue"), Alter(id="done", action="delete")]
    return await broker.alter(call, orders, now=NOW)


async def do_run_and_prioritize(broker: Store, call: Call, lease: Leased) -> Any:
    orders = [Alter(id="later", action="run"), Alter(id="q.3", action="prioritize", level=0)]
    return await broker.alter(call, orders, now=NOW)


async def do_write_documents(broker: Store, call: Call, lease: Leased) -> Any:
    changes = [DocumentChange(kind="kind", name=name, value=b"v", revision=0) for name in "aba"]
    return await broker.write_documents(call, changes, now=NOW)


async def do_delete_documents(broker: Store, call: Call, lease: Leased) -> Any:
    changes = [DocumentChange(kind="kind", name=name, value=None) for name in ("old", "ghost")]
    return await broker.write_documents(call, changes, now=NOW)


async def do_note(broker: Store, call: Call, lease: Leased) -> Any:
    return await broker.note(call, "trail", [b"1", b"2"], now=NOW)


async def do_order_worker(broker: Store, call: Call, lease: Leased) -> Any:
    return await broker.order_worker(call, "w1", "pause", now=NOW)


async def do_configure(broker: Store, call: Call, lease: Leased) -> Any:
    changes: list[Change] = [
        QueueChange(queue="default", concurrency=3),
        TenantChange(tenant="b", paused=True),
        LimiterChange(name="gpu", concurrency=1),
    ]
    return await broker.configure(call, changes, now=NOW)


async def do_purge(broker: Store, call: Call, lease: Leased) -> Any:
    return await broker.purge(call, "default", "a", now=NOW)


async def do_fire(broker: Store, call: Call, lease: Leased) -> Any:
    [record] = await broker.schedules(["nightly"])
    firing = Firing(
        schedule="nightly",
        slot=NOW + 3_600,
        submission=submit("fired"),
        revision=record.revision,
        next_at=NOW + 7_200,
    )
    return await broker.fire(call, [firing, firing], now=NOW)


async def do_plan(broker: Store, call: Call, lease: Leased) -> Any:
    orders = [
        ScheduleOrder(name="hourly", action="create", queue="default", next_at=NOW + 3_600),
        ScheduleOrder(name="nightly", action="pause"),
        ScheduleOrder(name="nightly", action="delete"),
        ScheduleOrder(name="ghost", action="delete"),
    ]
    return await broker.plan(call, orders, now=NOW)


VERBS: dict[str, Verb] = {
    function.__name__[3:]: function
    for function in (
        do_enqueue,
        do_fetch,
        do_settle,
        do_settle_and_fetch,
        do_write,
        do_cancel,
        do_requeue_and_delete,
        do_run_and_prioritize,
        do_write_documents,
        do_delete_documents,
        do_note,
        do_order_worker,
        do_configure,
        do_purge,
        do_fire,
        do_plan,
    )
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_the_last_number_again_gives_the_same_answers_and_changes_nothing(
    broker: Store, verb: Verb
) -> None:
    lease = await prepared(broker)
    before = await everything(broker)
    call = Call("w1", 10)
    first = await verb(broker, call, lease)
    after = await everything(broker)
    assert after != before

    for _ in range(3):
        assert await verb(broker, call, lease) == first
        assert await everything(broker) == after


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_an_older_number_raises_and_changes_nothing(broker: Store, verb: Verb) -> None:
    lease = await prepared(broker)
    await broker.configure(Call("w1", 10), [], now=NOW)
    before = await everything(broker)

    with pytest.raises(OutOfOrder) as caught:
        await verb(broker, Call("w1", 9), lease)

    assert (caught.value.incarnation, caught.value.number, caught.value.last) == ("w1", 9, 10)
    assert await everything(broker) == before


async def test_a_repeated_fetch_returns_the_same_leases(broker: Store) -> None:
    c = Client(broker)
    await backlog(c, "a", 6)
    first = await c.fetch(3, start=2)
    fetch = Fetch(queues=("default",), max=3, start=2)

    again = await broker.exchange(Call("w1", c.number), fetch=fetch, now=NOW + 5)

    assert again.leased == first
    assert ids(await c.fetch(3, now=NOW + 5)) == ["a.3", "a.4", "a.5"]
    assert await c.settle(*map(completed, first), now=NOW + 5) == ["applied"] * 3


async def test_a_repeated_fetch_that_found_nothing_finds_nothing(broker: Store) -> None:
    c = Client(broker)
    assert await c.fetch(3) == []
    await Client(broker, "w2").enqueue(submit("t"))
    fetch = Fetch(queues=("default",), max=3)

    again: ExchangeReply = await broker.exchange(Call("w1", c.number), fetch=fetch, now=NOW)

    assert again.leased == []
    assert await states(broker, "t") == [State.QUEUED]


async def test_a_repeated_number_is_not_carried_out_whatever_it_asks(broker: Store) -> None:
    first = await broker.enqueue(Call("w1", 1), [submit("t")], now=NOW)

    again = await broker.enqueue(Call("w1", 1), [submit("other")], now=NOW)

    assert again == first
    assert await states(broker, "other") == [None]


async def test_answers_stay_the_same_when_the_task_has_moved_on(broker: Store) -> None:
    first = await broker.enqueue(Call("w1", 1), [submit("t")], now=NOW)
    (lease,) = await Client(broker, "w2").fetch(1)
    await Client(broker, "w3").cancel("t")

    assert await broker.enqueue(Call("w1", 1), [submit("t")], now=NOW) == first
    assert lease.message.id == "t"


async def test_numbers_of_different_incarnations_are_independent(broker: Store) -> None:
    await broker.enqueue(Call("w1", 50), [submit("t.0")], now=NOW)

    receipts = await broker.enqueue(Call("w2", 1), [submit("t.1")], now=NOW)
    assert codes(receipts) == ["accepted"]
    receipts = await broker.enqueue(Call("w3", 50), [submit("t.2")], now=NOW)
    assert codes(receipts) == ["accepted"]
    with pytest.raises(OutOfOrder):
        await broker.enqueue(Call("w1", 49), [submit("t.3")], now=NOW)


async def test_numbers_may_leave_gaps(broker: Store) -> None:
    for number in (1, 5, 1_000_000, 2**53):
        receipts = await broker.enqueue(Call("w1", number), [submit(f"t.{number}")], now=NOW)
        assert codes(receipts) == ["accepted"]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_a_line_of_a_later_term_ends_all_that_began_at_an_earlier_one(
    broker: Store, verb: Verb
) -> None:
    """Leaders have one line after the other: the number of a call tells who leads."""
    lease = await prepared(broker)
    terms = [(await broker.lead("manager", f"m{n}", now=NOW + 10 * n)).term for n in range(1, 3)]
    older, newer = (Caller("manager", first=term) for term in terms)
    for sent in (submit("t.0"), submit("t.1")):
        receipts = await older.call(partial(broker.enqueue, submissions=[sent]))
        assert codes(receipts) == ["accepted"]

    await newer.call(lambda call: broker.configure(call, []))
    before = await everything(broker)
    with pytest.raises(OutOfOrder) as caught:
        await older.call(lambda call: verb(broker, call, lease))
    assert (caught.value.number, caught.value.last) == (terms[0] + 2, terms[1])
    assert await everything(broker) == before
    assert codes(await newer.call(lambda call: broker.enqueue(call, [submit("n")]))) == ["accepted"]


def test_a_line_begins_at_one_or_later() -> None:
    for first in (0, -1):
        with pytest.raises(InvalidInput, match="first"):
            Caller("manager", first=first)


async def test_answers_are_kept_until_an_hour_after_the_last_call(broker: Store) -> None:
    first = await broker.enqueue(Call("w1", 7), [submit("t.0")], now=NOW)
    await broker.tidy(now=NOW + HOUR - 1)

    again = await broker.enqueue(Call("w1", 7), [submit("t.1")], now=NOW + HOUR - 1)
    assert again == first
    with pytest.raises(OutOfOrder):
        await broker.enqueue(Call("w1", 6), [submit("t.1")], now=NOW + HOUR - 1)


async def test_answers_are_kept_for_an_hour_after_the_last_of_many_calls(broker: Store) -> None:
    last = NOW + 200
    for number in range(1, 7):
        call = Call("w1", number)
        await broker.enqueue(call, [submit(f"t.{number}")], now=NOW + 30 * number)
    receipts = await broker.enqueue(Call("w1", 7), [submit("t.7")], now=last)
    await broker.tidy(now=last + HOUR - 1)

    again = await broker.enqueue(Call("w1", 7), [submit("t.0")], now=last + HOUR - 1)
    assert again == receipts
    with pytest.raises(OutOfOrder):
        await broker.enqueue(Call("w1", 6), [submit("t.0")], now=last + HOUR - 1)


async def test_answers_are_forgotten_more_than_an_hour_after_the_last_call(broker: Store) -> None:
    await broker.enqueue(Call("w1", 7), [submit("t.0")], now=NOW)
    later = NOW + HOUR + MINUTE + 1
    await broker.tidy(now=later)

    receipts = await broker.enqueue(Call("w1", 1), [submit("t.1")], now=later)

    assert codes(receipts) == ["accepted"]


async def test_answers_are_kept_for_as_long_as_the_incarnation_has_leases(broker: Store) -> None:
    """A worker whose reply was lost in an outage of hours must not be lent others beside them."""
    c = Client(broker)
    await c.enqueue(*(submit(f"t.{n}") for n in range(6)))
    fetch = Fetch(queues=("default",), max=2)
    first = await broker.exchange(Call("w1", 7), fetch=fetch, now=NOW)
    later = NOW + 5 * HOUR
    await broker.beat("w1", lease=60.0, now=later)
    for _ in range(2):
        await broker.tidy(now=later)
        again = await broker.exchange(Call("w1", 7), fetch=fetch, now=later)
        assert ids(again.leased) == ids(first.leased) == ["t.0", "t.1"]
        assert again.leased[0].token == first.leased[0].token
    with pytest.raises(OutOfOrder):
        await broker.exchange(Call("w1", 6), now=later)
    await broker.exchange(Call("w1", 8), [completed(each) for each in first.leased], now=later)
    much_later = later + HOUR + MINUTE + 1
    await broker.tidy(now=much_later)
    anew = await broker.exchange(Call("w1", 1), fetch=fetch, now=much_later)
    assert ids(anew.leased) == ["t.2", "t.3"]


async def test_each_call_keeps_the_numbers_for_another_hour(broker: Store) -> None:
    c = Client(broker)
    for turn in range(4):
        await c.enqueue(submit(f"t.{turn}"), now=NOW + turn * 3000)
        await broker.tidy(now=NOW + turn * 3000)

    with pytest.raises(OutOfOrder):
        await broker.enqueue(Call("w1", 1), [submit("x")], now=NOW + 4 * 3000)


# -- what is refused as a whole ---------------------------------------------------------------


def over(count: int) -> list[Leased]:
    return [Leased(message=submit(f"t.{i}").message, token=1, attempt=1) for i in range(count + 1)]


TOO_MUCH: dict[str, Callable[[Store, Call], Awaitable[Any]]] = {
    "501 submissions": lambda broker, call: broker.enqueue(
        call, [submit(f"t.{i}") for i in range(501)], now=NOW
    ),
    "201 tenants": lambda broker, call: broker.enqueue(
        call, [submit(f"t.{i}", f"tenant.{i}") for i in range(201)], now=NOW
    ),
    "129 settlements": lambda broker, call: broker.exchange(
        call, [completed(lease) for lease in over(128)], now=NOW
    ),
    "129 started marks": lambda broker, call: broker.exchange(
        call, started=[LeaseRef(f"t.{i}", "w1", 1) for i in range(129)], now=NOW
    ),
    "a fetch that starts fewer than none": lambda broker, call: broker.exchange(
        call, fetch=Fetch(queues=("default",), max=1, start=-1), now=NOW
    ),
    "a fetch of 129": lambda broker, call: broker.exchange(
        call, fetch=Fetch(queues=("default",), max=129), now=NOW
    ),
    "more orders than a step": lambda broker, call: broker.alter(
        call, [Alter(id=f"q.{i}", action="cancel") for i in range(MAX_STEP + 1)], now=NOW
    ),
    "a weight of 0": lambda broker, call: broker.configure(
        call,
        [TenantChange(tenant="a", concurrency=0), TenantChange(tenant="a", weight=0.0)],
        now=NOW,
    ),
    "a weight over 1000": lambda broker, call: broker.configure(
        call, [TenantChange(tenant="a", weight=1000.5)], now=NOW
    ),
    "a negative limit": lambda broker, call: broker.configure(
        call,
        [QueueChange(queue="default", paused=True), QueueChange(queue="default", concurrency=-1)],
        now=NOW,
    ),
    "a burst of 0": lambda broker, call: broker.configure(
        call, [LimiterChange(name="gpu", rate=1.0, burst=0)], now=NOW
    ),
    "a rate of 0": lambda broker, call: broker.configure(
        call, [TenantChange(tenant="a", rate=0.0)], now=NOW
    ),
}


@pytest.mark.parametrize("verb", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_a_batch_over_its_limit_or_wrong_raises_and_changes_nothing(
    broker: Store, verb: Callable[[Store, Call], Awaitable[Any]]
) -> None:
    await prepared(broker)
    before = await everything(broker)
    call = Call("w1", 10)

    with pytest.raises(InvalidInput):
        await verb(broker, call)

    assert await everything(broker) == before
    assert await broker.audit(now=NOW) == []
    fetch = Fetch(queues=("default",), max=20)  # under the same number: it was not used up
    assert len((await broker.exchange(call, fetch=fetch, now=NOW)).leased) == 12


async def test_batches_at_their_limit_are_carried_out(broker: Store) -> None:
    c = Client(broker)
    tasks = [submit(f"t.{i}", f"tenant.{i % 200}") for i in range(500)]
    assert codes(await c.enqueue(*tasks)) == ["accepted"] * 500

    leases = await c.fetch(128)
    assert len(leases) == 128
    assert await c.settle(*map(completed, leases)) == ["applied"] * 128
    orders = [Alter(id=f"t.{i}", action="cancel") for i in range(MAX_STEP)]
    ended = {lease.message.id for lease in leases}
    assert [answer.code for answer in await c.alter(*orders)] == [
        "unchanged" if order.id in ended else "done" for order in orders
    ]


async def test_empty_batches_have_no_answers_and_change_nothing(broker: Store) -> None:
    c = Client(broker)
    assert await c.enqueue() == []
    assert await c.alter() == []
    assert await c.write() == []
    assert await c.fire() == []
    assert await c.plan() == []
    reply = await c.exchange()
    assert (reply.settled, reply.started, reply.leased) == ([], [], [])
    await c.configure()
    assert await events(broker) == []


async def test_the_last_number_as_another_verb_raises_and_changes_nothing(broker: Store) -> None:
    c = Client(broker)
    await c.enqueue(submit("t"))
    last = Call(c.incarnation, c.number)

    with pytest.raises(InvalidInput, match="enqueue"):
        await broker.exchange(last, fetch=Fetch(queues=("default",), max=1), now=NOW)
    with pytest.raises(InvalidInput, match="enqueue"):
        await broker.alter(last, [Alter(id="t", action="cancel")], now=NOW)
    assert [lease.message.id for lease in await c.fetch(1)] == ["t"]
