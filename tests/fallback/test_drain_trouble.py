"""What a drain does where a disk, a task or the way to the broker is in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead.broker.requests import Call, QueueChange, Receipt, Submission
from fairlead.model.errors import Ambiguous, Refused
from fairlead.model.options import Dependency
from fairlead.model.spool_errors import SpoolFailed
from tests.fallback.bench import Bench, submit
from tests.fallback.test_drainer import spooled


async def test_a_rejection_that_cannot_be_written_leaves_only_its_own_task(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.submit(submit("same", text=b"one"))
    await spooled(
        bench,
        submit("before"),
        submit("same", text=b"two"),
        submit("child", depends_on=["same"]),
        submit("after"),
    )

    def full(*_: object) -> None:
        raise SpoolFailed("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bench.fallback.spool, "reject", full)
        await bench.drain()
        await bench.drain()
    assert bench.fallback.spool.depth == 2  # the task itself, and the one that depends on it
    assert bench.broker.calls[-1] == ["same"]
    assert bench.fallback.is_spooled("same")
    assert [each.levelname for each in caplog.records if "recorded" in each.message] == ["WARNING"]
    await bench.drain()
    assert bench.fallback.spool.depth == 0
    assert [each.code for each in bench.rejected()] == ["conflict"]


async def test_a_task_that_the_broker_cannot_take_does_not_stop_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await spooled(
        bench,
        submit("hurt"),
        submit("a"),
        submit("child", depends_on=["hurt"]),
        submit("harmed"),
        submit("b"),
    )
    enqueue, damaged = bench.broker.enqueue, {"hurt", "harmed"}

    async def picky(call: Call, submissions: list[object]) -> object:
        if any(each.message.id in damaged for each in submissions):  # type: ignore[attr-defined]
            bench.broker.calls.append([each.message.id for each in submissions])  # type: ignore[attr-defined]
            raise Refused("server", "a field is damaged")
        return await enqueue(call, submissions)  # type: ignore[arg-type]

    bench.broker.enqueue = picky  # type: ignore[method-assign, assignment]
    await bench.drain()
    assert await bench.states("hurt", "a", "child", "harmed", "b") == [
        None, "queued", None, None, "queued",
    ]  # fmt: skip
    calls = len(bench.broker.calls)
    await bench.drain()
    assert len(bench.broker.calls) == calls  # each has a pause of its own
    for _ in range(5):
        bench.now += 8.0
        await bench.drain()
    assert len(bench.broker.calls) < calls + 2 * 5  # which grows
    assert len([each for each in caplog.records if "refuses a task" in each.message]) == 2
    damaged.clear()
    bench.now += 60.0
    await bench.drain()
    assert await bench.states("hurt", "child", "harmed") == ["queued", "deferred", "queued"]
    assert bench.fallback.spool.depth == 0


async def test_a_broker_that_refuses_two_in_a_row_is_not_asked_about_the_rest(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await spooled(bench, *(submit(f"t{number}") for number in range(50)))
    bench.fail(Refused("auth", "wrong password"))
    calls = len(bench.broker.calls)
    await bench.drain()
    assert len(bench.broker.calls) == calls + 3  # all of them, and two by themselves
    assert len([each for each in caplog.records if "refuses" in each.message]) == 2
    bench.broker.error = None
    bench.now += 6.0
    await bench.drain()
    assert bench.fallback.spool.depth == 2
    bench.now += 3.0
    await bench.drain()
    assert bench.fallback.spool.depth == 0


@pytest.mark.parametrize("speed", [2_000_000, 500_000])
async def test_a_batch_that_takes_its_time_gets_through_and_is_no_outage(
    tmp_path: Path, speed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "spool", silence=0.05)
    await spooled(bench, *(submit(f"t{n}", text=b"x" * 50_000) for n in range(4)))
    enqueue = bench.broker.enqueue

    async def slow(call: Call, submissions: list[Submission]) -> object:
        takes = sum(len(each.message.body) for each in submissions) / speed
        left = (call.until or 0.0) - asyncio.get_running_loop().time()
        if takes > left > 0.0:
            await asyncio.sleep(left)
            raise Ambiguous("there was no reply in time")
        await asyncio.sleep(takes)
        return await enqueue(call, submissions)

    bench.broker.enqueue = slow  # type: ignore[method-assign, assignment]
    monkeypatch.setattr("fairlead.fallback.latency._SPEED", 2_000_000)
    changes = bench.fallback.outages.changes
    for _ in range(5):
        await bench.drain()
        assert bench.fallback.state in ("draining", "healthy")
    assert bench.fallback.spool.depth == 0
    assert bench.fallback.outages.changes == changes + 1  # healthy
    bench.close()


async def test_a_broker_that_falls_silent_in_a_drain_is_away(bench: Bench) -> None:
    await spooled(bench, submit("a"))

    async def hang(call: Call, _: object) -> object:
        await asyncio.sleep((call.until or 0.0) - asyncio.get_running_loop().time())
        raise Ambiguous("there was no reply in time")

    bench.broker.enqueue = hang  # type: ignore[method-assign, assignment]
    await bench.drain()
    assert bench.fallback.state == "spooling"


async def test_a_broker_that_does_not_say_what_became_of_a_call_is_away(bench: Bench) -> None:
    """A drain that holds only a task in doubt asks about it first, and that may fail too."""
    bench.fail(Ambiguous("the reply was lost"))
    assert await bench.submit(submit("doubted")) == ["spooled"]
    await bench.recover()
    states = [bench.fallback.state]
    bench.fail()
    await bench.drain()
    states.append(bench.fallback.state)
    assert states == ["draining", "spooling"]
    await bench.recover()
    await bench.drain()
    assert await bench.states("doubted") == ["queued"]


async def test_a_spool_that_waits_is_not_read_all_the_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.configure(QueueChange(queue="default", max_waiting=1))
    await spooled(bench, *(submit(f"t{number}") for number in range(10)))
    pending, read = bench.fallback.spool.pending, list[int]()

    def costly(after: int, limit: int) -> object:
        found = pending(after, limit)
        read.append(len(found))
        bench.now += 0.1 * len(found)
        return found

    monkeypatch.setattr(bench.fallback.spool, "pending", costly)
    await bench.drain()
    assert read == [10, 0]
    for _ in range(10):  # a second each
        bench.now += 1.0
        await bench.drain()
    assert sum(read) == 10
    assert bench.drainer.left == 9
    # What comes meanwhile does not wait, unless it is behind one that does.
    entries = [submit("new", queue="other"), submit("child", queue="other", depends_on=["t9"])]
    await bench.fallback.keep(entries)
    await bench.drain()
    assert await bench.states("new", "child") == ["queued", None]
    assert bench.fallback.state == "draining"
    await bench.configure(QueueChange(queue="default", max_waiting=100))
    bench.now += 20.0
    await bench.drain()
    assert bench.fallback.spool.depth == 0
    await bench.drain()
    assert bench.fallback.outages.state == "healthy"


async def test_a_drain_does_not_rest_for_a_broker_that_took_long_to_refuse(bench: Bench) -> None:
    """A rest is for reading a large spool again, not for waiting."""
    await spooled(bench, submit("a"))
    enqueue = bench.broker.enqueue

    async def slow(call: Call, submissions: Sequence[Submission]) -> list[Receipt]:
        bench.now += 5.0
        raise Refused("damaged", "its data are damaged")

    bench.broker.enqueue = slow  # type: ignore[method-assign]
    await bench.drain()
    assert bench.drainer.left == 1
    bench.broker.enqueue = enqueue  # type: ignore[method-assign]
    bench.now += 10.0  # the task itself is tried again after eight seconds
    await bench.drain()
    assert await bench.states("a") == ["queued"]


async def test_one_task_that_was_left_by_a_long_drain_waits_for_no_long_rest(bench: Bench) -> None:
    """A rest is for reading again what was left, not for what was sent."""
    await bench.configure(QueueChange(queue="small", max_waiting=1))
    await bench.submit(submit("first", queue="small"))
    await spooled(bench, *(submit(f"t{n}") for n in range(99)), submit("last", queue="small"))
    bench.drainer._cost = 10.0  # as of a large spool, or a machine that is busy
    await bench.drain()
    assert bench.drainer.left == 1
    await bench.configure(QueueChange(queue="small", max_waiting=2))
    bench.now += 2.5
    await bench.drain()
    assert await bench.states("last") == ["queued"]


async def test_a_change_of_state_ends_the_rest_of_a_drain(bench: Bench) -> None:
    await spooled(bench, submit("a"))
    bench.fail()
    bench.drainer._cost = 10.0  # as of a large spool
    await bench.drain()
    assert bench.fallback.state == "spooling"
    await bench.recover()
    await bench.drain()
    assert await bench.states("a") == ["queued"]


async def test_many_refused_tasks_are_a_line_and_a_number(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.submit(*(submit(f"t{n}", text=b"one") for n in range(5)), submit("u", unique="u"))
    await spooled(
        bench,
        *(submit(f"t{n}", text=b"two") for n in range(5)),
        submit("orphan", depends_on=[Dependency("nobody")]),
        *(submit(f"u{n}", unique="u") for n in range(3)),
    )
    with caplog.at_level("INFO", "fairlead.fallback"):
        await bench.drain()
    assert len(bench.rejected()) == 6
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert [vars(each)["code"] for each in errors] == [
        "conflict", "unknown_dependency", "conflict",
    ]  # fmt: skip
    assert vars(errors[0])["id"] == "t0"
    assert errors[-1].message.endswith("4 more (conflict)")
    assert len([each for each in caplog.records if "unique key" in each.message]) == 2
    caplog.clear()
    await bench.drain()
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
