"""Schedules of two shards: where they lie, how they move, and what happens while one is away."""

from __future__ import annotations

import logging

import pytest

from fairlead.broker import Caller
from fairlead.broker.requests import Firing
from fairlead.broker.schedules import Scheduled, ScheduleOrder, ScheduleRecord
from fairlead.broker.sharded import ShardedBroker
from fairlead.model.errors import Ambiguous, InvalidInput, Unreachable
from fairlead.model.schedule import ScheduleSpec, Template, timing
from fairlead.worker.scheduler import Scheduler
from tests.broker.redis import test_shards as shards
from tests.broker.redis.test_shards import BOTH
from tests.support.store import NOW, Client, codes, submit

# The fixtures are the same.
nodes, url, names = shards.nodes, shards.url, shards.names
broker, c = shards.broker, shards.c


def put(name: str, queue: str, spec: bytes = b"", **more: object) -> ScheduleOrder:
    return order(name, "put", queue=queue, spec=spec, next_at=NOW, **more)


def order(name: str, action: str, **more: object) -> ScheduleOrder:
    return ScheduleOrder(name=name, action=action, **more)  # type: ignore[arg-type]


async def places(broker: ShardedBroker, names: tuple[str, str], schedule: str) -> list[str]:
    """The shards that have a schedule."""
    found = [name for name in names if await broker.stores[name].schedules([schedule])]
    assert len(await broker.schedules([schedule])) == min(len(found), 1)
    return found


async def test_a_schedule_lies_in_the_shard_of_its_queue_and_is_fired_there(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    answers = await c.plan(put("a", "far"), put("b", "default"), put("c", "far"))
    assert [answer.code for answer in answers] == ["done"] * 3
    assert [await places(broker, names, name) for name in "abc"] == [
        [names[1]],
        [names[0]],
        [names[1]],
    ]
    assert [record.name for record in await broker.schedules()] == ["a", "b", "c"]
    assert (await broker.promote(now=NOW)).ticks
    ticked = await broker.tick(now=NOW)
    assert sorted(record.name for record in ticked.due) == ["a", "b", "c"]
    assert not (await broker.promote(now=NOW)).ticks
    firings = [
        Firing(
            schedule=record.name,
            slot=NOW,
            submission=submit(f"t-{record.name}", queue=record.queue),
            revision=record.revision,
            next_at=NOW + 60,
        )
        for record in ticked.due
    ]
    assert codes(await c.fire(*firings)) == ["accepted"] * 3
    assert codes(await c.fire(*firings)) == ["stale"] * 3
    assert len(await c.fetch(9, BOTH)) == 3


async def test_a_name_is_one_schedule_in_whatever_shard(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    await c.plan(put("a", "far"))
    answers = await c.plan(
        order("a", "create", queue="default", next_at=NOW),
        order("a", "pause"),
        order("ghost", "pause"),
    )
    assert [answer.code for answer in answers] == ["exists", "done", "unknown"]
    assert await places(broker, names, "a") == [names[1]]
    answers = await c.plan(order("a", "resume", next_at=NOW), order("a", "delete"))
    assert [answer.code for answer in answers] == ["done", "done"]
    assert await places(broker, names, "a") == []


async def test_a_schedule_moves_with_its_queue(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    [made] = await c.plan(put("a", "far"))
    await c.plan(order("a", "pause"))
    [stale] = await c.plan(put("a", "default", revision=made.revision))
    assert (stale.code, await places(broker, names, "a")) == ("stale", [names[1]])
    [record] = await broker.schedules(["a"])
    call = c.call()
    moving = [put("a", "default", b"new", revision=record.revision), put("b", "default")]
    moved = await broker.plan(call, moving, now=NOW)
    assert [answer.code for answer in moved] == ["done", "done"]
    assert await places(broker, names, "a") == [names[0]]
    [record] = await broker.schedules(["a"])
    assert (record.queue, record.spec, record.paused) == ("default", b"new", True)
    assert record.revision == moved[0].revision
    assert await broker.plan(call, moving, now=NOW) == moved
    with pytest.raises(InvalidInput, match="two shards"):
        await c.plan(put("a", "default", b"x"), put("a", "far", b"x"))


async def test_a_schedule_of_any_shard_that_is_waited_for_wakes(
    broker: ShardedBroker, c: Client
) -> None:
    await c.plan(put("a", "far"))
    assert await broker.wait(["far"], 5.0)


# -- moving ------------------------------------------------------------------------------------


def firing(record: ScheduleRecord, slot: float = NOW) -> Firing:
    return Firing(
        schedule=record.name,
        slot=slot,
        submission=submit(f"{record.name}-{slot:.0f}", queue=record.queue),
        revision=record.revision,
        next_at=slot + 60,
    )


async def test_a_schedule_that_moves_fires_no_slot_again(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    await c.plan(put("a", "far"))
    [old] = await broker.schedules(["a"])
    assert codes(await c.fire(firing(old))) == ["accepted"]
    # Whoever read it before that slot was fired moves it, with the next slot as it was.
    [moved] = await c.plan(put("a", "default", b"new", revision=old.revision))
    assert moved.code == "done"
    [new] = await broker.schedules(["a"])
    assert (new.next_at, new.last_slot, new.queue) == (NOW, NOW, "default")
    assert await places(broker, names, "a") == [names[0]]
    assert codes(await c.fire(firing(old))) == ["stale"]
    assert codes(await c.fire(firing(new))) == ["stale"]
    assert codes(await c.fire(firing(new, NOW + 60))) == ["accepted"]


async def test_a_move_that_finds_no_room_changes_nothing(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await c.plan(put("a", "far"))
    [before] = await broker.schedules(["a"])
    here = broker.stores[names[0]]

    async def full(call: object, orders: list[ScheduleOrder], **_: object) -> list[Scheduled]:
        return [Scheduled(name=each.name, code="full") for each in orders]

    monkeypatch.setattr(here, "plan", full)
    [answer] = await c.plan(put("a", "default", b"new", revision=before.revision))
    assert answer.code == "full"
    monkeypatch.undo()
    [after] = await broker.schedules(["a"])
    assert (after.queue, after.spec, after.next_at) == ("far", b"", NOW)
    assert codes(await c.fire(firing(after))) == ["accepted"]


async def test_a_move_that_is_broken_off_is_ended_when_the_schedule_is_due(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await c.plan(put("a", "far"))
    [old] = await broker.schedules(["a"])
    here = broker.stores[names[0]]

    async def away(*_: object, **__: object) -> None:
        raise Unreachable("the server is away")

    monkeypatch.setattr(here, "plan", away)
    with pytest.raises(Ambiguous, match="the server is away"):
        await c.plan(put("a", "default", b"new", revision=old.revision))
    monkeypatch.undo()
    assert await places(broker, names, "a") == [names[1]]  # not lost
    [halfway] = await broker.schedules(["a"])
    assert codes(await c.fire(firing(old))) == ["stale"]  # and fired nowhere
    assert codes(await c.fire(firing(halfway))) == ["stale"]
    ticked = await broker.tick(now=NOW)
    assert (ticked.due, ticked.more) == ([], True)
    [arrived] = (await broker.tick(now=NOW)).due
    assert (arrived.queue, arrived.spec) == ("default", b"new")
    assert await places(broker, names, "a") == [names[0]]
    assert codes(await c.fire(firing(arrived))) == ["accepted"]


async def test_a_schedule_follows_when_its_queue_gets_another_route(
    broker: ShardedBroker,
    c: Client,
    names: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await c.plan(put("a", "far"), put("b", "far"))
    await c.fire(firing((await broker.schedules(["a"]))[0]))
    await c.plan(order("b", "pause"))
    monkeypatch.setitem(broker.places._queues, "far", names[0])
    assert (await broker.tick(now=NOW + 60)).more
    [record] = (await broker.tick(now=NOW + 60)).due
    assert (record.name, record.next_at, record.last_slot) == ("a", NOW + 60, NOW)
    assert await places(broker, names, "a") == [names[0]]
    assert "schedule moved to the shard of its queue" in caplog.messages
    assert codes(await c.fire(firing(record, NOW + 60))) == ["accepted"]
    await c.plan(order("b", "resume", next_at=NOW + 60))  # where it lies
    await broker.tick(now=NOW + 60)
    assert [each.name for each in (await broker.tick(now=NOW + 60)).due] == ["b"]
    assert await places(broker, names, "b") == [names[0]]


async def test_of_two_copies_the_one_in_the_shard_of_its_queue_counts(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    """What somebody left who died between putting it there and deleting it here."""
    for shard, spec in zip(names, (b"home", b"stray"), strict=True):
        store = Client(broker.stores[shard], "w9")
        for name in "ab":
            await store.plan(put(name, "default", spec))
    assert [each.spec for each in await broker.schedules()] == [b"home", b"home"]
    [gone] = await c.plan(order("a", "delete"))
    assert (gone.code, await places(broker, names, "a")) == ("done", [])
    first, again = await broker.tick(now=NOW), await broker.tick(now=NOW)
    assert [each.spec for each in (*first.due, *again.due)] == [b"home"]
    assert await places(broker, names, "b") == [names[0]]


# -- a shard that is away, and clocks that differ ----------------------------------------------


async def test_a_shard_that_is_away_does_not_stop_the_schedules_of_others(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = Template(task="t", body=b"", queue="default", tenant="default")
    rules = {
        "late": timing(every=3_600, start=NOW - 600, missed="skip"),
        "timely": timing(every=60),
    }
    for name, rule in rules.items():
        spec = ScheduleSpec(timing=rule, template=template).encode()
        next_at = NOW - 600 if name == "late" else NOW
        await c.plan(order(name, "put", queue="default", spec=spec, next_at=next_at))
    [late] = await broker.schedules(["late"])

    async def away(*_: object, **__: object) -> None:
        raise Unreachable("the server is away")

    for verb in ("tick", "schedules", "plan"):
        monkeypatch.setattr(broker.stores[names[1]], verb, away)
    await broker.stores[names[0]].promote(now=NOW + 30)
    scheduler = Scheduler(broker, Caller("s"))
    assert await scheduler.tick(lambda _: None) == 1
    [passed] = await broker.stores[names[0]].schedules(["late"])
    assert (passed.next_at, passed.last_slot) == (NOW + 3_000, None)
    skip = order("late", "skip", queue="default", next_at=NOW + 6_600, revision=late.revision)
    codes_ = [
        (await c.plan(each))[0].code
        for each in (skip, order("late", "pause"), order("late", "delete"))
    ]
    assert codes_ == ["done", "done", "done"]
    with pytest.raises(Unreachable):  # it may be there
        await c.plan(order("ghost", "delete"))
    monkeypatch.undo()


async def test_a_schedule_is_judged_by_the_clock_of_its_own_shard(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await c.plan(put("a", "far"), put("b", "default"))
    fast = broker.stores[names[1]]
    tick = fast.tick

    async def ahead(*, now: float | None = None) -> object:
        return await tick(now=NOW + 90)

    monkeypatch.setattr(fast, "tick", ahead)
    ticked = await broker.tick(now=NOW)
    assert {each.name: ticked.now_of(each.name) for each in ticked.due} == {
        "a": NOW + 90,
        "b": NOW,
    }
    monkeypatch.undo()
