"""The hub: one reader for all clients, bounded queues, and resuming without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fairlead import Fairlead
from fairlead.api.live import subscription as subscriptions
from fairlead.api.live.hub import Hub
from fairlead.api.live.selection import LIVE_TYPES
from fairlead.api.live.subscription import Ended, Subscription
from fairlead.broker import connect
from fairlead.client.event_info import EventFilter, event_filter
from fairlead.model.errors import Unreachable
from tests.client.stores import Counting

ALL = frozenset((EventFilter(),))
TASKS = frozenset((event_filter("task.*"),))


class Listening(Counting):
    """Counts the reads of the stream."""

    def __init__(self) -> None:
        super().__init__(connect("memory://"))
        self.reads = 0
        self.reading = 0

    async def events(self, **options: Any) -> Any:
        self._lose("events")
        self.reads += 1
        self.reading += 1
        try:
            return await self.inner.events(**options)
        finally:
            self.reading -= 1


class Site:
    """An app, and a hub for its events."""

    def __init__(self, **options: Any) -> None:
        self.store = Listening()
        self.app = Fairlead(store=self.store.store)
        self.hub = Hub(self.app._clients.current, **{"linger": 0.0, **options})

        @self.app.task(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        @self.app.task(name="fail", max_retries=0, queue="mail")
        async def fail() -> None:
            raise ValueError("it did not work")

        self.add, self.fail = add, fail

    async def join(
        self, filters: frozenset[EventFilter] = TASKS, after: str | None = None
    ) -> Subscription:
        subscription = await self.hub.join(filters, after)
        feeding = asyncio.ensure_future(self.hub.feed(subscription, after))
        first = await taken(subscription)
        assert [event["type"] for event in first] == ["snapshot"]
        if after is None:
            await feeding
        return subscription


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.hub.close()
    await site.app.aclose()


async def taken(subscription: Subscription, count: int = 1) -> list[Any]:
    """The next events; more than were asked for if they come together."""
    found: list[Any] = []
    while len(found) < count:
        events = await subscription.take(5.0)
        assert events is not None
        found += [msgspec.json.decode(item.json) for item in events.items]
        subscription.sent(events.last_id)
    return found


def types(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


# -- one reader --------------------------------------------------------------------------------


async def test_an_event_has_the_documented_shape(site: Site) -> None:
    subscription = await site.join()
    handle = await site.add.using(tenant="acme").aenqueue(1, 2)
    await site.app.drain()
    submitted, started, completed = await taken(subscription, 3)
    assert submitted == {
        "id": submitted["id"],
        "type": "task.submitted",
        "timestamp": submitted["timestamp"],
        "data": {
            "task_id": handle.id,
            "type": "add",
            "queue": "default",
            "tenant": "acme",
            "state": "queued",
        },
    }
    assert submitted["timestamp"].endswith("Z")
    assert started["data"].pop("worker")
    assert started["data"] == {**submitted["data"], "state": "running", "attempt": 1}
    assert completed["data"]["attempt"] == 1
    assert completed["data"]["duration_ms"] >= 0


async def test_the_stream_is_read_once_however_many_clients_there_are(site: Site) -> None:
    many = [await site.join() for _ in range(50)]
    assert site.store.reading == 1
    await site.add.aenqueue(1, 2)
    found = [await taken(each) for each in many]
    assert all(each == found[0] for each in found)
    assert site.store.reads < 10


async def test_those_who_want_the_same_share_what_was_encoded(site: Site) -> None:
    one, other = await site.join(), await site.join()
    third = await site.join(frozenset((event_filter("task.*", queue="default"),)))
    await site.add.aenqueue(1, 2)
    batches = [await each.take(5.0) for each in (one, other, third)]
    assert batches[0] is batches[1]
    assert batches[0] is not None
    assert batches[2] is not None
    assert batches[0].items[0] is batches[2].items[0]  # another filter, the same event


async def test_the_stream_is_read_only_while_there_are_clients(site: Site) -> None:
    reading = [site.hub.is_reading]
    subscription = await site.join()
    reading.append(site.hub.is_reading)
    site.hub.leave(subscription)
    await asyncio.sleep(0.01)
    assert [*reading, site.hub.is_reading] == [False, True, False]
    assert site.store.reading == 0


async def test_a_client_that_comes_back_soon_finds_the_reader_at_work() -> None:
    site = Site(linger=60.0)
    subscription = await site.join()
    site.hub.leave(subscription)
    assert site.hub.is_reading
    await site.add.aenqueue(1, 2)
    again = await site.join(TASKS, subscription.resume)
    assert types(await taken(again)) == ["task.submitted"]
    await site.hub.close()


# -- filters -----------------------------------------------------------------------------------


async def test_each_client_gets_what_it_asked_for(site: Site) -> None:
    def some(types: Any = "task.*", **asked: Any) -> frozenset[EventFilter]:
        return frozenset((event_filter(types, known=LIVE_TYPES, **asked),))

    mine = await site.add.using(tenant="acme").aenqueue(0, 0)
    by = {
        "dead": await site.join(some("dead")),
        "mail": await site.join(some(queue="mail")),
        "acme": await site.join(some(tenant="acme")),
        "task": await site.join(some(task=mine.id)),
        "name": await site.join(some(name="fail")),
        "both": await site.join(some("dead") | some("completed")),
    }
    await site.fail.using(tenant="other").aenqueue()
    await site.app.drain()
    found = {name: await taken(each) for name, each in by.items()}
    more = {name: [*found[name], *(await rest(by[name]))] for name in by}
    assert set(types(more["dead"])) == {"task.dead"}
    assert {event["data"]["queue"] for event in more["mail"]} == {"mail"}
    assert {event["data"]["tenant"] for event in more["acme"]} == {"acme"}
    assert {event["data"]["task_id"] for event in more["task"]} == {mine.id}
    assert {event["data"]["type"] for event in more["name"]} == {"fail"}
    assert sorted(types(more["both"])) == ["task.completed", "task.dead"]


async def rest(subscription: Subscription) -> list[Any]:
    found: list[Any] = []
    while (events := await subscription.take(0.01)) is not None:
        found += [msgspec.json.decode(item.json) for item in events.items]
    return found


async def test_a_client_may_want_something_else_later(site: Site) -> None:
    subscription = await site.join()
    site.hub.change(subscription, frozenset((event_filter(queue="mail"),)))
    await site.add.aenqueue(1, 2)
    await site.fail.aenqueue()
    (event,) = await taken(subscription)
    assert event["data"]["queue"] == "mail"


# -- slow clients ------------------------------------------------------------------------------


async def test_a_slow_client_is_dropped_with_the_id_to_resume_from(
    site: Site, monkeypatch: Any
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_EVENTS", 10)
    slow, quick = await site.join(), await site.join()
    await site.add.aenqueue(0, 0)
    (last,) = await taken(slow)
    await taken(quick)
    handles = []
    for n in range(15):
        handles.append(await site.add.aenqueue(n, n))
        await taken(quick)
    assert slow.ended == "slow"
    assert slow.size == 0
    with pytest.raises(Ended) as caught:
        await slow.take(1.0)
    assert (caught.value.reason, caught.value.resume) == ("slow", last["id"])

    again = await site.join(TASKS, caught.value.resume)
    found = await taken(again, 15)
    assert [event["data"]["task_id"] for event in found] == [handle.id for handle in handles]


async def test_a_client_is_slow_by_bytes_as_well(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(subscriptions, "MAX_BYTES", 1_000)
    slow, quick = await site.join(), await site.join()
    for n in range(10):
        await site.add.aenqueue(n, n)
        await taken(quick)
    assert slow.ended == "slow"


# -- resuming ----------------------------------------------------------------------------------


async def lived(site: Site) -> list[Any]:
    """Events of a while, as somebody got them who was there."""
    witness = await site.join()
    for n in range(3):
        await site.fail.aenqueue()
        await site.add.aenqueue(n, n)
    await site.app.drain()
    events = await taken(witness, 6 * 3 + 3)
    site.hub.leave(witness)
    return events


@pytest.mark.parametrize("linger", [60.0, 0.0])  # from the buffer, and from the broker
async def test_a_client_goes_on_behind_any_id_without_a_gap(linger: float) -> None:
    site = Site(linger=linger)
    events = await lived(site)
    assert "task.failed" in types(events)
    for place, event in enumerate(events):
        await asyncio.sleep(0)  # without a client the hub stops, if it does not linger
        again = await site.join(TASKS, event["id"])
        found = await taken(again, len(events) - place - 1) if place < len(events) - 1 else []
        assert found == events[place + 1 :]
        assert await rest(again) == []
        site.hub.leave(again)
    await site.hub.close()


async def test_what_happens_while_a_client_catches_up_comes_after_it(
    site: Site, monkeypatch: Any
) -> None:
    events = await lived(site)
    await asyncio.sleep(0.01)
    assert not site.hub.is_reading
    subscription = await site.hub.join(TASKS, events[0]["id"])
    late = await site.add.aenqueue(7, 7)  # it is live already, and held back
    await asyncio.sleep(0.01)
    await site.hub.feed(subscription, events[0]["id"])
    found = await taken(subscription, 1 + len(events))
    assert types(found)[0] == "snapshot"
    assert [event["id"] for event in found[1:-1]] == [event["id"] for event in events[1:]]
    assert found[-1]["data"]["task_id"] == late.id


async def test_what_happens_before_a_client_is_fed_comes_once(site: Site) -> None:
    witness = await site.join()
    await site.add.aenqueue(0, 0)
    (first,) = await taken(witness)
    await site.add.aenqueue(1, 1)
    await taken(witness)
    again = await site.hub.join(TASKS, first["id"])
    await site.add.aenqueue(2, 2)
    await taken(witness)  # the hub is past it now, and holds it for the other one
    feeding = asyncio.ensure_future(site.hub.feed(again, first["id"]))
    _, *found = await taken(again, 3)
    await feeding
    await site.add.aenqueue(3, 3)
    found += await taken(again)
    ids = [event["id"] for event in found]
    assert len(ids) == len(set(ids)) == 3


async def test_an_id_that_is_not_known_any_more_is_a_gap(site: Site) -> None:
    await site.add.aenqueue(1, 2)
    strange = "0000-0-12345-0"
    subscription = await site.join(TASKS, strange)
    found = await taken(subscription, 2)
    assert types(found) == ["stream.gap", "task.submitted"]


async def test_a_client_far_behind_is_fed_no_faster_than_it_reads(
    site: Site, monkeypatch: Any
) -> None:
    events = await lived(site)
    monkeypatch.setattr(subscriptions, "MAX_EVENTS", 20)
    monkeypatch.setattr("fairlead.api.live.hub._BATCH", 5)
    for n in range(60):
        await site.add.aenqueue(n, n)
    await asyncio.sleep(0.01)
    subscription = await site.hub.join(TASKS, events[-1]["id"])
    feeding = asyncio.ensure_future(site.hub.feed(subscription, events[-1]["id"]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not feeding.done()
    found = await taken(subscription, 61)
    await feeding
    assert types(found) == ["snapshot", *["task.submitted"] * 60]


# -- trouble -----------------------------------------------------------------------------------


async def test_clients_stay_while_the_broker_is_away_and_miss_nothing(site: Site) -> None:
    subscription = await site.join()
    site.store.lost["events"] = [Unreachable("away")] * 3
    handle = await site.add.aenqueue(1, 2)
    (first,) = await taken(subscription)
    second = await site.add.aenqueue(3, 4)
    (other,) = await taken(subscription)
    assert [first["data"]["task_id"], other["data"]["task_id"]] == [handle.id, second.id]


async def test_nobody_joins_while_the_broker_is_away(site: Site) -> None:
    site.store.lost["events"] = [Unreachable("away")]
    with pytest.raises(Unreachable):
        await site.hub.join(TASKS)
    assert not site.hub.is_reading
    await site.join()


async def test_everybody_is_told_when_the_hub_ends(site: Site) -> None:
    one, other = await site.join(), await site.join()
    await site.hub.close()
    for each in (one, other):
        with pytest.raises(Ended, match="drained"):
            await each.take(1.0)


async def test_a_closed_broker_ends_the_streams_and_the_next_client_begins_anew(site: Site) -> None:
    subscription = await site.join()
    await site.app.aclose()
    with pytest.raises(Ended, match="closed"):
        await asyncio.wait_for(subscription.take(5.0), 5.0)
    assert not site.hub.is_reading


# -- figures -----------------------------------------------------------------------------------


async def test_the_snapshot_counts_what_the_client_may_see(site: Site) -> None:
    await site.add.using(tenant="acme").aenqueue(1, 2)
    await site.add.using(tenant="other").aenqueue(1, 2)
    await site.fail.using(tenant="other").aenqueue()

    async def snapshot(**asked: Any) -> Any:
        subscription = await site.hub.join(frozenset((event_filter("dead", **asked),)))
        await site.hub.feed(subscription)
        (event,) = await taken(subscription)
        assert event["id"] == subscription.resume
        return event["data"]

    def counted(data: Any) -> dict[str, int]:
        return {queue: counts["ready"] for queue, counts in data["queues"].items()}

    everything = await snapshot()
    assert counted(everything) == {"default": 2, "mail": 1}
    assert everything["totals"]["depth"] == 3
    own = await snapshot(tenant="acme")
    assert (counted(own), own["totals"]["depth"], own["tenant"]) == ({"default": 1}, 1, "acme")
    assert counted(await snapshot(queue="mail")) == {"mail": 1}
    assert (await snapshot(tenant="nobody"))["queues"] == {}


async def test_a_snapshot_that_cannot_be_read_says_so(site: Site, monkeypatch: Any) -> None:
    subscription = await site.hub.join(TASKS)

    async def fail(*args: Any, **options: Any) -> Any:
        raise Unreachable("a shard is away")

    monkeypatch.setattr(site.store.inner, "snapshot", fail)
    await site.hub.feed(subscription)
    (event,) = await taken(subscription)
    assert (event["type"], event["data"]) == ("snapshot", {"available": False})
    monkeypatch.undo()
    await site.add.aenqueue(1, 2)
    assert types(await taken(subscription)) == ["task.submitted"]


async def test_depths_are_told_to_those_who_want_them_when_they_change(site: Site) -> None:
    def some(type: str, **asked: Any) -> frozenset[EventFilter]:
        return frozenset((event_filter(type, known=LIVE_TYPES, **asked),))

    await site.add.using(tenant="acme").aenqueue(1, 2)
    depth = await site.join(some("queue.depth"))
    own = await site.join(some("queue.depth", tenant="other"))
    metrics = await site.join(some("system.metrics"))
    tasks = await site.join(TASKS)
    figures = site.hub._gauges
    await figures.tick()
    (first,) = await taken(depth)
    assert "id" not in first
    assert (first["data"]["queue"], first["data"]["ready"]) == ("default", 1)
    assert (await taken(metrics))[0]["data"]["depth"] == 1

    await figures.tick()  # nothing changed
    assert await rest(depth) == []
    await site.fail.using(tenant="other").aenqueue()
    await figures.tick()
    (second,) = await taken(depth)
    assert (second["data"]["queue"], second["data"]["depth"]) == ("mail", 1)
    (other,) = await taken(own)
    assert (other["data"]["queue"], other["data"]["tenant"]) == ("mail", "other")
    rates = (await taken(metrics, 2))[-1]["data"]
    assert rates["enqueued_per_second"] is None or rates["enqueued_per_second"] >= 0
    assert types(await rest(tasks)) == ["task.submitted"]

    await site.app.drain()
    await figures.tick()
    assert {event["data"]["ready"] for event in await taken(depth, 2)} == {0}


async def test_a_client_that_knows_no_depth_yet_is_told_all_of_them(site: Site) -> None:
    some = frozenset((event_filter("queue.depth", known=LIVE_TYPES),))
    await site.add.aenqueue(1, 2)
    first = await site.join(some)
    await site.hub._gauges.tick()
    await taken(first)
    both = frozenset((event_filter(["queue.depth", "dead"], known=LIVE_TYPES),))
    later = await site.join(both)
    await site.hub._gauges.tick()
    assert types(await taken(later)) == ["queue.depth"]
    assert await rest(first) == []


async def test_figures_are_read_only_while_somebody_wants_them(site: Site) -> None:
    figures = site.hub._gauges
    tasks = await site.join(TASKS)
    reading = [figures.are_read]
    everything = await site.join(ALL)
    assert [*reading, figures.are_read] == [False, True]
    await figures.stop()
    site.hub.leave(everything)
    site.hub.leave(tasks)


# -- workers, and hostile names ----------------------------------------------------------------


async def test_workers_that_come_and_go_are_told(site: Site) -> None:
    subscription = await site.join(frozenset((event_filter("worker.*"),)))
    async with site.app.worker() as worker:
        joined = (await taken(subscription))[0]
        client = site.app._clients.current()
        assert await client.order_worker(worker.incarnation, "pause")
        paused = (await taken(subscription))[0]
    left = (await taken(subscription))[-1]
    assert [each["type"] for each in (joined, paused, left)] == [
        "worker.joined",
        "worker.paused",
        "worker.left",
    ]
    assert joined["data"] == {"worker": worker.incarnation}


HOSTILE = [
    "<script>alert(1)</script>",
    "a\u202fb \U0001f600 \u00e9",
    "'; DROP TABLE--",
    "data: forged",
    '"}{"type":"task.dead"',
    "=cmd|' /C calc'!A0",
]


@pytest.mark.parametrize("tenant", HOSTILE)
async def test_hostile_names_stay_inside_of_their_field(site: Site, tenant: str) -> None:
    subscription = await site.join(frozenset((event_filter("task.*", tenant=tenant),)))
    await site.add.using(tenant=tenant).aenqueue(1, 2)
    events = await subscription.take(5.0)
    assert events is not None
    (item,) = events.items
    assert msgspec.json.decode(item.json)["data"]["tenant"] == tenant
    fields = item.sent_event.decode().split("\n")
    assert [line.partition(":")[0] for line in fields] == ["id", "event", "data", "", ""]
    assert msgspec.json.decode(events.array) == [msgspec.json.decode(item.json)]
