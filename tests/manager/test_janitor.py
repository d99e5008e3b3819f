"""Rows that run for long, and rows that are old."""

from __future__ import annotations

import pytest

from fairlead.broker import Caller
from fairlead.broker.requests import Alter
from fairlead.model.ledger_errors import LostLeadership
from fairlead.runtime.ids import new_id
from tests.manager.bench import Bench, submission
from tests.support.servers import Running


async def running(bench: Bench, count: int = 3) -> list[str]:
    """Tasks that a worker has, in the broker and in the ledger."""
    ids = await bench.add(count=count)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.fetch()
    await bench.recorder(term).catch_up()
    assert await bench.states() == {"running": count}
    return ids


async def test_what_the_broker_still_runs_is_left_alone(bench: Bench) -> None:
    await running(bench)
    await bench.age(400.0)
    janitor = bench.janitor(await bench.lead())
    assert await janitor.tend_once() is False
    assert await bench.states() == {"running": 3}
    assert bench.counts["looked_at"] == 3
    assert bench.counts["recovered"] == 0


async def test_what_the_broker_has_lost_is_sent_three_times_and_then_dead(
    bench: Bench, valkey: Running
) -> None:
    (id,) = await running(bench, 1)
    term = await bench.lead()
    for number in range(1, 4):
        valkey.admin("FLUSHALL")
        term = await bench.lead()
        await bench.age(400.0)
        await bench.janitor(term).tend_once()
        state, reason, recoveries = (await bench.rows("state", "reason", "recoveries"))[id]
        assert (state, reason, recoveries) == ("pending", "lost", number)
        await bench.dispatcher(term).dispatch_all()
        assert [each.message.id for each in await bench.fetch()] == [id]
        await bench.recorder(term).catch_up()
    valkey.admin("FLUSHALL")
    term = await bench.lead()
    await bench.age(400.0)
    await bench.janitor(term).tend_once()
    assert (await bench.rows("state", "reason"))[id] == ("dead", "lost")
    assert (bench.counts["recovered"], bench.counts["lost"]) == (3, 1)


async def test_what_ended_and_was_forgotten_meanwhile_is_not_sent_again(bench: Bench) -> None:
    """The broker does not know it, because it is over: the events tell, and the row has moved."""
    ids = await bench.add(count=2)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    leases = await bench.fetch()
    await bench.recorder(term).catch_up()
    await bench.age(400.0)
    await bench.complete(leases)
    orders = [Alter(id=id, action="delete") for id in ids]
    await Caller(new_id()).call(lambda call: bench.store.alter(call, orders))
    assert await bench.store.find(ids) == [None, None]
    await bench.janitor(term).tend_once()
    assert await bench.states() == {"completed": 2}
    assert bench.counts["recovered"] == 0


async def test_a_row_that_moved_on_since_it_was_read_stays(bench: Bench, valkey: Running) -> None:
    (id,) = await running(bench, 1)
    valkey.admin("FLUSHALL")
    term = await bench.lead()
    entry, index = (await bench.rows("last_entry", "last_index"))[id]
    for stale in ((entry - 1, index), (entry, index + 1)):
        moved = await bench.ledger.recover_tasks(
            term=term.number, ids=[id], entries=[stale[0]], indexes=[stale[1]]
        )
        assert moved == []
        moved = await bench.ledger.send_again(
            term=term.number, ids=[id], entries=[stale[0]], indexes=[stale[1]]
        )
        assert moved == []
    assert await bench.states() == {"running": 1}


async def test_old_rows_are_removed_in_batches(bench: Bench) -> None:
    await bench.add(count=1_500)
    await bench.sql(
        "update fairlead.tasks set state = 'completed', finished_at = now() where mod(seq, 3) > 0"
    )
    kept = (await bench.states())["pending"]
    await bench.age(100.0)
    term = await bench.lead()
    assert await bench.janitor(term, keep=1_000.0).tend_once() is False
    assert bench.counts["removed"] == 0
    assert await bench.janitor(term, keep=60.0).tend_once() is False
    assert await bench.states() == {"pending": kept}
    assert bench.counts["removed"] == 1_500 - kept


async def test_an_earlier_term_removes_nothing(bench: Bench) -> None:
    await bench.add(count=3)
    await bench.sql("update fairlead.tasks set state = 'completed', finished_at = now()")
    await bench.age(100.0)
    old = await bench.lead("old")
    await bench.lead("new")
    with pytest.raises(LostLeadership):
        await bench.janitor(old, keep=60.0).tend_once()
    assert await bench.states() == {"completed": 3}


async def test_a_member_of_a_lost_flow_does_not_end_before_its_flow_comes_again(
    bench: Bench, valkey: Running
) -> None:
    ids = await bench.add_flow()
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.fetch(1)
    await bench.recorder(term).catch_up()
    valkey.admin("FLUSHALL")
    term = await bench.lead()
    await bench.age(301.0)
    await bench.janitor(term).tend_once()  # before the auditor has looked
    assert (await bench.rows("state"))[ids[0]] == "running"
    await bench.auditor(term).audit_once()
    await bench.dispatcher(term).dispatch_all()
    assert await bench.run_all() == ids


async def test_workers_are_removed_long_after_they_were_heard_of(bench: Bench) -> None:
    for name, days in (("gone", 70), ("old", 50), ("new", 0)):
        await bench.sql(
            "insert into fairlead.workers (incarnation, seen_at)"
            " values (%s, now() - make_interval(days => %s))",
            name,
            days,
        )
    await bench.janitor(await bench.lead()).tend_once()
    left = await bench.sql("select incarnation from fairlead.workers order by 1")
    assert left == [("new",), ("old",)]


async def test_a_row_that_decides_about_a_task_to_come_is_kept(bench: Bench) -> None:
    await bench.add(submission("t:parent"), submission("t:other"))
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.run_all()
    await bench.recorder(term).catch_up()
    await bench.add(submission("t:child", after=["t:parent"], delay=90 * 86_400.0))
    await bench.age(31 * 86_400.0)
    await bench.janitor(term).tend_once()
    assert (await bench.rows("state")) == {"t:parent": "completed", "t:child": "pending"}
