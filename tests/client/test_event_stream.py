"""``app.events()``: what is told, where it begins, and what happens when the broker fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead import EventInfo, EventStream, Fairlead, Flow, Reject
from fairlead.broker import connect
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import EventPage
from fairlead.client.event_info import event_filter, event_text, parse_event_text
from fairlead.model.errors import InvalidInput, InvalidOption, Refused, Unreachable
from fairlead.model.event_places import joined
from fairlead.model.events import Event, EventId
from tests.client.stores import Counting
from tests.support.servers import server


async def take(stream: EventStream, count: int) -> list[EventInfo]:
    async with asyncio.timeout(10):
        return [await anext(stream) for _ in range(count)]


def told(events: list[EventInfo]) -> list[tuple[str, str]]:
    return [(event.type, event.task) for event in events]


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    async with Fairlead("memory://") as app:

        @app.task(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="fail", max_retries=0)
        async def fail() -> None:
            raise ValueError("it did not work")

        @app.task(name="refuse", queue="mail")
        async def refuse() -> None:
            raise Reject("never")

        yield app


# -- what is told ------------------------------------------------------------------------------


async def test_the_life_of_a_task_is_told_with_its_name_and_how_long_it_ran(app: Fairlead) -> None:
    async with app.events("task.*") as stream:
        handle = await app.registered("add").using(tenant="acme").aenqueue(2, 3)
        await app.drain()
        events = await take(stream, 3)
    assert [event.type for event in events] == ["task.submitted", "task.started", "task.completed"]
    assert {event.task for event in events} == {"add"}
    done = events[-1]
    assert (done.task_id, done.queue, done.tenant, done.attempt, done.state, done.name) == (
        handle.id, "default", "acme", 1, "completed", "completed",
    )  # fmt: skip
    assert done.duration_ms is not None
    assert 0 <= done.duration_ms < 10_000
    assert events[0].duration_ms is None
    assert [bool(event.worker) for event in events] == [False, True, False]
    assert {event.reason for event in events} == {""}
    assert [event.at for event in events] == sorted(event.at for event in events)


async def test_a_failed_attempt_is_told_before_what_follows_from_it(app: Fairlead) -> None:
    async with app.events(["failed", "retrying", "dead"]) as stream:
        await app.registered("fail").aenqueue()
        await app.registered("refuse").aenqueue()
        await app.drain()
        events = await take(stream, 4)
    failed, dead = ("task.failed", "fail"), ("task.dead", "fail")
    also_failed, also_dead = ("task.failed", "refuse"), ("task.dead", "refuse")
    some = told(events)
    assert sorted([some[:2], some[2:]]) == [[failed, dead], [also_failed, also_dead]]
    assert len({event.id for event in events}) == 4
    assert all(event.duration_ms is not None for event in events)


async def test_filters_leave_out_what_is_not_wanted(app: Fairlead) -> None:
    async with (
        app.events("task.*", tenant="acme") as by_tenant,
        app.events(queue="mail") as by_queue,
        app.events(name="add") as by_name,
    ):
        mine = await app.registered("add").using(tenant="acme").aenqueue(1, 1)
        async with app.events(task=mine.id) as by_task:
            await app.registered("add").using(tenant="other").aenqueue(1, 1)
            await app.registered("refuse").aenqueue()
            await app.drain()
            assert {event.tenant for event in await take(by_tenant, 3)} == {"acme"}
            assert {event.task for event in await take(by_queue, 4)} == {"refuse"}
            assert {event.task for event in await take(by_name, 6)} == {"add"}
            assert {event.task_id for event in await take(by_task, 2)} == {mine.id}


async def test_events_of_queues_and_flows_are_told_as_such(app: Fairlead) -> None:
    async with app.events(["queue.configured", "flow.*"]) as stream:
        await app.aconfigure_queue("mail", paused=True)
        handle = await app.aenqueue_flow(Flow([app.registered("add").call(1, 2)]))
        await app.drain()
        events = await take(stream, 3)
    assert [(e.type, e.queue, e.flow, e.task_id) for e in events] == [
        ("queue.configured", "mail", "", ""),
        ("flow.committed", "", handle.id, ""),
        ("flow.completed", "", handle.id, ""),
    ]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"types": "task.exploded"}, "types"),
        ({"types": ["nothing.*"]}, "types"),
        ({"types": [1]}, "types"),
        ({"reader": "r", "after": "now"}, "after"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(app: Fairlead, options: Any, option: str) -> None:
    with pytest.raises(InvalidOption, match=option):
        app.events(**options)


@pytest.mark.parametrize(
    "after", ["", "nonsense", "a-b-c-d", 7, "g-0-1-1.failed.x", "-*-0-0", "a\nb-0-1-1"]
)
def test_an_id_that_no_event_had_is_refused(app: Fairlead, after: Any) -> None:
    with pytest.raises(InvalidInput, match="event id"):
        app.events(after=after)


# -- where it begins ---------------------------------------------------------------------------


async def test_reading_goes_on_behind_every_id_without_a_gap_or_a_repetition(app: Fairlead) -> None:
    async with app.events("task.*") as stream:
        await app.registered("fail").aenqueue()
        await app.registered("add").aenqueue(1, 2)
        await app.drain()
        events = await take(stream, 7)
    for place, event in enumerate(events[:-1]):
        again = await take(app.events("task.*", after=event.id), len(events) - place - 1)
        assert [each.id for each in again] == [each.id for each in events[place + 1 :]]
    assert [each.id for each in await take(app.events("task.*", after="oldest"), 7)] == [
        each.id for each in events
    ]


async def test_it_begins_now_unless_told_otherwise(app: Fairlead) -> None:
    await app.registered("add").aenqueue(1, 2)
    async with app.events() as stream:
        later = await app.registered("add").aenqueue(3, 4)
        (event,) = await take(stream, 1)
    assert event.task_id == later.id


async def test_a_reader_confirms_an_event_by_asking_for_the_next(app: Fairlead) -> None:
    for n in range(3):
        await app.registered("add").aenqueue(n, n)
    first = app.events(reader="r")
    events = await take(first, 2)
    del first  # its process died: the page was not confirmed
    assert (await take(app.events(reader="r"), 1))[0].id == events[0].id

    async with app.events(reader="r") as again:
        assert [event.id for event in await take(again, 2)] == [event.id for event in events]
    third = (await take(app.events(reader="r"), 1))[0]
    assert third.id not in {event.id for event in events}

    async def fail() -> None:
        async with app.events(reader="r") as failing:
            await take(failing, 1)
            raise KeyError  # so it was not finished

    with pytest.raises(KeyError):
        await fail()
    assert (await take(app.events(reader="r"), 1))[0].id == third.id


async def test_a_long_page_is_confirmed_on_the_way(app: Fairlead, monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.client.event_stream._CONFIRM", 0.0)
    for n in range(3):
        await app.registered("add").aenqueue(n, n)
    events = await take(app.events(reader="r"), 3)  # the third was asked for: two are finished
    assert (await take(app.events(reader="r"), 1))[0].id == events[2].id


# -- trouble -----------------------------------------------------------------------------------


def small() -> Fairlead:
    """An app whose broker keeps few events."""
    app = Fairlead(store=MemoryBroker(event_bytes=2_000))

    @app.task(name="work")
    async def work() -> None: ...

    return app


async def test_a_gap_is_told_and_reading_goes_on_with_the_oldest_event() -> None:
    async with small() as app:
        async with app.events() as stream:
            first = await app.registered("work").aenqueue()
            (begin,) = await take(stream, 1)
            assert begin.task_id == first.id
            handles = [await app.registered("work").aenqueue() for _ in range(50)]
            gap, *events = await take(stream, 4)
        assert gap.type == "stream.gap"
        assert gap.id == begin.id
        assert events[0].task_id in {handle.id for handle in handles[1:]}


async def test_a_gap_is_told_also_to_those_who_filter() -> None:
    async with small() as app:
        async with app.events("dead") as stream:
            for _ in range(50):
                await app.registered("work").aenqueue()
            (gap,) = await take(stream, 1)
        assert gap.type == "stream.gap"


async def test_an_id_of_an_emptied_broker_is_a_gap(app: Fairlead) -> None:
    await app.registered("add").aenqueue(1, 2)
    (event,) = await take(app.events(after="oldest"), 1)
    async with small() as other:
        handle = await other.registered("work").aenqueue()
        gap, found = await take(other.events(after=event.id), 2)
        assert (gap.type, found.task_id) == ("stream.gap", handle.id)


class Promoted(Counting):
    """A store whose server was replaced by one that lacks the last event."""

    def __init__(self) -> None:
        super().__init__(connect("memory://"))
        self.promoted = False

    async def events(self, *, after: EventId | None = None, **options: Any) -> Any:
        if self.promoted and after is not None:
            self.promoted = False
            after = EventId(after.generation, after.shard, after.entry + 1, 0)  # not there: a gap
        return await self.inner.events(after=after, **options)


async def test_a_promoted_server_repeats_nothing_of_what_was_read() -> None:
    store = Promoted()
    async with Fairlead(store=store.store) as app:

        @app.task(name="work")
        async def work() -> None: ...

        async with app.events() as stream:
            for _ in range(3):
                await work.aenqueue()
            await take(stream, 3)
            store.promoted = True
            last = await work.aenqueue()
            gap, event = await take(stream, 2)
        assert (gap.type, event.task_id) == ("stream.gap", last.id)


class Away(Counting):
    """A store that fails for a while."""

    async def events(self, **options: Any) -> Any:
        self._lose("events")
        return await self.inner.events(**options)


async def test_it_waits_for_a_broker_that_is_away_and_goes_on(caplog: Any) -> None:
    store = Away()
    async with Fairlead(store=store.store) as app:

        @app.task(name="work")
        async def work() -> None: ...

        async with app.events() as stream:
            store.lost["events"] = [Unreachable("away"), Unreachable("away")]
            handle = await work.aenqueue()
            (event,) = await take(stream, 1)
        assert event.task_id == handle.id
    assert [record.message for record in caplog.records] == ["broker failed: away"]  # once


async def test_it_gives_up_when_its_patience_is_over() -> None:
    store = Away()
    async with Fairlead(store=store.store) as app, app.events(patience=0.05) as stream:
        store.lost["events"] = [Unreachable("away")] * 1_000
        with pytest.raises(Unreachable):
            await take(stream, 1)


async def test_names_are_left_out_where_they_cannot_be_found() -> None:
    store = Away()
    async with Fairlead(store=store.store) as app:

        @app.task(name="work")
        async def work() -> None: ...

        async with app.events() as stream:
            store.lost["find"] = [Unreachable("away")]
            handle = await work.aenqueue()
            (event,) = await take(stream, 1)
            assert (event.task_id, event.task, event.duration_ms) == (handle.id, "", None)


async def test_events_of_tasks_by_name_wait_until_names_can_be_found() -> None:
    store = Away()
    async with Fairlead(store=store.store) as app:

        @app.task(name="work")
        async def work() -> None: ...

        async with app.events("submitted", name="work") as stream:
            store.lost["find"] = [Unreachable("away")] * 3
            handle = await work.aenqueue()
            (event,) = await take(stream, 1)
            assert (event.task_id, event.task) == (handle.id, "work")


async def test_the_end_of_a_task_that_is_not_kept_is_told_by_name() -> None:
    """Its name is looked up while it lives; once for each task, and for nobody who wants others."""
    store = Away()
    async with Fairlead(store=store.store) as app:

        @app.task(name="work")
        async def work() -> None: ...

        @app.task(name="other")
        async def other() -> None: ...

        looks, looked = 0, asyncio.Event()

        async def counted() -> None:
            nonlocal looks
            looks += 1
            looked.set()

        await app.aconfigure_queue("default", keep_completed=0)
        store.before_find = counted
        async with app.events("completed", name="work") as stream, app.events("dead", name="work"):
            handles = [await task.aenqueue() for task in (work, other)]
            waiting = asyncio.ensure_future(take(stream, 1))
            async with asyncio.timeout(10):
                await looked.wait()
            await app.drain()
            (event,) = await waiting
        assert (event.type, event.task_id, event.task) == ("task.completed", handles[0].id, "work")
        assert looks <= 2  # one for each page of the stream at most


async def test_whoever_stops_to_wait_for_an_event_gets_it_the_next_time() -> None:
    store, asked, go_on = Away(), asyncio.Event(), asyncio.Event()

    async def held_up() -> None:
        asked.set()
        await go_on.wait()

    async with Fairlead(store=store.store) as app:

        @app.task(name="work")
        async def work() -> None: ...

        async with app.events("submitted") as stream:
            store.before_find = held_up
            handle = await work.aenqueue()
            waiting = asyncio.ensure_future(anext(stream))
            await asked.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
            go_on.set()
            (event,) = await take(stream, 1)
            assert (event.task_id, event.task) == (handle.id, "work")


async def test_the_duration_of_an_attempt_whose_start_nobody_heard_is_left_out(
    app: Fairlead,
) -> None:
    async with app.events("started") as stream:
        await app.registered("add").aenqueue(1, 2)
        await app.drain()
        (started,) = await take(stream, 1)
    (done,) = await take(app.events("task.*", after=started.id), 1)
    assert (done.type, done.duration_ms) == ("task.completed", None)


async def test_a_stream_ends_with_its_app() -> None:
    app = Fairlead("memory://")
    stream = app.events()
    await stream.start()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await app.aclose()
    with pytest.raises(Refused, match="closed"):
        await asyncio.wait_for(waiting, 5)


async def test_a_chosen_id_that_comes_again_has_the_name_of_its_new_task(app: Fairlead) -> None:
    async with app.events(["submitted", "deleted"]) as stream:
        first = await app.registered("add").using(id="one").aenqueue(1, 2)
        await take(stream, 1)
        await app.drain()
        await first.adelete()
        await app.registered("refuse").using(id="one").aenqueue()
        _, event = await take(stream, 2)
    assert event.task == "refuse"


# -- several shards ----------------------------------------------------------------------------


async def test_ids_stand_for_places_in_all_shards() -> None:
    with server() as running:
        await _over_shards(Fairlead(f"{running.url}?shards=mail=m"))


async def _over_shards(app: Fairlead) -> None:
    async with app:

        @app.task(name="here")
        async def here() -> None: ...

        @app.task(name="there", queue="mail", max_retries=0)
        async def there() -> None:
            raise ValueError

        async with app.events("task.*") as stream:
            for _ in range(3):
                await here.aenqueue()
                await there.aenqueue()
            await app.drain()
            events = await take(stream, 6 * 3 + 3)
        assert {event.task for event in events} == {"here", "there"}
        for place in (0, 3, 10, 15, 19):
            again = await take(
                app.events("task.*", after=events[place].id), len(events) - place - 1
            )
            assert sorted(each.id.count("+") for each in again)[0] == 1
            assert [(e.type, e.task_id) for e in again] == [
                (e.type, e.task_id) for e in events[place + 1 :]
            ]


class Late(Counting):
    """A store of two shards, one of which is away when its newest place is asked for."""

    async def events(self, *, latest: bool = False, **options: Any) -> Any:
        if latest:
            return EventPage(now=100.0, last=joined({"0": EventId("g", "0", 5, 0)}))
        old, older, new = (
            Event(id=EventId("h", "m", number, 0), at=at, kind="warned", queue="mail")
            for number, at in ((1, 90.0), (2, 91.0), (3, 101.0))
        )
        last = joined({"0": EventId("g", "0", 5, 0), "m": new.id})
        return EventPage(now=102.0, events=[old, older, new], last=last)


async def test_of_a_shard_that_was_away_only_what_happened_since_is_told() -> None:
    async with Fairlead(store=Late().store) as app, app.events() as stream:
        (event,) = await take(stream, 1)
    assert event.at == 101.0


@pytest.mark.parametrize(
    "place",
    [
        EventId("g", "0", 12, 3),
        EventId("g", "0", 0, -1),
        joined({"0": EventId("g", "0", 5, -1), "m": EventId("h", "m", 9, 2)}),
    ],
)
def test_the_text_of_a_place_can_be_read_again(place: EventId) -> None:
    assert parse_event_text(event_text(place, "task.dead", "0")) == (place, None)
    before, seen = parse_event_text(event_text(place, "task.failed", "0"))
    assert seen is not None
    assert str(before) != str(place)


def test_short_names_of_types_are_those_of_tasks() -> None:
    assert event_filter(["dead", "failed"]) == event_filter(["task.failed", "task.dead"])
