"""Claim, push, confirm: what each answer of the broker makes of a row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

import psycopg
import pytest

from fairlead.broker import Caller, connect
from fairlead.broker.requests import Call, QueueChange, Submission
from fairlead.client.stored_submissions import encode_submission, tasks_text
from fairlead.manager.counts import Counts
from fairlead.manager.dispatcher import Dispatcher
from fairlead.manager.leader import Leader
from fairlead.manager.leader_term import Term
from fairlead.manager.push import Sent, Settlement, batches
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.errors import Ambiguous, BrokerError, Unreachable
from fairlead.model.ledger_errors import LedgerAmbiguous, LostLeadership
from fairlead.model.lifecycle import State
from fairlead.model.message import Body
from fairlead.runtime.ids import new_id
from tests.manager.bench import ENQUEUE, Bench, submission, until
from tests.support.servers import Running, server


async def configure(bench: Bench, change: QueueChange) -> None:
    await Caller(new_id()).call(partial(bench.store.configure, changes=[change]))


async def test_due_rows_are_sent_in_their_order_and_confirmed(bench: Bench) -> None:
    ids = await bench.add(count=5)
    (later,) = await bench.add(submission(delay=60.0))
    dispatcher = bench.dispatcher(await bench.lead())
    assert await dispatcher.dispatch_once() == 5
    assert await bench.states() == {"queued": 5, "pending": 1}
    assert await bench.run_all() == ids
    assert await dispatcher.dispatch_once() == 0
    assert 50.0 < (await bench.ledger.next_due() or 0.0) <= 60.0
    assert (await bench.rows("claimed_term"))[later] is None


async def test_all_that_is_due_goes_batch_by_batch(bench: Bench) -> None:
    ids = await bench.add(count=53)
    dispatcher = bench.dispatcher(await bench.lead(), batch=10)
    assert await dispatcher.dispatch_all() == 53
    assert await bench.states() == {"queued": 53}
    assert await bench.run_all() == ids
    assert bench.counts["pushed"] == bench.counts["scanned"] == 53


async def test_what_was_rolled_back_is_never_sent(bench: Bench) -> None:
    dispatcher = bench.dispatcher(await bench.lead())
    async with await psycopg.AsyncConnection.connect(bench.dsn) as connection:
        await connection.execute(ENQUEUE, (tasks_text([submission()]),))
        assert await dispatcher.dispatch_once() == 0
        await connection.rollback()
        assert await dispatcher.dispatch_once() == 0
        await connection.execute(ENQUEUE, (tasks_text([submission("t:kept")]),))
        await connection.commit()
    assert await dispatcher.dispatch_once() == 1
    assert await bench.run_all() == ["t:kept"]


async def test_a_full_queue_is_tried_again_later(bench: Bench) -> None:
    await configure(bench, QueueChange(queue="default", max_waiting=2))
    await bench.add(count=3)
    dispatcher = bench.dispatcher(await bench.lead(), dice=lambda: 0.5)
    assert await dispatcher.dispatch_once() == 3
    assert await bench.states() == {"queued": 2, "pending": 1}
    assert 0.5 < (await bench.ledger.next_due() or 0.0) <= 1.0
    reasons = (await bench.rows("reason")).values()
    assert sorted(reasons) == ["", "", "queue_full"]
    await bench.run_all()
    await bench.sql("update fairlead.tasks set due_at = now() where state = 'pending'")
    assert await dispatcher.dispatch_once() == 1
    assert sorted((await bench.rows("reason")).values()) == ["", "", ""]


async def test_pauses_grow_to_a_minute(bench: Bench) -> None:
    await configure(bench, QueueChange(queue="default", max_waiting=0))
    await bench.add(count=1)
    dispatcher = bench.dispatcher(await bench.lead(), dice=lambda: 0.999)
    pauses = []
    for _ in range(8):
        await bench.sql("update fairlead.tasks set due_at = now()")
        assert await dispatcher.dispatch_once() == 1
        pauses.append(await bench.ledger.next_due() or 0.0)
    assert pauses[0] <= 1.2
    assert pauses[:6] == sorted(pauses[:6])
    assert 55.0 < pauses[-1] <= 60.0


async def test_a_conflict_and_a_duplicate_are_refused_with_the_reason(bench: Bench) -> None:
    other = submission("t:taken", queue="elsewhere")
    first = submission(unique="one")
    await Caller(new_id()).call(partial(bench.store.enqueue, submissions=[other, first]))
    second = submission(unique="one")
    await bench.add(submission("t:taken"), second)
    assert await bench.dispatcher(await bench.lead()).dispatch_once() == 2
    rows = await bench.rows("state", "reason", "stands_for")
    assert rows["t:taken"] == ("refused", "conflict", "")
    assert rows[second.message.id] == ("refused", "duplicate", first.message.id)


async def test_the_same_task_at_the_broker_is_the_task(bench: Bench) -> None:
    made = submission("t:once")
    await Caller(new_id()).call(partial(bench.store.enqueue, submissions=[made]))
    await bench.run_all()
    await bench.add(made)
    assert await bench.dispatcher(await bench.lead()).dispatch_once() == 1
    state, finished = (await bench.rows("state", "finished_at"))["t:once"]
    assert state == "completed"
    assert finished is not None
    assert await bench.run_all() == []


async def test_what_cannot_be_read_does_not_hold_up_the_others(bench: Bench) -> None:
    good, bad, worse = await bench.add(count=3)
    await bench.sql("update fairlead.tasks set submission = 'rubbish' where id = %s", bad)
    assert await bench.dispatcher(await bench.lead()).dispatch_once() == 3
    assert (await bench.rows("state", "reason"))[bad] == ("refused", "unreadable")
    assert await bench.run_all() == [good, worse]


async def test_what_the_broker_finds_fault_with_goes_alone(bench: Bench) -> None:
    ids = await bench.add(count=9)
    wrong = encode_submission(submission(ids[4], queue="no such/queue"))
    await bench.sql("update fairlead.tasks set submission = %s where id = %s", wrong, ids[4])
    assert await bench.dispatcher(await bench.lead()).dispatch_once() == 9
    assert await bench.states() == {"queued": 8, "refused": 1}
    assert (await bench.rows("reason"))[ids[4]] == "invalid: InvalidName"


async def test_a_deadline_goes_on_while_the_row_waits(bench: Bench) -> None:
    (late,) = await bench.add(submission(deadline=5.0))
    (soon,) = await bench.add(submission(deadline=60.0))
    await bench.sql("update fairlead.tasks set deadline_at = deadline_at - interval '10 seconds'")
    await bench.dispatcher(await bench.lead()).dispatch_once()
    await asyncio.sleep(0.01)
    assert await bench.run_all() == [soon]
    records = await bench.store.find([late])
    assert records[0] is not None
    assert (records[0].state, records[0].reason) == (State.DEAD, "expired")


# -- dependencies -------------------------------------------------------------------------------


async def test_a_task_waits_for_a_parent_that_is_not_sent_yet(bench: Bench) -> None:
    """Also one that was given by its handle: it counts as done only if it is."""
    await bench.add(submission("t:parent", delay=60.0), submission("t:a", after=["t:parent"]))
    await bench.add(submission("t:b", after=["t:parent"], known=True))
    dispatcher = bench.dispatcher(await bench.lead())
    assert await dispatcher.dispatch_once() == 2
    assert await bench.states() == {"pending": 3}
    assert await bench.run_all() == []
    await bench.sql("update fairlead.tasks set due_at = created_at")
    assert await dispatcher.dispatch_once() == 3
    assert [each.message.id for each in await bench.fetch()] == ["t:parent"]
    assert (await bench.states())["deferred"] == 2


async def test_a_parent_that_is_completed_and_forgotten_is_done(bench: Bench) -> None:
    await bench.add(submission("t:parent"))
    await bench.sql(
        "update fairlead.tasks set state = 'completed', finished_at = now(), pushes = 1"
    )
    await bench.add(submission("t:child", after=["t:parent"]))
    await bench.dispatcher(await bench.lead()).dispatch_once()
    assert await bench.run_all() == ["t:child"]


async def test_an_unknown_parent_refuses_the_task_and_a_dead_one_ends_it(bench: Bench) -> None:
    await bench.add(submission("t:dead"))
    await bench.sql("update fairlead.tasks set state = 'dead', finished_at = now(), pushes = 1")
    await bench.add(
        submission("t:a", after=["t:nobody"]),
        submission("t:b", after=["t:dead"], known=True),
        submission("t:c", after=["t:dead"], policy="run"),
    )
    await bench.dispatcher(await bench.lead()).dispatch_once()
    rows = await bench.rows("state", "reason")
    assert rows["t:a"] == ("refused", "unknown_dependency: t:nobody")
    assert rows["t:b"] == ("dead", "dependency_failed: t:dead")
    assert await bench.run_all() == ["t:c"]


async def test_parents_of_another_queue_go_in_a_call_of_their_own(bench: Bench) -> None:
    """Over shards such a call has further lines of numbers, which no later term shuts out."""
    chain = [submission("t:0", queue="a"), submission("t:1", queue="b", after=["t:0"])]
    chain += [submission("t:2", queue="b", after=["t:1"]), submission("t:3", queue="a")]
    found = [[each.id for each in batch] for batch in batches([Sent(each, 1) for each in chain])]
    assert found == [["t:0"], ["t:1", "t:2", "t:3"]]


async def test_over_shards_a_term_is_shut_out_of_each(bench: Bench, valkey: Running) -> None:
    store = connect(valkey.url, shards={"far": "other"})
    there = Bench(store, bench.ledger, bench.dsn)
    old = await there.lead("old")
    chain = [submission("t:0", queue="far"), submission("t:1", after=["t:0"])]
    chain.append(submission("t:2", queue="far", after=["t:1"]))
    await there.add(*chain)
    new = await there.lead("new")
    for queue in ("far", "default"):
        late = partial(store.enqueue, submissions=[submission(queue=queue)])
        with pytest.raises(LostLeadership):
            await old.call(late)
    assert await there.dispatcher(new).dispatch_all() == 3
    ran: list[str] = []
    for _ in range(6):
        ran += await there.run_all(("far", "default"))
        await store.deliver()
    assert ran == ["t:0", "t:1", "t:2"]
    await there.recorder(new).catch_up()
    assert await there.states() == {"completed": 3}
    await store.close()


# -- a broker that is away, and doubt --------------------------------------------------------------


async def locks(bench: Bench) -> list[tuple[object, ...]]:
    """Which client holds a lock on anything of ours, and what it did last."""
    # Databases made from one template have the same numbers for their tables.
    return await bench.sql(
        "select c.relname, l.mode, a.query from pg_locks l join pg_class c on c.oid = l.relation"
        " join pg_namespace n on n.oid = c.relnamespace join pg_stat_activity a on a.pid = l.pid"
        " join pg_database d on d.oid = l.database and d.datname = current_database()"
        " where n.nspname = 'fairlead' and a.backend_type = 'client backend'"
        " and l.pid <> pg_backend_pid()"
    )


async def test_rows_wait_while_the_broker_is_away(bench: Bench) -> None:
    with server(aof=True) as running:
        store = connect(f"{running.url}?timeout=0.3s")
        term = await Leader(store, bench.ledger, limit=0.5).take()
        assert term is not None
        catch_up = Bench(store, bench.ledger, bench.dsn).recorder(term).catch_up
        dispatcher = Dispatcher(store, bench.ledger, term, catch_up, Counts("test"))
        assert await dispatcher.dispatch_once() == 0
        ids = await bench.add(count=20)
        running.kill()
        for _ in range(2):
            with pytest.raises(BrokerError):
                await dispatcher.dispatch_all()
            assert await locks(bench) == []
        assert (await bench.states())["queued"] == 0
        running.start()
        async with asyncio.timeout(30):
            while True:  # as a manager does: the next connection may come after the time of a call
                with contextlib.suppress(BrokerError):
                    await dispatcher.dispatch_all()
                    break
        assert await bench.states() == {"queued": 20}
        there = Bench(store, bench.ledger, bench.dsn)
        assert sorted(await there.run_all()) == sorted(ids)
        await store.close()


async def test_what_ran_and_was_forgotten_under_a_claim_is_not_sent_again(bench: Bench) -> None:
    """The old leader died behind the push; the recorder knows what became of it, in time."""
    await configure(bench, QueueChange(queue="default", keep_completed=0.0))
    (id,) = await bench.add(count=1)
    old = await bench.lead("old")
    claimed = await bench.ledger.claim_tasks(term=old.number, limit=10)
    await bench.dispatcher(old)._push(claimed)  # and no more
    assert await bench.run_all() == [id]
    while (await bench.store.tidy()).count:
        pass
    assert await bench.store.find([id]) == [None]
    new = await bench.lead("new")
    assert await bench.dispatcher(new).dispatch_all() == 0
    assert await bench.run_all() == []
    assert await bench.states() == {"completed": 1}


async def test_what_may_have_been_taken_stays_claimed_until_that_is_known(bench: Bench) -> None:
    """The answer is lost, the tasks run and are forgotten: they are not sent again."""
    await configure(bench, QueueChange(queue="default", keep_completed=0.0))
    ids = await bench.add(count=3)
    term = Term(bench.store, (await bench.lead()).number + 1_000, "test", limit=0.2)
    await bench.ledger.take_leadership(term=term.number, holder="test")
    enqueue = bench.store.enqueue

    async def unheard(call: Call, submissions: Sequence[Submission]) -> None:
        await enqueue(call, submissions)
        raise Ambiguous("the connection was lost")

    dispatcher = bench.dispatcher(term)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "enqueue", unheard)
        with pytest.raises(Ambiguous):
            await dispatcher.dispatch_all()
    assert await bench.states() == {"claimed": 3}
    assert sorted(await bench.run_all()) == sorted(ids)
    while (await bench.store.tidy()).count:
        pass
    assert await dispatcher.dispatch_all() == 0
    assert await bench.run_all() == []
    assert await bench.states() == {"completed": 3}


async def test_only_what_is_still_claimed_is_confirmed(bench: Bench) -> None:
    await bench.add(count=1)
    term = await bench.lead()
    dispatcher = bench.dispatcher(term)
    claimed = await bench.ledger.claim_tasks(term=term.number, limit=10)
    pushed = await dispatcher._push(claimed)
    await bench.run_all()
    await bench.recorder(term).catch_up()
    assert await bench.states() == {"completed": 1}
    await dispatcher._settle(pushed)
    assert await bench.states() == {"completed": 1}


async def test_claims_of_a_leader_that_died_before_the_push_are_sent(bench: Bench) -> None:
    ids = await bench.add(count=7)
    old = await bench.lead("old")
    await bench.ledger.claim_tasks(term=old.number, limit=5)
    new = await bench.lead("new")
    assert await bench.dispatcher(new).dispatch_all() == 7
    assert sorted(await bench.run_all()) == sorted(ids)
    assert bench.counts["released"] == 5


async def test_two_leaders_at_once_push_each_row_once(bench: Bench) -> None:
    """10,000 rows: the second takes over in the middle, while the first goes on."""
    await bench.add(count=10_000)
    dispatcher = bench.dispatcher(await bench.lead("old"))

    async def go_on() -> None:
        while True:
            with contextlib.suppress(LedgerAmbiguous):  # the new one has ended its sessions
                await dispatcher.dispatch_all()

    first = asyncio.create_task(go_on())
    await until(lambda: asyncio.sleep(0, bench.counts["pushed"]))
    new = await bench.lead("new")
    await bench.dispatcher(new).dispatch_all()
    with pytest.raises(LostLeadership):
        await first
    assert await bench.states() == {"queued": 10_000}
    snapshot = await bench.store.snapshot("default", tenants=False)
    assert snapshot.queues["default"].ready == 10_000
    stats = await bench.store.stats("default")
    assert stats.queues["default"].enqueued == 10_000


async def test_of_what_fails_in_the_pipeline_one_error_comes_out(bench: Bench) -> None:
    """The roles' restarts know errors of broker and ledger, and no groups of them."""
    await bench.add(count=30)
    term = await bench.lead()
    dispatcher = bench.dispatcher(term, batch=10)
    await dispatcher.release()
    for error in (Unreachable("away"), LostLeadership(1)):

        async def push(claimed: object, error: Exception = error) -> Settlement:
            raise error

        dispatcher._push = push  # type: ignore[method-assign]
        with pytest.raises(type(error)):
            await dispatcher.dispatch_all()
    assert await bench.dispatcher(term, batch=10).dispatch_all() == 30


async def test_only_the_recorder_waits_for_rows_that_others_hold(bench: Bench) -> None:
    ids = await bench.add(count=3)
    term = await bench.lead()
    number, ledger = term.number, bench.ledger
    last = {"entries": [0] * 3, "indexes": [-1] * 3}
    async with await psycopg.AsyncConnection.connect(bench.dsn) as other, asyncio.timeout(4.0):
        await ledger.claim_tasks(term=number, limit=3)
        await other.execute("select from fairlead.tasks where id = %s for update", [ids[1]])
        rest = [ids[0], ids[2]]
        assert await ledger.confirm_tasks(term=number, ids=ids, state="queued") == 2
        moved = await ledger.send_again(term=number, ids=ids, **last)
        assert sorted(each.id for each in moved) == sorted(rest)
        await other.rollback()
    # What was left out is found again as a claim, and the broker knows it by its id.
    dispatcher = bench.dispatcher(term)
    await dispatcher.dispatch_all()
    assert sorted(await bench.run_all()) == sorted(ids)


async def test_a_claim_is_bounded_by_bytes_too(bench: Bench) -> None:
    large = Body(task="work", arguments=pack_arguments((bytes(900_000),), {})).encode()
    ids = await bench.add(*(submission(body=large) for _ in range(8)))
    await bench.add(*(submission(body=large) for _ in range(8)))
    await bench.add(*(submission(body=large) for _ in range(8)))
    term = await bench.lead()
    first = await bench.ledger.claim_tasks(term=term.number, limit=500)
    assert [row.id for row in first[:8]] == ids
    assert len(first) == 19  # the first that goes beyond 16 MiB is the last
    assert len(await bench.ledger.claim_tasks(term=term.number, limit=500)) == 5
