"""A process testifies to the time only by calls that wrote it: no silence is taken for a leap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fairlead.broker.documents import DocumentChange
from fairlead.broker.flows import FlowOrder
from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.scripts import Script
from fairlead.broker.requests import Alter, Call, Fetch, LeaseRef, LimiterChange, QueueChange, Write
from fairlead.broker.schedules import ScheduleOrder
from fairlead.broker.sharded import ShardedBroker
from tests.support.clock import SetClock
from tests.support.flows import parts_of
from tests.support.servers import Running
from tests.support.store import NOW, completed, submit

HOUR = 3600.0
DOCUMENT = DocumentChange(kind="kind", name="name", value=b"value", ttl=60.0)
GONE = DocumentChange(kind="kind", name="name", value=None)
FLOW = parts_of("f", submit("m1"), submit("m2"))


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def broker(valkey: Running, clock: SetClock) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(valkey.url, clock=clock)
    yield broker
    await broker.close()


async def ahead(broker: RedisBroker, clock: SetClock) -> float:
    """By how much time is ahead of the clock for a process that has seen nothing yet."""
    fresh = RedisBroker(broker.address, clock=clock)
    found = (await fresh.promote()).now - clock.now
    await fresh.close()
    return found


async def test_a_named_reader_who_polls_all_night_does_not_make_time_fall_behind(
    broker: RedisBroker, clock: SetClock
) -> None:
    await broker.enqueue(Call("web", 1), [submit("first")])
    page = await broker.events(reader="hooks")
    for _ in range(40):
        clock.go_on(900.0)
        page = await broker.events(reader="hooks", after=page.last)
    await broker.enqueue(Call("web", 2), [submit("next", delay=10.0)])
    assert await ahead(broker, clock) == pytest.approx(0.0, abs=0.1)
    (found,) = await broker.find(["next"])
    assert found is not None
    assert found.due_at == pytest.approx(clock.now + 10.0, abs=0.1)


async def test_an_answer_that_is_given_again_is_a_witness_of_the_time(
    broker: RedisBroker, clock: SetClock
) -> None:
    await broker.enqueue(Call("web", 1), [submit("a")])
    clock.go_on(60.0)  # the reply was lost
    await broker.enqueue(Call("web", 1), [submit("a")])
    clock.go_on(1.0)
    await broker.enqueue(Call("web", 2), [submit("b")])
    assert await ahead(broker, clock) == pytest.approx(0.0, abs=0.1)
    clock.set_by(HOUR)  # and what it saw counts: this is a leap
    await broker.enqueue(Call("web", 3), [submit("c")])
    assert await ahead(broker, clock) == pytest.approx(-HOUR, abs=1.0)


async def test_a_look_into_an_outbox_is_no_witness_of_the_time(
    valkey: Running, clock: SetClock
) -> None:
    shards = {name: RedisBroker(valkey.url, shard=name, clock=clock) for name in ("0", "r", "v")}
    broker = ShardedBroker(shards, {"reports": "r", "video": "v"})
    await broker.enqueue(Call("web", 1), [submit("v0", queue="video")])
    clock.go_on(8 * HOUR)  # a quiet night
    assert await shards["v"].outbox(["0", "r"], 10) == [[], []]  # as the carrier does
    assert await shards["v"].confirm("r", [b"1\x1ft"]) == 0
    clock.go_on(2.0)
    await broker.enqueue(Call("web", 2), [submit("v1", queue="video")])
    (found,) = await broker.find(["v1"])
    assert found is not None
    assert found.enqueued_at == pytest.approx(clock.now, abs=0.1)
    await broker.close()


async def test_whatever_counts_as_a_witness_has_written_the_time(
    broker: RedisBroker, clock: SetClock, valkey: Running
) -> None:
    held: list[LeaseRef] = []

    async def lend(call: Call) -> None:
        reply = await broker.exchange(call, [], fetch=Fetch(queues=("default",), max=1))
        held[:] = [LeaseRef(each.message.id, call.incarnation, each.token) for each in reply.leased]
        assert held

    calls: dict[str, Callable[[Call], Awaitable[object]]] = {
        "enqueue": lambda call: broker.enqueue(call, [submit("a"), submit("b", delay=1e6)]),
        "exchange": lend,
        "write": lambda call: broker.write(
            call, [Write(lease=held[0], kind="progress", value=b"half")]
        ),
        "beat": lambda call: broker.beat(call.incarnation, held),
        "alter": lambda call: broker.alter(call, [Alter(id="b", action="cancel")]),
        "configure": lambda call: broker.configure(call, [LimiterChange(name="api")]),
        "declare": lambda call: broker.configure(call, [QueueChange(queue="mail")]),
        "purge": lambda call: broker.purge(call, "default"),
        "delete_queue": lambda call: broker.delete_queue(call, "mail"),
        "plan": lambda call: broker.plan(
            call, [ScheduleOrder(name="s", action="create", queue="default", next_at=NOW + 1e9)]
        ),
        "write_documents": lambda call: broker.write_documents(call, [DOCUMENT]),
        "delete_documents": lambda call: broker.write_documents(call, [GONE]),
        "note": lambda call: broker.note(call, "trail", [b"note"]),
        "no note": lambda call: broker.note(call, "trail", []),
        "order_worker": lambda call: broker.order_worker(call, "nobody", "pause"),
        "lead": lambda call: broker.lead("manager", "m1"),
        "stage": lambda call: broker.stage(call, FLOW[0]),
        "commit": lambda call: broker.commit(call, "f"),
        "alter_flow": lambda call: broker.alter_flow(call, FlowOrder(flow="f", action="cancel")),
        "no flow": lambda call: broker.alter_flow(call, FlowOrder(flow="no", action="cancel")),
        "give_back": lambda call: broker.give_back(call.incarnation),
        "sweep": lambda _: broker.sweep(),
        "promote": lambda _: broker.promote(),
        "deliver": lambda _: broker.deliver(),
        "tidy": lambda _: broker.tidy(),
        "tick": lambda _: broker.tick(),
        "watch": lambda call: broker.watch(call.incarnation, ["a", "b"]),
        "collect": lambda call: broker.collect(call.incarnation, 0, 0.0),
        "wait": lambda _: broker.wait(["default"], 0.0),
        "receive": lambda _: broker.receive("other", []),
        "repair": lambda _: broker.repair(apply=True),
        # These write nothing, or not the time.
        "pull": lambda _: broker.pull("a", ["key"]),
        "events": lambda _: broker.events(),
        "events, named": lambda _: broker.events(reader="hooks"),
        "events, named again": lambda _: broker.events(reader="hooks"),
        "outbox": lambda _: broker.outbox(["other"], 10),
        "confirm": lambda _: broker.confirm("other", [b"1\x1ft"]),
        "where": lambda _: broker.where(["a"]),
        "find": lambda _: broker.find(["a"]),
        "snapshot": lambda _: broker.snapshot(),
        "stats": lambda _: broker.stats("default"),
        "settings": lambda _: broker.settings(),
        "documents": lambda _: broker.documents("kind"),
        "notes": lambda _: broker.notes("trail"),
        "workers": lambda _: broker.workers(),
        "flows": lambda _: broker.flows(["f"]),
        "schedules": lambda _: broker.schedules(),
        "hello": lambda _: broker.hello(),
    }
    witnesses: set[str] = set()
    for number, (name, ask) in enumerate(calls.items(), start=1):
        for _ in range(2):  # the second one is answered from what was kept, if it has a number
            clock.go_on(60.0)
            await ask(Call("w1", number))
            if broker.wrote == clock.seconds:
                witnesses.add(name)
                written = valkey.numbers()["now"]
                assert written == pytest.approx(clock.now, abs=0.001), name
    silent = list(calls)[list(calls).index("repair") :]
    assert witnesses == calls.keys() - set(silent)


async def test_work_is_a_witness(broker: RedisBroker, clock: SetClock) -> None:
    await broker.enqueue(Call("web", 1), [submit("a")])
    reply = await broker.exchange(Call("w", 1), [], fetch=Fetch(queues=("default",), max=1))
    clock.set_by(HOUR)
    await broker.exchange(Call("w", 2), [completed(each) for each in reply.leased])
    assert await ahead(broker, clock) == pytest.approx(-HOUR, abs=1.0)


async def test_what_is_asked_after_a_silence_has_the_time_of_the_call(
    broker: RedisBroker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.enqueue(Call("web", 1), [submit("a")])
    clock.go_on(60.0)
    server = (await broker.here()).server
    run, asked = server.run, dict[str, float | None]()

    async def noted(script: Script, *args: Any, until: float | None = None, **options: Any) -> Any:
        asked[script.name] = until
        return await run(script, *args, until=until, **options)

    monkeypatch.setattr(server, "run", noted)
    until = asyncio.get_running_loop().time() + 5.0
    await broker.enqueue(Call("web", 2, until), [submit("b")])
    assert asked == {"enqueue": until, "hello": until}
