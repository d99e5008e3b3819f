"""Workers fire schedules: at the slot, once each, by what is stored now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from fairlead import Context, Fairlead, Refused, State
from fairlead.broker import Caller, Store, connect
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, Firing, QueueChange, Receipt
from fairlead.broker.schedules import ScheduleOrder, Ticked
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.message import Body
from fairlead.model.schedule import ScheduleSpec, Template, slot_id, timing
from fairlead.worker.scheduler import Scheduler
from tests.support.servers import shared
from tests.worker.harness import NOW, until

LATE = 0.75  # seconds by which a slot may be late; by more, somebody looked a second later


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        memory = connect("memory://")
        yield memory
        assert await memory.audit() == []
        return
    with shared() as running:
        server = connect(running.url)
        yield server
        assert await server.audit() == []
        await server.close()


class Diary:
    """An app whose task writes down the slots it is run for."""

    def __init__(self, store: Store) -> None:
        self.app = Fairlead(store=store)
        self.slots: list[str] = []
        self.late: list[float] = []
        self.said: list[str] = []

        @self.app.task(name="note")
        async def note(ctx: Context, text: str = "") -> None:
            self.said.append(text)
            if ctx.slot is not None:
                self.slots.append(ctx.id)
                self.late.append(time.time() - ctx.slot.timestamp())

        self.note = note


@pytest.fixture
def diary(store: Store) -> Diary:
    return Diary(store)


# -- on time, and once ------------------------------------------------------------------------


async def test_slots_are_fired_on_time_and_in_order(diary: Diary) -> None:
    async with diary.app.worker():
        info = await diary.app.schedules.acreate("tick", diary.note, every=1)
        await until(lambda: len(diary.slots) >= 3)
    first = info.next_at
    assert first is not None
    assert diary.slots[:3] == [slot_id("default", "tick", first + i) for i in range(3)]
    assert min(diary.late[:3]) < LATE  # the machine may have been busy with others at one of them
    assert min(diary.late) > -0.05


@pytest.mark.slow
async def test_several_workers_fire_each_slot_once(store: Store) -> None:
    diaries = [Diary(store) for _ in range(3)]
    await diaries[0].app.schedules.acreate("tick", diaries[0].note, every=1)
    async with (
        diaries[0].app.worker(),
        diaries[1].app.worker(),
        diaries[2].app.worker(),
    ):
        await until(lambda: sum(len(diary.slots) for diary in diaries) >= 3)
    runs = Counter(id for diary in diaries for id in diary.slots)
    assert set(runs.values()) == {1}


async def test_a_worker_fires_for_queues_that_it_does_not_serve(diary: Diary) -> None:
    app = diary.app
    await app.schedules.acreate("tick", diary.note.using(queue="elsewhere"), every=1)
    async with app.worker(queues=["default"]):
        await until(lambda: _waiting(app, "elsewhere"))
    assert diary.slots == []


async def _waiting(app: Fairlead, queue: str) -> bool:
    queues = (await app.asnapshot()).queues
    return queue in queues and queues[queue].depth > 0


@pytest.mark.slow
async def test_a_full_worker_fires_too(diary: Diary) -> None:
    go = asyncio.Event()

    @diary.app.task(name="long")
    async def long() -> None:
        await go.wait()

    async with diary.app.worker(concurrency=1):
        await long.aenqueue()
        await until(lambda: _running(diary.app))
        await diary.app.schedules.acreate("tick", diary.note.using(queue="elsewhere"), every=1)
        await until(lambda: _waiting(diary.app, "elsewhere"))
        go.set()


async def _running(app: Fairlead) -> bool:
    return (await app.asnapshot()).running == 1


# -- changes at run time ----------------------------------------------------------------------


@pytest.mark.slow
async def test_pause_resume_change_and_delete_are_seen_at_once(diary: Diary) -> None:
    schedules = diary.app.schedules
    async with diary.app.worker():
        await schedules.acreate("tick", diary.note.call("one"), every=1)
        await until(lambda: "one" in diary.said)

        await schedules.achange("tick", diary.note.call("two"))
        count = diary.said.count("one")
        await until(lambda: "two" in diary.said)
        assert diary.said.count("one") == count

        await schedules.apause("tick")
        count = len(diary.said)
        await asyncio.sleep(1.3)
        assert len(diary.said) == count

        await schedules.aresume("tick")
        await until(lambda: len(diary.said) > count)

        await schedules.adelete("tick")
        count = len(diary.said)
        await asyncio.sleep(1.3)
        assert len(diary.said) == count
        assert await schedules.alist() == []


async def test_a_schedule_for_once_is_run_once(diary: Diary) -> None:
    async with diary.app.worker():
        await diary.app.schedules.acreate("once", diary.note.call("now"), at=time.time() + 0.5)
        await until(lambda: diary.said == ["now"])
        await asyncio.sleep(0.2)
    assert diary.said == ["now"]
    info = await diary.app.schedules.aget("once")
    assert (info.next_at, info.last_slot is not None) == (None, True)


async def test_drain_runs_schedules_that_are_due() -> None:
    diary = Diary(MemoryBroker(test_clock=True))
    store = diary.app._clients.store
    await store.promote(now=NOW)
    await diary.app.schedules.acreate("tick", diary.note.call("due"), every="1m")
    assert await diary.app.drain() == 0
    await store.promote(now=NOW + 60)
    assert await diary.app.drain() == 1
    assert diary.said == ["due"]


# -- a late scheduler does no harm ------------------------------------------------------------


class Held:
    """Passes all on, but holds a call of fire back until it is told to go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.receipts: list[Receipt] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fire(self, call: Call, firings: list[Firing]) -> list[Receipt]:
        self.reached.set()
        await self.go.wait()
        self.receipts = await self._store.fire(call, firings)
        return self.receipts


@pytest.mark.parametrize("change", ["fired", "changed", "paused", "deleted", "made anew"])
async def test_who_wakes_with_old_knowledge_does_no_harm(change: str) -> None:
    """It was stopped between being handed a schedule and firing it."""
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    diary = Diary(broker)
    schedules = diary.app.schedules
    await schedules.acreate("tick", diary.note, every="1m")
    await broker.promote(now=NOW + 60)
    held = Held(broker)
    late = asyncio.create_task(Scheduler(held, Caller("late")).tick(_ignore))  # type: ignore[arg-type]
    await held.reached.wait()

    await broker.promote(now=NOW + 150)  # its claim is over
    if change == "changed":
        await schedules.achange("tick", every="7m")
    elif change == "paused":
        await schedules.apause("tick")
    elif change in ("deleted", "made anew"):
        await schedules.adelete("tick")
        if change == "made anew":
            await schedules.acreate("tick", diary.note, every="1m")
    else:
        assert await Scheduler(broker, Caller("other")).tick(_ignore) == 1
    before = await broker.schedules()

    held.go.set()
    assert await late == 0
    assert [receipt.code for receipt in held.receipts] == ["stale"]
    assert await broker.schedules() == before
    assert (await broker.snapshot()).depth == (1 if change == "fired" else 0)


def _ignore(seconds: float) -> None:
    pass


# -- missed slots, full queues, schedules that cannot be read ----------------------------------


@pytest.fixture(params=["memory", "valkey"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """One whose clock stands still until somebody moves it with ``now=``."""
    with contextlib.ExitStack() as stack:
        made: Store = MemoryBroker(test_clock=True)
        if request.param == "valkey":
            made = RedisBroker(stack.enter_context(shared()).url, test_clock=True)
        await made.promote(now=NOW)
        yield made
        assert await made.audit() == []
        await made.close()


@pytest.mark.parametrize("down", [0, 1, 1_000])
@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
async def test_slots_at_which_nobody_was_there(broker: Store, down: int, missed: Any) -> None:
    diary = Diary(broker)
    info = await diary.app.schedules.acreate(
        "tick", diary.note, "0 * * * *", missed=missed, max_missed=200
    )
    first = info.next_at
    assert first is not None
    await broker.promote(now=first + down * 3_600 - 1_800)
    fired = await Scheduler(broker, Caller("s")).tick(_ignore)
    assert fired == {"skip": 0, "latest": min(down, 1), "all": min(down, 200)}[missed]
    assert (await broker.snapshot()).depth == fired
    after = await diary.app.schedules.aget("tick")
    assert after.next_at == first + down * 3_600
    last = first + (down - 1) * 3_600 if fired else None
    assert after.last_slot == last
    assert await Scheduler(broker, Caller("s2")).tick(_ignore) == 0


async def test_no_slot_is_passed_over_when_room_comes_between_two_calls(broker: Store) -> None:
    """More slots than one call fires; the first finds no room, the second would."""
    diary = Diary(broker)
    info = await diary.app.schedules.acreate("tick", diary.note, "0 * * * *", missed="all")
    first = info.next_at
    assert first is not None
    change = broker.configure
    await change(Call("c", 1), [QueueChange(queue="default", max_waiting=7)])
    fire = broker.fire

    async def then_room(call: Call, firings: Sequence[Firing], **more: Any) -> list[Receipt]:
        receipts = await fire(call, firings, **more)
        await change(Call("c", 2), [QueueChange(queue="default", max_waiting=None)])
        return receipts

    broker.fire = then_room  # type: ignore[method-assign]
    await broker.promote(now=first + 300 * 3_600 - 1_800)
    scheduler = Scheduler(broker, Caller("s"))
    assert await scheduler.tick(_ignore) == 7
    assert (await diary.app.schedules.aget("tick")).next_at == first + 7 * 3_600
    await broker.promote(now=first + 300 * 3_600 - 1_790)
    assert await scheduler.tick(_ignore) == 293
    assert (await broker.snapshot()).depth == 300


async def test_a_slot_that_finds_no_room_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    diary = Diary(broker)
    await diary.app.schedules.acreate("tick", diary.note, every="1m")
    await broker.configure(Call("c", 1), [QueueChange(queue="default", max_waiting=0)])
    scheduler = Scheduler(broker, Caller("s"))
    await broker.promote(now=NOW + 60)
    assert await scheduler.tick(_ignore) == 0
    assert caplog.records[-1].message == "slot refused; it is tried again"
    await broker.configure(Call("c", 2), [QueueChange(queue="default", max_waiting=None)])
    assert await scheduler.tick(_ignore) == 0
    await broker.promote(now=NOW + 65)
    assert await scheduler.tick(_ignore) == 1


async def test_a_full_queue_is_said_once_and_again_after_a_slot_was_fired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    diary = Diary(broker)
    await diary.app.schedules.acreate("tick", diary.note, every="1h")
    scheduler = Scheduler(broker, Caller("s"))
    for number, room in enumerate([0, None, 1]):
        await broker.configure(
            Call("c", number + 1), [QueueChange(queue="default", max_waiting=room)]
        )
        for late in (0, 5, 10):
            await broker.promote(now=NOW + 3_600 * (number + 1) + late)
            await scheduler.tick(_ignore)
    said = [each.message for each in caplog.records if "refused" in each.message]
    assert said == ["slot refused; it is tried again"] * 2


async def test_a_slot_whose_id_another_task_has_is_said(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    diary = Diary(broker)
    await diary.app.schedules.acreate("tick", diary.note.call("slot"), every="1h")
    await diary.note.using(id="tick.20270115T090000Z").aenqueue("other")
    await broker.promote(now=NOW + 3_600)
    assert await Scheduler(broker, Caller("s")).tick(_ignore) == 0
    [said] = caplog.records
    assert said.message == "slot without a task: another task has its id"
    assert vars(said)["task"] == "default:tick.20270115T090000Z"


async def test_others_go_on_while_many_slots_are_made_up_for(broker: Store) -> None:
    diary = Diary(broker)
    for number in range(3):
        name = f"tick{number}"
        await diary.app.schedules.acreate(name, diary.note, every="1m", missed="all")
    await broker.promote(now=NOW + 60_000)
    sizes: list[int] = []
    turns = 0
    fire = broker.fire

    async def noted(call: Call, firings: Sequence[Firing], **more: Any) -> list[Receipt]:
        sizes.append(len(firings))
        return await fire(call, firings, **more)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    broker.fire = noted  # type: ignore[method-assign]
    beside = asyncio.create_task(other())
    assert await Scheduler(broker, Caller("s")).tick(_ignore) == 3_000
    beside.cancel()
    assert max(sizes) == 100
    assert turns >= 3


@pytest.mark.parametrize(
    "changes",
    [
        {"timing": {"kind": "cron", "expression": "61 * * * *"}},
        {"timing": {"kind": "cron", "expression": ""}},
        {"timing": {"kind": "interval", "every": 0.0}},
        {"timing": {"kind": "interval", "every": float("nan")}},
        {"timing": {"kind": "once", "at": 1e300}},
        {"template": {"cost": -1.0}},
        {"template": {"queue": "no queue"}},
    ],
)
async def test_one_schedule_that_cannot_be_computed_does_not_stop_the_others(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    diary = Diary(broker)
    await diary.app.schedules.acreate("z-fine", diary.note, every="1h")
    [record] = await broker.schedules()
    fields = msgspec.msgpack.decode(record.spec)
    for part, values in changes.items():
        fields[part] |= values
    spec = msgspec.msgpack.encode(fields)
    order = ScheduleOrder(name="odd", action="create", queue="default", spec=spec, next_at=NOW)
    await broker.plan(Call("c", 1), [order])
    scheduler = Scheduler(broker, Caller("s"))
    for late in (0, 5, 10):
        await broker.promote(now=NOW + 3_600 + late)
        assert await scheduler.tick(_ignore) == (1 if late == 0 else 0)
    [said] = caplog.records
    assert (said.message, vars(said)["schedule"]) == ("schedule left to other workers", "odd")


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", ["version", "zone", "bytes"])
async def test_what_cannot_be_read_is_said_once_and_looked_at_rarely(
    store: Store, spoiled: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    body = Body(task="note", arguments=pack_arguments((), {})).encode()
    template = Template(task="note", body=body, queue="default", tenant="default")
    fields = msgspec.msgpack.decode(
        ScheduleSpec(timing=timing(every=1), template=template).encode()
    )
    if spoiled == "version":
        fields["version"] = 99
    elif spoiled == "zone":
        fields["timing"]["tz"] = "Mars/Olympus"
    spec = b"?" if spoiled == "bytes" else msgspec.msgpack.encode(fields)
    now = (await store.hello()).now
    order = ScheduleOrder(name="odd", action="create", queue="default", spec=spec, next_at=now)
    await store.plan(Call("c", 1), [order])
    ticks: list[Ticked] = []
    tick = store.tick

    async def noted(*, now: float | None = None) -> Ticked:
        ticks.append(await tick(now=now))
        return ticks[-1]

    store.tick = noted  # type: ignore[method-assign]
    diary = Diary(store)
    async with diary.app.worker():
        await until(lambda: any(each.due for each in ticks))
        await asyncio.sleep(1.5)
        assert len(ticks) <= 4
        await diary.app.schedules.acreate("fine", diary.note.call("fine"), every=1)
        await until(lambda: "fine" in diary.said)
    said = [each for each in caplog.records if each.message == "schedule left to other workers"]
    assert len(said) == 1
    [odd] = [info for info in await diary.app.schedules.alist() if info.name == "odd"]
    assert odd.timing is None
    assert odd.problem


async def test_a_record_that_was_overwritten_does_not_hold_up_those_handed_out_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with shared() as running:
        broker = RedisBroker(running.url, test_clock=True)
        await broker.promote(now=NOW)
        diary = Diary(broker)
        for name in ("bad", "fine"):
            await diary.app.schedules.acreate(name, diary.note, every="1h")
        [key] = running.admin("KEYS", "*:schedules")
        value = running.admin("HGET", key, "bad")
        queue, revision, paused, next_at, _, rest = value.split(b"\x1f", 5)
        half = b"\x1f".join((queue, revision, paused, next_at, b"no number", rest))
        running.admin("HSET", key, "bad", half)
        scheduler = Scheduler(broker, Caller("s"))
        for late in (0, 5, 10):
            await broker.promote(now=NOW + 3_600 + late)
            assert await scheduler.tick(_ignore) == (1 if late == 0 else 0)
        assert [info.name for info in await diary.app.schedules.alist()] == ["fine"]
        with pytest.raises(Refused, match="'bad' was overwritten"):
            await diary.app.schedules.aget("bad")
        await diary.app.schedules.adelete("bad")
        assert running.admin("HKEYS", key) == [b"fine"]
        said = [each for each in caplog.records if "overwritten" in each.getMessage()]
        assert len(said) == 1
        await broker.close()


# -- declared ---------------------------------------------------------------------------------


def declaring(store: Store, cron: str = "0 2 * * *", text: str = "x") -> Fairlead:
    app = Fairlead(store=store)

    @app.schedule(every="1h", name="hourly", start=NOW)
    @app.schedule(cron, tz="Europe/Berlin", args=(text,))
    @app.task(name="jobs.note")
    async def note(text: str = "") -> None: ...

    app.schedule("@daily", name="acme-daily")(note.using(tenant="acme", priority="high"))
    return app


async def started(app: Fairlead) -> dict[str, Any]:
    async with app.worker():
        return {info.name: info for info in await app.schedules.alist()}


async def test_a_worker_writes_what_its_program_declares_when_it_starts(store: Store) -> None:
    found = await started(declaring(store))
    assert sorted(found) == ["acme-daily", "hourly", "jobs.note"]
    nightly = found["jobs.note"]
    assert (nightly.timing.expression, nightly.timing.tz) == ("0 2 * * *", "Europe/Berlin")
    assert (nightly.args, nightly.declared, nightly.task) == (("x",), True, "jobs.note")
    assert (found["acme-daily"].tenant, found["hourly"].timing.every) == ("acme", 3600.0)
    assert await started(declaring(store)) == found  # not even the revision is another


async def test_a_changed_declaration_is_written_and_the_others_are_not(store: Store) -> None:
    before = await started(declaring(store))
    after = await started(declaring(store, "0 3 * * *"))
    assert after["jobs.note"].timing.expression == "0 3 * * *"
    assert after["jobs.note"].revision > before["jobs.note"].revision
    assert after["hourly"] == before["hourly"]


async def test_what_was_paused_or_changed_at_run_time_stays_so(store: Store) -> None:
    app = declaring(store)
    await started(app)
    await app.schedules.apause("hourly")
    await app.schedules.achange("jobs.note", None, "0 4 * * *")
    found = await started(declaring(store))
    assert found["hourly"].paused
    assert found["jobs.note"].timing.expression == "0 4 * * *"
    changed = await started(declaring(store, text="y"))  # now the program says something new
    assert changed["jobs.note"].timing.expression == "0 2 * * *"
    assert changed["hourly"].paused


async def test_run_now_is_beside_the_slots(diary: Diary) -> None:
    schedules = diary.app.schedules
    info = await schedules.acreate("later", diary.note.call("now"), every="1d")
    handle = await schedules.arun_now("later")
    assert await diary.app.drain() == 1
    assert await handle.astate() is State.COMPLETED
    assert (diary.said, diary.slots) == (["now"], [])
    assert await schedules.aget("later") == info
