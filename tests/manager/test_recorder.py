"""The recorder: what the broker tells stands in the ledger once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.sharded import ShardedBroker
from fairlead.client.stored_submissions import decode_submission, tasks_text
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.task_log import unpack_log
from fairlead.manager.counts import Counts
from fairlead.manager.leader_term import Term
from fairlead.manager.recorder import Recorder
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.ledger_errors import LedgerRefused, LostLeadership
from fairlead.model.message import Body
from tests.support.servers import shared
from tests.support.store import NOW, Client, completed, dead, failed, submit

TERM = 5
BODY = Body(task="mail.send", arguments=pack_arguments((), {})).encode()

Make = Callable[..., Store]


#: For tests of what the recorder asks the broker; the rest is the same with any.
both = pytest.mark.parametrize("make", ["memory", "valkey"], indirect=True)


@pytest.fixture
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes brokers that keep so many bytes of events."""
    made: list[Store] = []
    with ExitStack() as stack:
        url = stack.enter_context(shared()).url if getattr(request, "param", "") == "valkey" else ""

        def make(event_bytes: int = 1 << 24, shard: str = "0") -> Store:
            store: Store
            if url:
                store = RedisBroker(url, shard=shard, test_clock=True, event_bytes=event_bytes)
            else:
                store = MemoryBroker(test_clock=True, event_bytes=event_bytes)
            made.append(store)
            return store

        yield make
        for store in made:
            await store.close()


@pytest.fixture
async def store(make: Make) -> Store:
    return make()


@pytest.fixture
async def led(ledger: Ledger) -> Ledger:
    """A ledger under the term of these tests."""
    await ledger.take_leadership(term=TERM, holder="test")
    return ledger


def recorder(store: Store, ledger: Ledger, *, term: int = TERM, **options: Any) -> Recorder:
    stands = cast(Term, SimpleNamespace(number=term))
    return Recorder(store, ledger, stands, Counts("recorder"), **options)


def counted(recorder: Recorder) -> dict[str, Any]:
    return recorder._counts.shown()


async def row(ledger: Ledger, id: str) -> Any:
    found = await ledger.task(id=id)
    assert found is not None, id
    return found


def kinds(row: Any) -> list[str]:
    return [entry.kind for entry in unpack_log(row.log)]


async def executed(dsn: str, text: str, *values: Any) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(text, values or None)
        return await cursor.fetchall() if cursor.description else []


# -- what is recorded ------------------------------------------------------------------------------


@both
async def test_tasks_that_were_enqueued_directly_get_rows(store: Store, led: Ledger) -> None:
    c = Client(store)
    runs, waits = await c.run(submit("runs", body=BODY), submit("waits", "b", body=BODY, level=0))
    await c.settle(completed(runs, b"\x01"), now=NOW + 3)
    await c.enqueue(submit("later", body=BODY, delay=60.0, deadline=90.0), now=NOW + 4)
    recorded = await recorder(store, led).record_once()
    assert (recorded.tasks, recorded.gap, recorded.at_end) == (3, False, True)

    ran = await row(led, "runs")
    assert (ran.state, ran.queue, ran.tenant, ran.name) == (
        "completed",
        "default",
        "a",
        "mail.send",
    )
    assert (ran.created_at, ran.started_at, ran.finished_at) == (NOW, NOW, NOW + 3)
    assert (ran.attempts, ran.worker, ran.reason, ran.error) == (1, "w1", "", "")
    assert kinds(ran) == ["enqueued", "started", "completed"]
    assert waits.message.level == (await row(led, "waits")).level == 0
    assert (await row(led, "waits")).state == "running"
    later = await row(led, "later")
    assert (later.state, later.due_at, later.deadline_at) == ("scheduled", NOW + 64, NOW + 94)


async def test_only_what_may_have_to_be_sent_again_has_a_submission(
    store: Store, led: Ledger, ledger_dsn: str
) -> None:
    c = Client(store)
    (first,) = await c.run(submit("first", body=BODY))
    await c.enqueue(submit("second", body=BODY, after=["first"]))
    (other,) = await c.run(submit("other", body=BODY))
    await c.settle(completed(other))
    await recorder(store, led).record_once()
    columns = "select id, submission, depends_on, content is not null from fairlead.tasks"
    rows = {id: rest for id, *rest in await executed(ledger_dsn, columns)}
    assert rows["other"] == [None, [], False]
    assert decode_submission(rows["first"][0]).message == first.message
    stored = decode_submission(rows["second"][0])
    assert [(each.id, each.known) for each in stored.depends_on] == [("first", True)]
    assert rows["second"][1:] == [["first"], True]


@both
async def test_errors_and_workers_are_in_the_attempts(store: Store, led: Ledger) -> None:
    c = Client(store, "one")
    await store.beat(
        "one", worker=WorkerRecord(incarnation="one", host="box", pid=77, started_at=NOW), now=NOW
    )
    (lease,) = await c.run(submit("t", body=BODY))
    await c.settle(failed(lease), now=NOW + 1)
    r = recorder(store, led)
    await r.record_once()
    again = Client(store, "two")
    (lease,) = await again.fetch(now=NOW + 10)
    await again.settle(dead(lease), now=NOW + 11)
    await r.record_once()
    found = await row(led, "t")
    assert (found.state, found.reason, found.attempts) == ("dead", "exhausted", 2)
    assert (found.error_type, found.error, found.worker) == ("ValueError", "it did not work", "two")
    log = unpack_log(found.log)
    assert [(e.kind, e.attempt, e.worker) for e in log if e.worker] == [
        ("started", 1, "one"),
        ("started", 2, "two"),
    ]
    assert [(e.kind, e.error_type, e.error) for e in log if e.error_type] == [
        ("retrying", "ValueError", "it did not work"),
        ("dead", "ValueError", "it did not work"),
    ]
    workers = await led.workers_of(incarnations=["one", "two"])
    assert (workers["one"].host, workers["one"].pid) == ("box", 77)
    assert workers["two"].host == ""  # nobody had heard of it


async def test_a_row_outlives_the_task(store: Store, led: Ledger) -> None:
    c = Client(store)
    (lease,) = await c.run(submit("t", body=BODY))
    await c.settle(dead(lease))
    await c.delete("t")
    r = recorder(store, led)
    await r.record_once()
    found = await row(led, "t")
    assert (found.state, found.name, kinds(found)[-1]) == ("dead", "", "deleted")
    await c.enqueue(submit("t", body=BODY), now=NOW + 9)  # the same id, another time
    await r.record_once()
    found = await row(led, "t")
    assert (found.state, found.name, found.attempts) == ("queued", "mail.send", 0)
    assert found.finished_at is None


async def test_rows_that_were_sent_move_and_rows_that_were_not_stay(
    store: Store, led: Ledger, ledger_dsn: str
) -> None:
    c = Client(store)
    tasks = [submit(id, body=BODY) for id in ("sent", "unsent")]
    await executed(ledger_dsn, "select fairlead.enqueue_tasks(%s)", tasks_text(tasks[:1]))
    assert [each.id for each in await led.claim_tasks(term=TERM, limit=5)] == ["sent"]
    await executed(ledger_dsn, "select fairlead.enqueue_tasks(%s)", tasks_text(tasks[1:]))
    leases = await c.run(*tasks)  # the second by somebody else, who chose the same id
    await c.settle(*map(completed, leases))
    await recorder(store, led).record_once()
    assert (await row(led, "sent")).state == "completed"
    assert (await row(led, "unsent")).state == "pending"
    assert await led.confirm_tasks(term=TERM, ids=["sent"], state="queued") == 0


async def test_flows_follow_their_events(led: Ledger, ledger_dsn: str) -> None:
    await executed(
        ledger_dsn,
        "insert into fairlead.flows (id, tenant, state, draft, members, pushes, claimed_term)"
        " values ('f', 'a', 'claimed', '', 2, 1, 5), ('new', 'a', 'pending', '', 2, 0, null)",
    )
    states = "select state from fairlead.flows order by id"
    for ids, state, at, then in (
        (["f", "new", "unknown"], "running", 10.0, ["running", "pending"]),
        (["f"], "dead", 20.0, ["dead", "pending"]),
        (["f"], "running", 15.0, ["dead", "pending"]),  # older
    ):
        n = len(ids)
        await led.record_flows(term=TERM, ids=ids, states=[state] * n, at=[at] * n)
        assert [row[0] for row in await executed(ledger_dsn, states)] == then


# -- exactly once ----------------------------------------------------------------------------------


@both
async def test_steps_of_any_size_record_everything_once(store: Store, led: Ledger) -> None:
    c = Client(store)
    for n in range(12):
        (lease,) = await c.run(submit(f"t{n}", body=BODY), now=NOW + n)
        await c.settle(completed(lease), now=NOW + n)
    r = recorder(store, led, batch=4, page=3)
    assert await r.catch_up() == 36
    assert await r.catch_up() == 0
    for n in range(12):
        assert kinds(await row(led, f"t{n}")) == ["enqueued", "started", "completed"]
    assert counted(r)["events"] == 36


@both
async def test_large_bodies_come_a_few_at_a_time(
    store: Store, led: Ledger, ledger_dsn: str
) -> None:
    c = Client(store)
    bodies = {}
    for n in range(60):
        size = 20_000 if n % 2 else 100
        data = Body(task="mail.send", arguments=pack_arguments((bytes(size),), {})).encode()
        bodies[f"t{n}"] = data
        await c.enqueue(submit(f"t{n}", body=data))
    (lease,) = await c.fetch()
    await c.settle(completed(lease))
    asked: list[int] = []
    real = store.find

    async def find(ids: Any, **rest: Any) -> Any:
        if rest["parts"] == "all":
            asked.append(len(ids))
        return await real(ids, **rest)

    store.find = find  # type: ignore[method-assign]
    r = recorder(store, led, room=50_000)
    first = await r.record_once()
    assert 0 < first.count < 62
    assert not first.at_end
    assert await r.catch_up() == 62 - first.count
    assert max(asked) <= 20
    assert sum(asked) <= 30  # small ones were not asked for twice
    rows = await executed(ledger_dsn, "select id, state, submission from fairlead.tasks")
    assert len(rows) == 60
    for id, state, stored in rows:
        assert (stored is None) == (state == "completed"), id
        assert stored is None or decode_submission(stored).message.body == bodies[id]


async def test_a_body_that_is_cut_is_never_stored(
    store: Store, led: Ledger, ledger_dsn: str
) -> None:
    data = Body(task="mail.send", arguments=pack_arguments((bytes(5_000),), {})).encode()
    c = Client(store)
    await c.enqueue(submit("t", body=data))
    await recorder(store, led).catch_up()
    await executed(ledger_dsn, "update fairlead.tasks set submission = null, name = ''")
    (lease,) = await c.fetch()
    await c.settle(failed(lease))
    await recorder(store, led).catch_up()
    [(state, name, stored)] = await executed(
        ledger_dsn, "select state, name, submission from fairlead.tasks"
    )
    assert (state, name, stored) == ("retrying", "mail.send", None)


async def test_of_two_recorders_at_one_place_one_writes(store: Store, led: Ledger) -> None:
    c = Client(store)
    one, two = recorder(store, led), recorder(store, led)
    await c.enqueue(submit("t", body=BODY))
    await one.record_once()
    await two.record_once()  # both at the same place now
    (lease,) = await c.fetch()
    await one.record_once()
    with pytest.raises(LedgerRefused) as refused:
        await two.record_once()
    assert refused.value.cause == "place"
    assert kinds(await row(led, "t")) == ["enqueued", "started"]
    await c.settle(completed(lease))
    await two.record_once()  # it has asked the ledger where to go on
    assert kinds(await row(led, "t")) == ["enqueued", "started", "completed"]


async def test_nothing_is_written_if_the_end_of_the_step_fails(
    store: Store, led: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Client(store).enqueue(submit("t", body=BODY))
    r = recorder(store, led)

    async def killed(*_: object, **__: object) -> None:
        raise ConnectionError("killed between rows and commit")

    with monkeypatch.context() as patch:
        patch.setattr("fairlead.ledger.queries.Queries.record_flows", killed)
        with pytest.raises(ConnectionError):
            await r.record_once()
    assert await led.task(id="t") is None
    assert await led.places() == {}
    assert (await r.record_once()).tasks == 1
    assert kinds(await row(led, "t")) == ["enqueued"]


async def test_a_leader_that_was_replaced_writes_nothing(store: Store, led: Ledger) -> None:
    await Client(store).enqueue(submit("t", body=BODY))
    await led.take_leadership(term=TERM + 1, holder="next")
    with pytest.raises(LostLeadership):
        await recorder(store, led).record_once()
    assert await led.task(id="t") is None
    assert (await recorder(store, led, term=TERM + 1).record_once()).tasks == 1


# -- gaps, other generations, shards ---------------------------------------------------------------


@both
async def test_after_a_gap_unfinished_rows_follow_the_broker(make: Make, led: Ledger) -> None:
    store = make(event_bytes=4_000)
    c = Client(store)
    r = recorder(store, led)
    lost, kept = await c.run(submit("lost", body=BODY), submit("kept", body=BODY))
    await r.record_once()
    await c.settle(dead(lost), now=NOW + 1)
    for n in range(200):  # more events than the broker keeps
        (lease,) = await c.run(submit(f"n{n}", body=BODY), now=NOW + 2)
        await c.settle(completed(lease), now=NOW + 2)
    recorded = await r.record_once()
    assert recorded.gap
    assert counted(r)["gaps"] == 1
    assert counted(r)["resynced"] == 2
    found = await row(led, "lost")
    assert (found.state, found.reason, found.error) == ("dead", "exhausted", "it did not work")
    assert (await row(led, "kept")).state == "running"
    assert not (await r.record_once()).gap
    await c.settle(completed(kept), now=NOW + 3)
    await r.record_once()
    assert kinds(await row(led, "kept")) == ["enqueued", "started", "completed"]


async def test_a_gap_is_found_again_if_the_comparison_failed(
    make: Make, led: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    await Client(store).enqueue(submit("t", body=BODY))
    await recorder(store, led).record_once()
    other = MemoryBroker(test_clock=True)
    r = recorder(other, led)

    async def killed(*_: object, **__: object) -> None:
        raise ConnectionError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("fairlead.manager.recorder.resync", killed)
        with pytest.raises(ConnectionError):
            await r.record_once()
    assert (await recorder(other, led).record_once()).gap


async def test_another_generation_is_a_gap_and_goes_on(make: Make, led: Ledger) -> None:
    store = make()
    await Client(store).enqueue(submit("old", body=BODY))
    await recorder(store, led).record_once()
    other = MemoryBroker(test_clock=True)  # as good as a server that was emptied
    c = Client(other)
    await c.enqueue(submit("new", body=BODY), now=NOW + 60)
    r = recorder(other, led)
    assert (await r.record_once()).gap
    assert counted(r)["generations"] == 1
    assert (await row(led, "old")).state == "queued"  # for the auditor to find
    assert (await row(led, "new")).state == "queued"
    assert not (await r.record_once()).gap


@both
async def test_what_is_read_again_after_a_gap_changes_nothing(
    store: Store, led: Ledger, ledger_dsn: str
) -> None:
    c = Client(store)
    (lease,) = await c.run(submit("t", body=BODY))
    await c.settle(completed(lease), now=NOW + 1)
    await recorder(store, led).record_once()
    before = await row(led, "t")
    await executed(ledger_dsn, "update fairlead.places set generation = 'lost'")
    r = recorder(store, led)
    recorded = await r.record_once()
    assert (recorded.gap, recorded.count, recorded.tasks) == (True, 3, 0)
    assert await row(led, "t") == before


async def test_events_do_not_move_a_row_that_became_pending_after_them(
    store: Store, led: Ledger, ledger_dsn: str
) -> None:
    """The order of the auditor: read the row, ask the broker, catch up, send again."""
    c = Client(store)
    r = recorder(store, led)
    gone, forgotten = await c.run(submit("gone", body=BODY), submit("forgotten", body=BODY))
    await r.record_once()
    rows = {each.id: each for each in await led.last_events(ids=["gone", "forgotten"])}
    # One task ends and is forgotten unseen. Of the other nothing more is heard.
    await c.settle(dead(forgotten), now=NOW + 1)
    await c.delete("forgotten", now=NOW + 1)
    assert await store.find(["forgotten"], now=NOW + 1) == [None]
    await r.catch_up()
    sent = await led.send_again(
        term=TERM,
        ids=list(rows),
        entries=[each.last_entry for each in rows.values()],
        indexes=[each.last_index for each in rows.values()],
    )
    assert [(each.id, each.state) for each in sent] == [("gone", "pending")]
    assert (await row(led, "forgotten")).state == "dead"
    # Whatever of it is read once more is older than the row.
    await executed(ledger_dsn, "update fairlead.places set generation = 'lost'")
    await recorder(store, led).record_once()
    assert (await row(led, "gone")).state == "pending"
    assert gone.message.id == "gone"


@pytest.fixture
async def shards(make: Make) -> tuple[ShardedBroker, list[Store]]:
    parts = [make(), make(shard="s1")]
    return ShardedBroker({"0": parts[0], "s1": parts[1]}, {"mail": "s1"}), parts  # type: ignore[dict-item]


@pytest.mark.parametrize("make", ["valkey"], indirect=True)
async def test_every_shard_has_a_place(
    shards: tuple[ShardedBroker, list[Store]], led: Ledger
) -> None:
    store, parts = shards
    c = Client(store)
    r = recorder(store, led, batch=2, page=2)
    await c.enqueue(*[submit(f"a{n}", body=BODY) for n in range(3)])
    await c.enqueue(*[submit(f"b{n}", queue="mail", body=BODY) for n in range(3)])
    await r.catch_up()
    places = await led.places()
    assert set(places) == {"0", "s1"}
    for n in range(3):
        assert kinds(await row(led, f"a{n}")) == kinds(await row(led, f"b{n}")) == ["enqueued"]
    # A recorder that sees one of them only leaves the other's place where it was.
    await Client(parts[0], "alone").enqueue(submit("a9", body=BODY))
    assert (await recorder(parts[0], led).record_once()).count == 1
    after = await led.places()
    assert after["s1"] == places["s1"]
    assert after["0"] != places["0"]
    await c.enqueue(submit("b9", queue="mail", body=BODY))
    assert not (await recorder(store, led).record_once()).gap
    assert (await row(led, "b9")).queue == "mail"
