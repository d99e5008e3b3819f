"""``app.schedules`` and ``@app.schedule``, as programs use them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead import (
    Context,
    Fairlead,
    InvalidCron,
    InvalidInput,
    InvalidName,
    InvalidOption,
    Refused,
    ScheduleConflict,
    State,
    UnknownSchedule,
)
from fairlead.broker import Caller
from fairlead.broker import schedules as limits
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.memory import schedules as in_memory
from fairlead.broker.schedules import Scheduled
from fairlead.model.message import Body
from fairlead.worker.scheduler import Scheduler

NOW = 1_800_000_000.0


@pytest.fixture
async def broker() -> MemoryBroker:
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    return broker


@pytest.fixture
def app(broker: MemoryBroker) -> Fairlead:
    app = Fairlead(store=broker)

    @app.task(name="report", queue="reports")
    async def report(ctx: Context, region: str = "all", top: int = 3) -> str:
        return f"{region} {ctx.headers.get('fairlead-schedule')} {ctx.slot}"

    return app


def report(app: Fairlead) -> Any:
    return app.registered("report")


async def test_a_schedule_is_what_was_said(app: Fairlead) -> None:
    call = report(app).using(tenant="acme", priority="high").call("eu", top=5)
    info = await app.schedules.acreate("nightly", call, "@hourly", tz="Asia/Tehran")
    assert (info.name, info.task, info.queue, info.tenant) == (
        "nightly",
        "report",
        "reports",
        "acme",
    )
    assert (info.args, info.kwargs) == (("eu",), {"top": 5})
    assert info.timing is not None
    assert (info.timing.expression, info.timing.tz, info.timing.fold) == (
        "0 * * * *",
        "Asia/Tehran",
        "both",
    )
    assert (info.next_at, info.last_slot, info.paused, info.declared) == (
        NOW + 1_800,  # whole hours of Tehran are half hours of UTC
        None,
        False,
        False,
    )
    assert await app.schedules.aget("nightly") == info
    assert await app.schedules.alist() == [info]


async def test_every_option_of_a_call_reaches_the_task(app: Fairlead, broker: MemoryBroker) -> None:
    sender = report(app).using(
        queue="other",
        unique="one",
        unique_until="done",
        deadline="2h",
        cost=3.0,
        limiters=["api"],
        max_retries=7,
        priority="low",
    )
    await app.schedules.acreate("nightly", sender, every="1h")
    await broker.promote(now=NOW + 3_600)
    assert await Scheduler(broker, Caller("s")).tick(lambda _: None) == 1
    [task] = (await broker.page()).tasks
    message = task.message
    assert (message.queue, message.cost, message.limiters, message.level) == (
        "other",
        3.0,
        ("api",),
        3,
    )
    assert task.deadline_at == NOW + 3_600 + 7_200
    assert Body.decode(message.body).max_retries == 7
    await broker.promote(now=NOW + 7_200)
    await Scheduler(broker, Caller("s2")).tick(lambda _: None)
    assert len((await broker.page()).tasks) == 1  # its unique key was held


async def test_a_worker_starts_even_if_its_schedules_do_not_fit(
    app: Fairlead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_memory, "MAX_SCHEDULES", 0)
    app.schedule(every="1h")(report(app))
    await report(app).aenqueue()
    assert await app.drain() == 1
    assert "declarations not written" in caplog.messages


async def test_its_task_knows_its_slot_and_has_an_id_that_tells_it(
    app: Fairlead, broker: MemoryBroker
) -> None:
    await app.schedules.acreate("nightly", report(app).using(tenant="acme"), every="1h")
    await broker.promote(now=NOW + 3_600)
    assert await app.drain() == 1
    handle = app.handle("nightly.20270115T090000Z", tenant="acme")
    assert await handle.aresult() == "all nightly 2027-01-15 09:00:00+00:00"


def test_sync_code_does_the_same() -> None:
    with Fairlead("memory://") as app:

        @app.task(name="note")
        def note(text: str = "") -> None: ...

        app.schedule(every="1h", name="declared")(note)
        assert app.schedules.declare() == 1
        assert app.schedules.declare() == 0
        made = app.schedules.create("nightly", note.call("x"), "0 2 * * *")
        changed = app.schedules.change("nightly", None, "0 3 * * *")
        assert changed.timing is not None
        assert changed.timing.expression == "0 3 * * *"
        assert changed.revision > made.revision
        app.schedules.pause("nightly")
        assert app.schedules.get("nightly").paused
        assert not app.schedules.resume("nightly").paused
        assert len(app.schedules.next_runs("nightly", 3)) == 3
        assert app.schedules.run_now("nightly").state is State.QUEUED
        assert [info.name for info in app.schedules.list()] == ["declared", "nightly"]
        app.schedules.delete("nightly")
        with pytest.raises(UnknownSchedule):
            app.schedules.get("nightly")


async def test_a_change_changes_what_it_names(app: Fairlead) -> None:
    schedules = app.schedules
    await schedules.acreate(
        "nightly", report(app).call("eu"), "0 2 * * *", tz="Europe/Berlin", missed="skip"
    )
    after = await schedules.achange("nightly", missed="all")
    assert after.timing is not None
    assert (after.timing.expression, after.timing.missed, after.args) == (
        "0 2 * * *",
        "all",
        ("eu",),
    )
    after = await schedules.achange("nightly", every="5m")
    assert after.timing is not None
    assert (after.timing.kind, after.timing.every, after.timing.missed) == ("interval", 300, "all")
    after = await schedules.achange("nightly", report(app).call("us"))
    assert (after.args, after.timing is not None and after.timing.kind) == (("us",), "interval")
    after = await schedules.achange("nightly", None, "*/5 * * * *")
    assert after.timing is not None
    assert (after.timing.tz, after.timing.fold) == ("Europe/Berlin", "both")


async def test_a_change_of_the_expression_keeps_what_was_said_about_clocks(app: Fairlead) -> None:
    schedules = app.schedules
    await schedules.acreate("said", report(app), "30 2 * * *", fold="second", gap="skip")
    await schedules.acreate("unsaid", report(app), "30 * * * *")
    found = {}
    for name in ("said", "unsaid"):
        after = (await schedules.achange(name, None, "30 1 * * *")).timing
        assert after is not None
        found[name] = after.gap, after.fold
    assert found == {"said": ("skip", "second"), "unsaid": ("after", "first")}


async def test_other_arguments_do_not_lose_slots_that_are_due(
    app: Fairlead, broker: MemoryBroker
) -> None:
    await app.schedules.acreate("nightly", report(app).call("eu"), every="1h")
    await broker.promote(now=NOW + 3_600)
    after = await app.schedules.achange("nightly", report(app).call("us"))
    assert after.next_at == NOW + 3_600
    after = await app.schedules.achange("nightly", every="30m")
    assert after.next_at == NOW + 5_400


@pytest.mark.parametrize("said", [{"missed": "all"}, {"max_missed": 3}])
async def test_another_policy_does_not_lose_slots_that_are_due(
    app: Fairlead, broker: MemoryBroker, said: dict[str, Any]
) -> None:
    await app.schedules.acreate("nightly", report(app), every="1h")
    await broker.promote(now=NOW + 3_600)
    after = await app.schedules.achange("nightly", **said)
    assert after.next_at == NOW + 3_600


@pytest.mark.parametrize("said", [{"at": NOW - 60}, {"end": NOW - 60}])
async def test_a_change_into_the_past_is_refused(app: Fairlead, said: dict[str, Any]) -> None:
    before = await app.schedules.acreate("nightly", report(app), every="1h")
    with pytest.raises(InvalidInput, match="lies in the past"):
        await app.schedules.achange("nightly", **said)
    assert await app.schedules.aget("nightly") == before


async def test_what_is_over_may_still_be_given_other_arguments(
    app: Fairlead, broker: MemoryBroker
) -> None:
    await app.schedules.acreate("once", report(app), at=NOW + 60)
    await broker.promote(now=NOW + 60)
    await Scheduler(broker, Caller("s")).tick(lambda _: None)
    after = await app.schedules.achange("once", report(app).call("us"))
    assert (after.args, after.next_at) == (("us",), None)


async def test_next_runs_are_the_next_slots(app: Fairlead) -> None:
    await app.schedules.acreate("nightly", report(app), "0 2 * * *", end=NOW + 3 * 86_400)
    found = await app.schedules.anext_runs("nightly", 10)
    assert [datetime.fromtimestamp(slot, UTC).isoformat()[:16] for slot in found] == [
        f"2027-01-{day}T02:00" for day in (16, 17, 18)
    ]
    for count in (0, 1_001, True, "5"):
        with pytest.raises(InvalidOption):
            await app.schedules.anext_runs("nightly", count)  # type: ignore[arg-type]


async def test_slots_that_passed_while_it_was_paused_are_not_made_up_for(
    app: Fairlead, broker: MemoryBroker
) -> None:
    await app.schedules.acreate("nightly", report(app), every="1h", missed="all")
    await app.schedules.apause("nightly")
    await broker.promote(now=NOW + 9_000)
    info = await app.schedules.aresume("nightly")
    assert info.next_at == NOW + 10_800
    assert await app.drain() == 0


async def test_names_that_are_unknown_or_taken(app: Fairlead) -> None:
    schedules = app.schedules
    await schedules.acreate("nightly", report(app), every="1h")
    with pytest.raises(ScheduleConflict, match="exists already"):
        await schedules.acreate("nightly", report(app), every="1h")
    for method in (schedules.apause, schedules.aresume, schedules.adelete, schedules.aget):
        with pytest.raises(UnknownSchedule):
            await method("ghost")
    with pytest.raises(UnknownSchedule):
        await schedules.achange("ghost", every="1h")
    with pytest.raises(InvalidName):
        await schedules.acreate("no way", report(app), every="1h")


async def test_what_cannot_be_scheduled_is_refused_where_it_is_said(app: Fairlead) -> None:
    create = app.schedules.acreate
    task = report(app)
    with pytest.raises(InvalidCron, match="column 3"):
        await create("x", task, "* 24 * * *")
    with pytest.raises(InvalidInput, match="one of cron, every and at"):
        await create("x", task)
    with pytest.raises(InvalidInput, match="lies in the past"):
        await create("x", task, at=NOW - 1)
    with pytest.raises(InvalidInput, match="did you mean missed"):
        await create("x", task, every=5, mised="all")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="delay"):
        await create("x", task.using(delay=5), every=5)
    with pytest.raises(InvalidInput, match="id of its own"):
        await create("x", task.using(id="mine"), every=5)
    with pytest.raises(InvalidInput, match="depends_on"):
        await create("x", task.using(depends_on=["a"]), every=5)
    with pytest.raises(InvalidInput):
        await create("x", task.call(1, 2, 3, 4), every=5)
    with pytest.raises(InvalidInput, match="cannot be scheduled"):
        await create("x", lambda: None, every=5)  # type: ignore[arg-type]
    assert await app.schedules.alist() == []


async def test_there_is_an_end_to_schedules(app: Fairlead, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.MAX_SCHEDULES == 10_000
    monkeypatch.setattr(in_memory, "MAX_SCHEDULES", 1)
    await app.schedules.acreate("one", report(app), every="1h")
    with pytest.raises(Refused, match="delete some"):
        await app.schedules.acreate("two", report(app), every="1h")
    app.schedule(every="1h")(report(app))
    with pytest.raises(Refused, match="delete some"):
        await app.schedules.adeclare()


# -- declared ---------------------------------------------------------------------------------


def test_a_declaration_is_checked_where_it_stands() -> None:
    app = Fairlead("memory://")
    with pytest.raises(InvalidCron):
        app.schedule("61 * * * *")

    def plain() -> None: ...

    with pytest.raises(InvalidInput, match=r"above @app\.task"):
        app.schedule(every=5)(plain)  # type: ignore[type-var]
    task = app.task(name="a:b")(plain)
    assert app.schedule(every=5)(task) is task
    with pytest.raises(InvalidInput, match="'a-b' is declared twice"):
        app.schedule(every=7)(task)
    with pytest.raises(InvalidInput):
        app.schedule(every=7, name="args", args=(1,))(task)
    app.schedule(every=7, name="other")(task)


async def test_two_programs_that_declare_at_once_write_it_once(broker: MemoryBroker) -> None:
    def program() -> Fairlead:
        app = Fairlead(store=broker)

        @app.schedule(every="1h", name="hourly")
        @app.task(name="note")
        def note() -> None: ...

        return app

    first, second = program(), program()
    stale = await broker.schedules(["hourly"])
    read = broker.schedules

    async def late(names: Any = None, *, now: float | None = None) -> Any:
        broker.schedules = read  # type: ignore[method-assign]
        await first.schedules.adeclare()
        return stale

    broker.schedules = late  # type: ignore[method-assign]
    assert await second.schedules.adeclare() == 0
    assert len(await broker.schedules()) == 1


async def test_a_declaration_that_takes_a_name_over_says_so(
    app: Fairlead, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="other")
    async def other() -> None: ...

    await app.schedules.acreate("mine", report(app), every="1h")
    await app.schedules.acreate("taken", other, every="1h")
    for name in ("mine", "taken", "new"):
        app.schedule(every="2h", name=name)(report(app))
    assert await app.schedules.adeclare() == 3
    said = [each.getMessage() for each in caplog.records]
    assert said == [
        "schedule mine of task report, made at run time, is replaced by what the program declares",
        "schedule taken of task other is now one of report",
    ]
    caplog.clear()
    later = Fairlead(store=broker)
    later.task(name="report")(_nothing)
    later.schedule(every="3h", name="mine")(later.registered("report"))
    assert await later.schedules.adeclare() == 1
    assert caplog.records == []  # its own declaration, changed


async def _nothing() -> None: ...


async def test_a_declaration_that_is_given_up_is_named(
    app: Fairlead,
    broker: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app.schedule(every="2h", name="busy")(report(app))

    async def stale(call: Any, orders: Any, **_: Any) -> list[Scheduled]:
        return [Scheduled(name=each.name, code="stale") for each in orders]

    monkeypatch.setattr(broker, "plan", stale)
    assert await app.schedules.adeclare() == 0
    [said] = caplog.records
    assert (said.message, vars(said)["schedule"]) == ("schedule not written", "busy")
