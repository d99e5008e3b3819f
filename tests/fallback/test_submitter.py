"""Where a task goes that is enqueued: to the broker, or into the spool."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fairlead.broker.requests import Call, Durability, QueueChange, Submission
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    InvalidInput,
    OutOfOrder,
    Refused,
    Unreachable,
)
from fairlead.model.options import Dependency
from fairlead.model.spool_errors import SpoolFull
from fairlead.spool import SpoolLimits
from tests.fallback.bench import Bench, submit

TROUBLE = [
    Unreachable("connection refused"),
    Ambiguous("the connection was lost during a call"),
    *(
        Refused(cause, "not now")
        for cause in (
            "busy", "clusterdown", "emptied", "forgetful", "loading", "misconf", "moving",
            "noreplicas", "oom",
        )
    ),
]  # fmt: skip


async def test_a_healthy_broker_gets_tasks_at_once_and_nothing_is_on_disk(bench: Bench) -> None:
    assert await bench.submit(submit("a"), submit("b")) == ["committed", "committed"]
    assert (await bench.client.submit(submit("c"))).durability == "committed"
    assert bench.fallback.state == "healthy"
    assert not bench.folder.exists()


@pytest.mark.parametrize("error", TROUBLE, ids=lambda e: getattr(e, "cause", type(e).__name__))
async def test_trouble_of_the_broker_leads_into_the_spool(bench: Bench, error: BrokerError) -> None:
    bench.fail(error)
    receipt = await bench.client.submit(submit("a"))
    assert (receipt.id, receipt.code, receipt.durability) == ("a", "accepted", "spooled")
    assert bench.fallback.is_spooled("a")
    assert bench.fallback.spool.depth == 1
    await bench.recover()
    await bench.drain()
    assert await bench.states("a") == ["queued"]
    assert not bench.fallback.is_spooled("a")
    assert bench.fallback.spool.depth == 0


@pytest.mark.parametrize(
    "error",
    [
        Refused("auth", "wrong password"),
        Refused("layout", "another release"),
        InvalidInput("no"),
        OutOfOrder("me", 1, 2),
    ],
)
async def test_what_the_broker_means_is_raised(bench: Bench, error: Exception) -> None:
    bench.fail(error)
    with pytest.raises(type(error)):
        await bench.client.submit(submit("a"))
    assert bench.fallback.spool.depth == 0
    assert bench.fallback.state == "healthy"


async def test_a_refusal_about_the_task_is_no_outage(bench: Bench) -> None:
    await bench.configure(QueueChange(queue="default", max_waiting=1))
    receipts = await bench.client.submit_many([submit("a"), submit("b")])
    assert [receipt.code for receipt in receipts] == ["accepted", "queue_full"]
    assert bench.fallback.spool.depth == 0


async def test_a_call_is_repeated_once_and_then_nobody_waits_for_the_broker(bench: Bench) -> None:
    bench.fail()
    await bench.submit(submit("a"))
    assert len(bench.broker.calls) == 2
    assert bench.fallback.state == "spooling"
    await bench.submit(submit("b"))
    await bench.client.submit(submit("c"))
    assert len(bench.broker.calls) == 2
    assert bench.fallback.spool.depth == 3


async def test_one_bad_round_makes_no_outage(bench: Bench) -> None:
    class Once(Unreachable):
        pass

    bench.fail(Once("reset"))
    inner, calls = bench.broker.enqueue, 0

    async def enqueue(call: object, submissions: object) -> object:
        nonlocal calls
        calls += 1
        bench.broker.error = bench.broker.error if calls == 1 else None
        return await inner(call, submissions)  # type: ignore[arg-type]

    bench.broker.enqueue = enqueue  # type: ignore[method-assign, assignment]
    assert (await bench.client.submit(submit("a"))).durability == "committed"
    assert bench.fallback.state == "healthy"
    assert bench.fallback.outages.changes == 2  # suspect, and healthy again


async def test_a_silent_broker_costs_the_time_of_silence_once(bench: Bench) -> None:
    tried = 0

    async def hang(call: Call, _: object) -> object:
        nonlocal tried
        tried += 1
        await asyncio.sleep((call.until or 0.0) - asyncio.get_running_loop().time())
        raise Ambiguous("there was no reply in time")

    bench.broker.enqueue = hang  # type: ignore[method-assign, assignment]
    began = time.monotonic()
    assert (await bench.client.submit(submit("a"))).durability == "spooled"
    assert time.monotonic() - began < 5.0
    assert bench.fallback.state == "spooling"
    before = tried
    assert (await bench.client.submit(submit("b"))).durability == "spooled"
    assert tried == before


async def test_a_caller_without_time_does_not_make_an_outage(bench: Bench) -> None:
    enqueue = bench.broker.enqueue

    async def slow(call: object, submissions: object) -> object:
        await asyncio.sleep(0.15)
        raise Ambiguous("there was no reply in time")

    bench.broker.enqueue = slow  # type: ignore[method-assign, assignment]
    receipt = await bench.client.submit(submit("a"), 0.1)
    assert receipt.durability == "spooled"
    assert bench.fallback.state == "healthy"
    bench.broker.enqueue = enqueue  # type: ignore[method-assign]
    await bench.drain()
    assert await bench.states("a") == ["queued"]


async def test_a_call_that_wants_the_broker_raises_at_once_while_it_is_away(bench: Bench) -> None:
    bench.fail()
    await bench.submit(submit("a"))
    calls = len(bench.broker.calls)
    with pytest.raises(Unreachable):
        await bench.client.submit(submit("b"), durability="committed")
    with pytest.raises(Unreachable):
        await bench.client.submit_many([submit("c")], durability="committed")
    assert len(bench.broker.calls) == calls
    await bench.recover()
    receipt = await bench.client.submit(submit("d"), durability="committed")
    assert receipt.durability == "committed"


async def test_a_failed_call_that_wants_the_broker_tells_of_the_outage(bench: Bench) -> None:
    bench.fail()
    with pytest.raises(Unreachable):
        await bench.client.submit(submit("a"), 0.1, "committed")
    assert bench.fallback.state == "spooling"
    assert bench.fallback.spool.depth == 0


async def test_a_task_that_depends_on_a_spooled_one_is_spooled_behind_it(bench: Bench) -> None:
    bench.fail()
    await bench.submit(submit("parent"))
    await bench.recover()  # not drained yet
    durabilities = await bench.submit(
        submit("child", depends_on=["parent"]),
        submit("free"),
        submit("grandchild", depends_on=["child"]),
    )
    assert durabilities == ["spooled", "committed", "spooled"]
    with pytest.raises(Unreachable):
        await bench.client.submit(submit("x", depends_on=["parent"]), durability="committed")
    await bench.drain()
    assert await bench.states("parent", "child", "grandchild", "free") == [
        "queued", "deferred", "deferred", "queued",
    ]  # fmt: skip
    assert (await bench.client.submit(submit("late", depends_on=["parent"]))).durability == (
        "committed"
    )


async def test_a_full_spool_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "spool", limits=SpoolLimits(max_count=2))
    bench.fail()
    await bench.submit(submit("a"), submit("b"))
    with pytest.raises(SpoolFull) as full:
        await bench.client.submit(submit("c"))
    assert (full.value.setting, full.value.limit, full.value.id) == ("max_count", 2, "c")
    assert not bench.fallback.is_spooled("c")
    await bench.recover()
    await bench.drain()
    assert await bench.states("a", "b", "c") == ["queued", "queued", None]
    bench.close()


async def test_an_ambiguous_call_that_finds_the_spool_full_stays_ambiguous(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "spool", limits=SpoolLimits(max_count=1))
    bench.fail()
    await bench.submit(submit("a"))
    await bench.recover()
    bench.fail(Ambiguous("the connection was lost during a call"))
    bench.broker.is_executed = True
    with pytest.raises(Ambiguous) as doubt:
        await bench.client.submit(submit("b"))
    assert any("spool is full" in note for note in doubt.value.__notes__)
    bench.close()


async def test_what_the_broker_would_not_take_is_not_spooled_either(bench: Bench) -> None:
    bench.fail()
    await bench.submit(submit("a"))
    with pytest.raises(InvalidInput):
        await bench.client.submit(submit("b", delay=-1.0))
    assert bench.fallback.spool.depth == 1


async def test_a_dependency_that_was_refused_at_the_drain_does_not_count_as_done(
    bench: Bench,
) -> None:
    bench.fail()
    await bench.submit(submit("orphan", depends_on=[Dependency("nobody")]))
    await bench.recover()
    await bench.drain()
    receipt = await bench.client.submit(submit("child", depends_on=["orphan"]))
    assert receipt.code == "unknown_dependency"


async def test_a_full_spool_is_no_answer_to_a_task_that_the_broker_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "spool", limits=SpoolLimits(max_count=1))
    bench.fail()
    await bench.submit(submit("parent"))
    await bench.recover()
    free, child = await asyncio.gather(
        bench.client.submit(submit("free")),
        bench.client.submit(submit("child", depends_on=["parent"])),
        return_exceptions=True,
    )
    assert isinstance(child, SpoolFull)
    assert child.id == "child"
    assert not isinstance(free, BaseException)
    assert free.durability == "committed"
    assert bench.broker.calls[-1] == ["free"]  # they shared a trip
    with pytest.raises(SpoolFull) as full:
        await bench.submit(submit("other"), submit("late", depends_on=["parent"]))
    assert any("may have been accepted" in note for note in full.value.__notes__)
    assert await bench.states("free", "other", "late") == ["queued", "queued", None]
    bench.close()


async def test_a_broker_that_refuses_a_task_does_not_refuse_the_spooled_one_beside_it(
    bench: Bench,
) -> None:
    bench.fail()
    await bench.submit(submit("parent"))
    await bench.recover()
    bench.fail(Refused("auth", "wrong password"))
    free, child = await asyncio.gather(
        bench.client.submit(submit("free")),
        bench.client.submit(submit("child", depends_on=["parent"])),
        return_exceptions=True,
    )
    assert isinstance(free, Refused)
    assert not isinstance(child, BaseException)
    assert child.durability == "spooled"


@pytest.mark.parametrize("durability", ["committed", "spooled"])
async def test_a_caller_without_time_tells_nothing_about_the_broker(
    bench: Bench, durability: Durability
) -> None:
    enqueue = bench.broker.enqueue

    async def slow(call: Call, _: object) -> object:
        await asyncio.sleep((call.until or 0.0) - asyncio.get_running_loop().time())
        raise Ambiguous("there was no reply in time")

    bench.broker.enqueue = slow  # type: ignore[method-assign, assignment]
    hurried = bench.client.submit(submit("a"), 0.05, durability)
    behind = bench.client.submit(submit("b"), 0.06, durability)
    await asyncio.gather(hurried, behind, return_exceptions=True)
    assert bench.fallback.state == "healthy"
    bench.broker.enqueue = enqueue  # type: ignore[method-assign]
    assert (await bench.client.submit(submit("c"))).durability == "committed"


async def test_silence_towards_a_call_that_wants_the_broker_is_an_outage(bench: Bench) -> None:
    async def hang(call: Call, _: object) -> object:
        await asyncio.sleep((call.until or 0.0) - asyncio.get_running_loop().time())
        raise Ambiguous("there was no reply in time")

    bench.broker.enqueue = hang  # type: ignore[method-assign, assignment]
    with pytest.raises(Ambiguous):
        await bench.client.submit(submit("a"), 0.25, "committed")
    assert bench.fallback.state == "spooling"
    with pytest.raises(Unreachable) as known:
        await bench.client.submit(submit("b"), durability="committed")
    assert type(known.value) is Unreachable


async def test_one_caller_without_time_does_not_spool_the_tasks_of_the_others(
    bench: Bench,
) -> None:
    enqueue = bench.broker.enqueue

    async def slow(call: Call, submissions: list[Submission]) -> object:
        left = (call.until or 0.0) - asyncio.get_running_loop().time()
        await asyncio.sleep(min(left, 0.1))
        if left < 0.1:
            raise Ambiguous("there was no reply in time")
        return await enqueue(call, submissions)

    bench.broker.enqueue = slow  # type: ignore[method-assign, assignment]
    receipts = await asyncio.gather(
        *(bench.client.submit(submit(f"t{number}")) for number in range(5)),
        bench.client.submit(submit("hurried"), 0.03),
        *(bench.client.submit(submit(f"u{number}")) for number in range(5)),
    )
    assert [each.id for each in receipts if each.durability == "spooled"] == ["hurried"]
    assert bench.broker.calls == [[*(f"t{n}" for n in range(5)), *(f"u{n}" for n in range(5))]]
    assert bench.fallback.state == "healthy"
    await bench.client.close()
