"""How what is in the spool gets to the broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.broker.requests import Call, Fetch, LeaseRef, QueueChange
from fairlead.fallback import codec
from fairlead.fallback.codec import (
    Doubted,
    SpooledTask,
    decode_submission,
    encode_submission,
    moment_now,
)
from fairlead.model.errors import Ambiguous, InvalidInput, Refused
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.options import Dependency
from fairlead.model.outage import Moment
from fairlead.spool import Entry, Kind
from tests.fallback.bench import Bench, submit


async def spooled(bench: Bench, *submissions: object) -> None:
    """Put these into the spool, and bring the broker back."""
    bench.fail()
    assert set(await bench.submit(*submissions)) == {"spooled"}  # type: ignore[arg-type]
    await bench.recover()


async def test_tasks_go_in_the_order_of_their_calls(bench: Bench) -> None:
    ids = [f"t{number:03}" for number in range(600)]
    await spooled(bench, *(submit(id) for id in ids))
    bench.broker.calls.clear()
    await bench.drain()
    assert [id for call in bench.broker.calls for id in call] == ids
    assert max(map(len, bench.broker.calls)) <= 256
    assert await bench.fetched(128) == ids[:128]
    assert bench.fallback.state == "healthy"


async def test_what_the_broker_has_already_is_done(bench: Bench) -> None:
    bench.fail(Ambiguous("the reply was lost"))
    bench.broker.is_executed = True
    assert await bench.submit(submit("a")) == ["spooled"]
    assert await bench.states("a") == ["queued"]
    await bench.recover()
    await bench.drain()
    assert bench.fallback.spool.depth == 0
    assert bench.rejected() == []
    assert await bench.fetched() == ["a"]


async def test_a_refused_task_leaves_a_record_that_says_what_it_was(bench: Bench) -> None:
    await bench.submit(submit("taken"))
    await spooled(
        bench,
        submit("taken", text=b"other"),
        submit("orphan", depends_on=[Dependency("nobody")], queue="mail", tenant="bob"),
        submit("fenced", fence=LeaseRef("gone", "worker", 7)),
        submit("fine"),
    )
    await bench.drain()
    assert await bench.states("taken", "orphan", "fenced", "fine") == [
        "queued", None, None, "queued",
    ]  # fmt: skip
    found = bench.rejected()
    assert [each.code for each in found] == ["conflict", "unknown_dependency", "fenced"]
    for word in ("orphan", "work", "bob", "mail", "nobody"):
        assert word in found[1].message
    assert b"other" not in found[0].message.encode()
    assert bench.fallback.spool.depth == 0
    assert bench.fallback.ids.refused("orphan") == "unknown_dependency (nobody)"


async def test_a_full_queue_holds_back_the_tenant_that_filled_it_and_no_other(
    bench: Bench,
) -> None:
    await bench.configure(QueueChange(queue="default", max_tenant_waiting=2))
    await spooled(
        bench,
        *(submit(f"a{n}", tenant="ann") for n in range(4)),
        *(submit(f"b{n}", tenant="bob") for n in range(2)),
        submit("other", tenant="ann", queue="other"),
        submit("child", tenant="bob", queue="other", depends_on=["a3"]),
    )
    await bench.drain()
    assert await bench.states("a0", "a1", "a2", "b0", "b1", "other", "child") == [
        "queued", "queued", None, "queued", "queued", "queued", None,
    ]  # fmt: skip
    assert bench.fallback.spool.depth == 3
    assert bench.rejected() == []
    assert sorted(await bench.fetched(4)) == ["a0", "a1", "b0", "b1"]
    await spooled(bench, submit("c0", tenant="cat"))
    await bench.drain()
    assert await bench.states("a2", "c0") == [None, "queued"]  # it is not asked in a spin
    bench.now += 1.5
    await bench.drain()
    assert await bench.states("a2", "a3", "child") == ["queued", "queued", "deferred"]
    assert bench.fallback.spool.depth == 0


async def test_a_unique_key_is_settled_at_the_drain_and_children_follow(bench: Bench) -> None:
    await bench.submit(submit("holder", unique="key"))
    await spooled(
        bench, submit("second", unique="key"), submit("child", depends_on=["second"]), submit("x")
    )
    await bench.drain()
    assert bench.fallback.ids.holder("second") == "holder"
    assert await bench.states("second", "child") == [None, "deferred"]
    worker = "worker"
    reply = await bench.broker.inner.exchange(
        Call(worker, 1), fetch=Fetch(queues=("default",), max=1)
    )
    [lease] = reply.leased
    done = Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED)
    await bench.broker.inner.exchange(Call(worker, 2), [done])
    assert await bench.states("child") == ["queued"]


async def test_delays_and_deadlines_count_from_the_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = moment_now()
    await spooled(
        bench,
        submit("later", delay=100.0),
        submit("due", delay=5.0),
        submit("expired", deadline=5.0),
        submit("in_time", deadline=100.0),
    )
    then = Moment(began.wall - 7_777.0, began.boot + 10.0, began.boot_id)  # the clock was set
    monkeypatch.setattr("fairlead.fallback.drainer.moment_now", lambda: then)
    await bench.drain()
    assert await bench.states("later", "due", "expired", "in_time") == [
        "scheduled", "queued", "dead", "queued",
    ]  # fmt: skip
    later, _, expired, in_time = await bench.broker.inner.find(
        ["later", "due", "expired", "in_time"]
    )
    assert later is not None
    assert expired is not None
    assert in_time is not None
    assert later.due_at == pytest.approx(time.time() + 90.0, abs=5.0)
    assert in_time.deadline_at == pytest.approx(time.time() + 90.0, abs=5.0)
    assert expired.reason == "expired"


async def test_what_cannot_be_read_is_put_aside_and_others_go_on(bench: Bench) -> None:
    older = codec._encode((0, "of a release that never was"))
    entries = [Entry(Kind.SUBMISSION, b"junk"), Entry(Kind.SUBMISSION, older)]
    await bench.fallback.spool.aappend(entries)
    await spooled(bench, submit("fine"))
    await bench.drain()
    assert [each.code for each in bench.rejected()] == ["unreadable", "unreadable"]
    assert await bench.states("fine") == ["queued"]


async def test_a_record_of_a_later_release_stays_for_that_and_others_go_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    later = codec._encode((99, "of a later release"))
    await bench.fallback.spool.aappend([Entry(Kind.SUBMISSION, later)] * 2)
    await spooled(bench, submit("fine"))
    for _ in range(2):
        await bench.drain()
    assert bench.rejected() == []
    assert await bench.states("fine") == ["queued"]
    assert [each.payload for each in bench.fallback.spool.pending()] == [later, later]
    assert bench.drainer.left == 2
    assert bench.fallback.state == "healthy"  # it is not the broker that is behind
    said = [each for each in caplog.messages if "later release" in each]
    assert len(said) == 1
    assert "version 99; this release reads 2" in said[0]


async def test_a_broker_that_goes_away_again_finds_the_rest_where_it_was(bench: Bench) -> None:
    await spooled(bench, *(submit(f"t{number:03}") for number in range(300)))
    await bench.drainer.step()
    bench.fail()
    await bench.drain()
    assert bench.fallback.state == "spooling"
    assert 0 < bench.fallback.spool.depth < 300
    calls = len(bench.broker.calls)
    await bench.drain()
    assert len(bench.broker.calls) == calls  # not even tried
    await bench.recover()
    await bench.drain()
    assert None not in await bench.states(*(f"t{number:03}" for number in range(300)))
    assert bench.fallback.spool.depth == 0


async def test_a_broker_that_refuses_everything_is_asked_again_in_a_while(bench: Bench) -> None:
    await spooled(bench, submit("a"))
    bench.fail(Refused("auth", "wrong password"))
    await bench.drain()
    calls = len(bench.broker.calls)
    bench.broker.error = None
    await bench.drain()
    assert len(bench.broker.calls) == calls
    bench.now += 10.0
    await bench.drain()
    assert await bench.states("a") == ["queued"]


async def test_one_bad_task_of_a_batch_does_not_keep_the_others(bench: Bench) -> None:
    await spooled(bench, submit("a"), submit("b"), submit("c"))
    enqueue = bench.broker.enqueue

    async def picky(call: Call, submissions: list[object]) -> object:
        if any(each.message.id == "b" for each in submissions):  # type: ignore[attr-defined]
            raise InvalidInput("not this one")
        return await enqueue(call, submissions)  # type: ignore[arg-type]

    bench.broker.enqueue = picky  # type: ignore[method-assign, assignment]
    await bench.drain()
    assert await bench.states("a", "b", "c") == ["queued", None, "queued"]
    assert [each.code for each in bench.rejected()] == ["invalid"]


@settings(max_examples=30, deadline=None)
@given(
    delay=st.floats(0, 1e6),
    deadline=st.none() | st.floats(0, 1e6),
    text=st.binary(max_size=50),
    unique=st.sampled_from(["", "key"]),
    known=st.booleans(),
    is_fenced=st.booleans(),
)
def test_a_spooled_task_is_read_as_it_was_written(
    delay: float, deadline: float | None, text: bytes, unique: str, known: bool, is_fenced: bool
) -> None:
    made = submit(
        "id",
        delay=delay,
        deadline=deadline,
        text=text,
        unique=unique,
        depends_on=[Dependency("parent", known=known)],
        fence=LeaseRef("a", "b", 2**60) if is_fenced else None,
    )
    moment = moment_now()
    doubt = Doubted("me", 7, 3) if known else None
    task = SpooledTask(made, moment, doubt)
    assert decode_submission(encode_submission(task)) == task


async def test_a_dead_sibling_s_tasks_are_adopted(tmp_path: Path) -> None:
    first = Bench(tmp_path / "spool")
    first.fail()
    await first.submit(submit("a"), submit("b"))
    first.close()  # as at the end of its process
    second = Bench(tmp_path / "spool", inner=first.broker.inner)
    assert second.fallback.spool.adopt() == 2
    await second.drain()
    assert await second.states("a", "b") == ["queued", "queued"]
    second.close()


async def test_a_task_whose_reply_was_lost_does_not_run_again_once_it_is_forgotten(
    bench: Bench,
) -> None:
    bench.fail(Ambiguous("the reply was lost"))
    bench.broker.is_executed = True
    assert await bench.submit(submit("first"), submit("direct")) == ["spooled", "spooled"]
    await bench.recover()
    await bench.configure(QueueChange(queue="default", keep_completed=0.0))
    await forgotten(bench, "direct")
    await bench.drain()
    assert bench.fallback.spool.depth == 0
    assert await bench.fetched() == []
    # And the same for a batch of the drain itself.
    bench.broker.is_executed = False
    await spooled(bench, submit("drained"))
    bench.fail(Ambiguous("the reply was lost"))
    bench.broker.is_executed = True
    await bench.drain()
    await bench.recover()
    await forgotten(bench, "drained")
    await bench.drain()
    assert bench.fallback.spool.depth == 0
    assert await bench.fetched() == []


async def forgotten(bench: Bench, id: str) -> None:
    """Run all tasks, and let the broker forget them."""
    store = bench.broker.inner
    reply = await store.exchange(Call("w", time.time_ns()), fetch=Fetch(queues=("default",), max=9))
    ends = [
        Settlement(id=each.message.id, token=each.token, to=State.COMPLETED)
        for each in reply.leased
    ]
    await store.exchange(Call("w", time.time_ns()), ends)
    while (await store.tidy()).more:
        pass
    assert await bench.states(id) == [None]
