"""The stream of events: what is told, in which order, and how a reader keeps its place."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from fairlead.broker import Store
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import Alter, QueueChange, TenantChange, Write
from fairlead.model.events import EVENT_KINDS, Event, EventId
from fairlead.model.lifecycle import State
from fairlead.model.options import Unique
from tests.support.flows import make
from tests.support.store import (
    NOW,
    Client,
    cancelled,
    completed,
    dead,
    events,
    failed,
    ids,
    released,
    snoozed,
    submit,
)


def told(found: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.task) for event in found]


# -- what is told -----------------------------------------------------------------------------


async def test_each_kind_of_event_can_be_told(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", warn_depth=5))  # configured
    names = ("done", "retried", "snoozed", "released", "lost", "dead", "cancelled", "late")
    leases = {lease.message.id: lease for lease in await c.run(*map(submit, names))}
    await c.write(Write(lease=c.ref(leases["done"]), kind="progress", value=b"1/2"))
    await c.enqueue(submit("later", delay=60, after=["done"]))  # scheduled, once it is done
    await c.settle(
        completed(leases["done"]),
        failed(leases["retried"], 1),
        snoozed(leases["snoozed"], 60),
        released(leases["released"]),
        dead(leases["dead"]),
    )
    assert await c.settle(completed(leases["done"])) == ["fenced"]
    await c.cancel("cancelled")  # cancelling
    await c.settle(failed(leases["cancelled"]))
    await c.requeue("dead")
    await c.delete("done")
    await broker.promote(now=NOW + 1)  # queued
    await broker.give_back("w1", now=NOW + 1)  # recovered
    await c.configure(QueueChange(queue="small", keep_dead_bytes=0))
    (lease,) = await c.run(submit("small", queue="small"), queues=["small"])
    await c.settle(dead(lease))  # dropped
    for end in (completed, dead, cancelled):
        await make(c, f"flow-{end.__name__}", submit(f"of-{end.__name__}", queue="flow"))
        (lease,) = await c.fetch(1, ["flow"])
        await c.settle(end(lease))
    await c.enqueue(submit("moved", delay=60.0))
    await c.alter(Alter(id="moved", action="prioritize", level=0))  # prioritized
    await broker.beat("w5", worker=WorkerRecord(incarnation="w5"), now=NOW + 1)
    for order in ("pause", "resume"):
        await broker.order_worker(c.call(), "w5", order, now=NOW + 1)
    await broker.give_back("w5", now=NOW + 1)

    assert {event.kind for event in await events(broker)} == set(EVENT_KINDS)


async def test_the_life_of_a_task_is_told_in_order(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", "acme", "mail", delay=5))
    (first,) = await c.fetch(1, ["mail"], now=NOW + 5)
    await c.settle(failed(first, 10), now=NOW + 6)
    (second,) = await c.fetch(1, ["mail"], now=NOW + 16)
    await c.settle(completed(second), now=NOW + 17)

    found = await events(broker)
    assert [(e.kind, e.at, e.state, e.token) for e in found] == [
        ("enqueued", NOW, "scheduled", 0),
        ("queued", NOW + 5, "queued", 0),
        ("started", NOW + 5, "running", first.token),
        ("retrying", NOW + 6, "retrying", first.token),
        ("queued", NOW + 16, "queued", 0),
        ("started", NOW + 16, "running", second.token),
        ("completed", NOW + 17, "completed", second.token),
    ]
    assert {(e.task, e.queue, e.tenant) for e in found} == {("t1", "mail", "acme")}
    assert [e.attempt for e in found if e.token] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("delay", "after", "state"),
    [(0.0, [], "queued"), (5.0, [], "scheduled"), (0.0, ["parent"], "deferred")],
)
async def test_enqueued_says_where_the_task_went(
    broker: Store, c: Client, delay: float, after: list[str], state: str
) -> None:
    await c.enqueue(submit("parent"))
    await c.enqueue(submit("t1", delay=delay, after=after))
    (event,) = [e for e in await events(broker, "enqueued") if e.task == "t1"]
    assert event.state == state


async def test_started_is_told_when_an_attempt_begins_and_not_when_it_is_held(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    leases = await c.fetch(2, start=1)
    assert told(await events(broker, "started")) == [("started", "t1")]

    await c.exchange(started=[c.ref(leases[1])], now=NOW + 3)
    found = await events(broker, "started")
    assert told(found) == [("started", "t1"), ("started", "t2")]
    assert (found[1].at, found[1].token) == (NOW + 3, leases[1].token)


async def test_an_outcome_of_a_held_task_says_that_it_had_started(broker: Store, c: Client) -> None:
    await c.enqueue(*(submit(f"t{n}") for n in range(6)))
    one, two, three, four, five, six = await c.fetch(6, start=0)
    await c.settle(completed(one), failed(two), released(three), completed(four, result=b"r"))
    await c.settle(cancelled(five), snoozed(six, 5.0))

    found = told(await events(broker))
    for id, kinds in {
        "t0": ["started", "completed"],
        "t1": ["started", "retrying"],
        "t2": ["released"],
        "t3": ["started", "completed"],
        "t4": ["started", "cancelled"],
        "t5": ["started", "snoozed"],
    }.items():
        assert [kind for kind, task in found if task == id][1:] == kinds


async def test_started_says_which_incarnation_runs_the_task(broker: Store, c: Client) -> None:
    async def runs(who: Client) -> list[str]:
        found = await events(broker, "started")
        return sorted(e.task for e in found if e.reason == who.incarnation)

    other = Client(broker, "w2")
    special = submit(
        "special", limiters=("gpu",), deadline=60.0, unique=Unique(key="k", until="started")
    )
    await c.enqueue(*(submit(f"{n:032x}", "ab"[n % 2]) for n in range(7)), special)
    mine = await c.fetch(4)
    assert await runs(c) == sorted(ids(mine))
    held = await other.fetch(4, start=0)
    assert await runs(other) == []

    await other.exchange(started=[other.ref(held[0])])
    await other.settle(failed(held[1], 9), completed(held[2], result=b"r"), completed(held[3]))
    assert await runs(other) == sorted(ids(held))
    assert await runs(c) == sorted(ids(mine))


async def test_recovered_says_whether_the_task_had_started(broker: Store, c: Client) -> None:
    await c.enqueue(submit("ran"), submit("held"))
    await c.fetch(2, start=1)
    await broker.give_back("w1", now=NOW)
    reasons = {event.task: event.reason for event in await events(broker, "recovered")}
    assert reasons["ran"] == "crash"
    assert reasons["held"] != "crash"


async def test_dead_says_why(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.enqueue(submit("t2", deadline=5), submit("child-of", after=["t1"]))
    await c.settle(dead(lease, "rejected"))
    await broker.promote(now=NOW + 6)

    reasons = {event.task: event.reason for event in await events(broker, "dead")}
    assert (reasons["t1"], reasons["t2"]) == ("rejected", "expired")
    assert reasons["child-of"].startswith("dependency_failed")


async def test_events_of_queues_and_tenants_name_no_task(broker: Store, c: Client) -> None:
    await c.configure(
        QueueChange(queue="mail", paused=True), TenantChange(tenant="acme", weight=2.0)
    )
    (one, two) = await events(broker, "configured")
    assert (one.task, one.queue, one.tenant) == ("", "mail", "")
    assert (two.task, two.queue, two.tenant) == ("", "", "acme")


async def test_what_changes_nothing_is_not_told(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    before = await events(broker)

    await c.enqueue(submit("t1"), submit("t1", body=b"other"), submit("t2", after=["ghost"]))
    await c.requeue("t1")
    await c.delete("t1")
    await c.cancel("ghost")
    await c.fetch(1, ["empty"])
    await c.purge("empty")
    await broker.promote(now=NOW)
    await broker.tidy(now=NOW)
    await broker.watch("me", ["t1"], now=NOW)
    assert await events(broker) == before


# -- ids --------------------------------------------------------------------------------------


async def test_ids_strictly_increase(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"), submit("t3"))
    leases = await c.fetch(3)
    await c.settle(*map(completed, leases))

    found = [event.id for event in await events(broker)]
    assert len(found) == 9
    assert all(one < two for one, two in pairwise(found))
    assert {id.generation for id in found} == {(await broker.hello()).generation}
    assert {id.shard for id in found} == {(await broker.hello()).shard}


async def test_the_events_of_one_call_share_an_entry_and_count_up_in_it(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"), submit("t2"), submit("t3"))
    await c.enqueue(submit("t4"))
    (one, two, three, four) = [event.id for event in await events(broker)]
    assert one.entry == two.entry == three.entry < four.entry
    assert one.index < two.index < three.index


async def test_ids_are_never_reused(terse_broker: Store) -> None:
    c = Client(terse_broker)
    seen: list[EventId] = []
    for turn in range(50):
        await c.enqueue(*(submit(f"t{turn}.{i}") for i in range(10)))
        page = await terse_broker.events(after=seen[-1] if seen else None)
        seen += [event.id for event in page.events]
    assert seen == sorted(set(seen))


# -- reading on -------------------------------------------------------------------------------


async def test_without_after_events_are_read_from_the_oldest_kept(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    page = await broker.events()
    assert told(page.events) == [("enqueued", "t1"), ("enqueued", "t2")]
    assert (page.gap, page.last, page.now) == (False, page.events[-1].id, NOW)
    assert await broker.events() == page


async def test_events_behind_after_are_read(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"), submit("t3"))
    await c.enqueue(submit("t4"))
    all_of_them = (await broker.events()).events

    for place, event in enumerate(all_of_them):
        page = await broker.events(after=event.id)
        assert (page.events, page.gap) == (all_of_them[place + 1 :], False)
        assert page.last == all_of_them[-1].id


async def test_behind_the_last_event_there_is_nothing_and_the_place_stays(
    broker: Store, c: Client
) -> None:
    assert (await broker.events()).events == []
    await c.enqueue(submit("t1"))
    last = (await broker.events()).last

    page = await broker.events(after=last)
    assert (page.events, page.gap, page.last) == ([], False, last)


async def test_at_most_limit_events_are_read_and_reading_goes_on_behind_them(
    broker: Store, c: Client
) -> None:
    await c.enqueue(*(submit(f"t{i}") for i in range(7)))  # one entry: a page may end inside
    read: list[Event] = []
    sizes: list[int] = []
    page = await broker.events(limit=3)
    while page.events:
        read += page.events
        sizes.append(len(page.events))
        assert page.last == page.events[-1].id
        page = await broker.events(after=page.last, limit=3)
    assert sizes == [3, 3, 1]
    assert [event.task for event in read] == [f"t{i}" for i in range(7)]


async def test_500_events_are_read_unless_told_otherwise(broker: Store, c: Client) -> None:
    await c.enqueue(*(submit(f"t{i}") for i in range(500)))
    await c.enqueue(submit("t500"))
    page = await broker.events()
    assert len(page.events) == 500
    assert told((await broker.events(after=page.last)).events) == [("enqueued", "t500")]


async def test_reading_waits_for_the_first_event(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    last = (await broker.events()).last
    waiting = asyncio.ensure_future(broker.events(after=last, timeout=60.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()

    await c.enqueue(submit("t2"))
    page = await asyncio.wait_for(waiting, 5.0)
    assert told(page.events) == [("enqueued", "t2")]


async def test_reading_returns_nothing_when_its_time_is_over(broker: Store) -> None:
    page = await asyncio.wait_for(broker.events(timeout=0.01), 5.0)
    assert (page.events, page.gap) == ([], False)


async def test_the_place_of_the_newest_event_can_be_asked_for(broker: Store, c: Client) -> None:
    empty = await broker.events(latest=True)
    assert (empty.events, empty.gap) == ([], False)
    await c.enqueue(*(submit(f"t{i}") for i in range(7)))
    page = await broker.events(latest=True)
    assert (page.events, page.gap, page.last) == ([], False, (await broker.events()).last)
    assert (await broker.events(after=page.last)).events == []

    await c.enqueue(submit("t7"))
    assert told((await broker.events(after=page.last)).events) == [("enqueued", "t7")]
    assert len((await broker.events(after=empty.last)).events) == 8


async def test_the_newest_place_is_known_when_all_before_it_was_dropped(
    terse_broker: Store,
) -> None:
    c = Client(terse_broker)
    for turn in range(50):
        await c.enqueue(*(submit(f"t{turn}.{i}") for i in range(10)))
    page = await terse_broker.events(latest=True)
    await c.enqueue(submit("new"))
    found = await terse_broker.events(after=page.last)
    assert (told(found.events), found.gap) == ([("enqueued", "new")], False)


# -- named readers ----------------------------------------------------------------------------


async def test_a_named_reader_reads_behind_its_place(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    first = await broker.events(reader="r", limit=1)
    assert told(first.events) == [("enqueued", "t1")]

    second = await broker.events(after=first.last, reader="r", limit=1)
    assert told(second.events) == [("enqueued", "t2")]
    assert await broker.events(reader="r", limit=1) == second  # t1 is behind it, t2 not yet
    assert (await broker.events(after=second.last, reader="r")).events == []
    assert (await broker.events(reader="r")).events == []

    await c.enqueue(submit("t3"))
    assert told((await broker.events(reader="r")).events) == [("enqueued", "t3")]


async def test_only_after_moves_a_named_readers_place(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    first = await broker.events(reader="r")
    assert len(first.events) == 2
    assert await broker.events(reader="r") == first


async def test_each_named_reader_has_its_own_place(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    page = await broker.events(reader="one")
    await broker.events(after=page.last, reader="one")

    assert (await broker.events(reader="one")).events == []
    assert (await broker.events(reader="two")).events == page.events
    assert (await broker.events()).events == page.events


async def test_after_without_a_name_moves_nobodys_place(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    page = await broker.events(reader="r")
    await broker.events(after=page.last)
    assert (await broker.events(reader="r")).events == page.events


# -- gaps -------------------------------------------------------------------------------------


async def flood(c: Client, prefix: str, count: int = 200) -> None:
    """More events than the 4 kB of the terse broker can keep."""
    for i in range(0, count, 10):
        await c.enqueue(*(submit(f"{prefix}{i + k:03}") for k in range(10)))


async def test_events_are_kept_up_to_a_number_of_bytes(terse_broker: Store) -> None:
    await flood(Client(terse_broker), "t", 500)
    found = await events(terse_broker)
    assert 0 < len(found) < 250
    kept = [event.task for event in found]
    assert kept == [f"t{i:03}" for i in range(500)][-len(kept) :]


async def test_gap_tells_a_reader_that_some_it_had_not_seen_were_dropped(
    terse_broker: Store,
) -> None:
    c = Client(terse_broker)
    await c.enqueue(submit("first"))
    place = (await terse_broker.events()).last
    assert place is not None
    await terse_broker.events(after=place, reader="r")
    await flood(c, "t")

    for page in (await terse_broker.events(after=place), await terse_broker.events(reader="r")):
        assert page.gap is True
        assert page.events == await events(terse_broker)


async def test_a_reader_reads_on_behind_a_gap_without_another(terse_broker: Store) -> None:
    c = Client(terse_broker)
    await c.enqueue(submit("first"))
    place = (await terse_broker.events()).last
    await flood(c, "t")

    page = await terse_broker.events(after=place, reader="r", limit=2)
    assert (page.gap, len(page.events)) == (True, 2)
    page = await terse_broker.events(after=page.last, reader="r")
    assert (page.gap, page.events[-1].task) == (False, "t199")
    page = await terse_broker.events(after=page.last, reader="r")
    assert (page.gap, page.events) == (False, [])


async def test_a_reader_that_has_seen_all_that_was_dropped_has_no_gap(
    terse_broker: Store,
) -> None:
    c = Client(terse_broker)
    for turn in range(20):
        await flood(c, f"t{turn}.", 10)
        page = await terse_broker.events(reader="r")
        assert (page.gap, len(page.events)) == (False, 10)
        await terse_broker.events(after=page.last, reader="r")


async def test_gap_tells_a_reader_that_the_generation_is_another(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    elsewhere = EventId("another", "0", 1, 0)

    page = await broker.events(after=elsewhere)
    assert page.gap is True
    assert told(page.events) == [("enqueued", "t1"), ("enqueued", "t2")]
    assert (await broker.events(after=page.last)).gap is False


async def test_a_reader_whose_place_is_of_another_generation_has_a_gap(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"))
    await broker.events(after=EventId("another", "0", 999_999, 0), reader="r")
    page = await broker.events(reader="r")
    assert (page.gap, told(page.events)) == (True, [("enqueued", "t1")])


async def test_an_event_of_a_state_names_that_state(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(released(lease))
    await c.cancel("t1")
    found = [(event.kind, event.state) for event in await events(broker)]
    assert found == [
        ("enqueued", State.QUEUED),
        ("started", State.RUNNING),
        ("released", State.QUEUED),
        ("cancelled", State.CANCELLED),
    ]
