"""History: pages and attempts equal what happened, from the ledger and from the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead import Fairlead
from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import WorkerRecord
from fairlead.client.history import HistoryPage, history_of
from fairlead.ledger.ledger import Ledger
from fairlead.manager.counts import Counts
from fairlead.manager.recorder import Recorder
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.message import Body
from tests.ledger.rows import enqueue_at, given
from tests.support.store import NOW, Client, completed, dead, failed, submit

TERM = 5


def body(name: str) -> bytes:
    return Body(task=name, arguments=pack_arguments((), {})).encode()


@pytest.fixture
def store() -> MemoryBroker:
    return MemoryBroker(test_clock=True)


@pytest.fixture
async def app(store: MemoryBroker, ledger: Ledger, ledger_dsn: str) -> AsyncIterator[Fairlead]:
    """An app with a ledger, of which these tests are the manager."""
    await ledger.take_leadership(term=TERM, holder="test")
    app = Fairlead(store=store, ledger=ledger_dsn)
    yield app
    await app.aclose()


async def record(store: Store, ledger: Ledger) -> None:
    term = cast(Any, SimpleNamespace(number=TERM))
    await Recorder(store, ledger, term, Counts("recorder")).catch_up()


async def lived(store: Store) -> None:
    """One task that failed twice and died, one that ran, one that waits; seconds apart."""
    c = Client(store, "one")
    worker = WorkerRecord(incarnation="one", host="box", pid=77, started_at=NOW)
    await store.beat("one", worker=worker, now=NOW)
    (lease,) = await c.run(submit("died", "acme", "mail", body=body("mail")), queues=["mail"])
    await c.settle(failed(lease), now=NOW + 1)
    (lease,) = await c.fetch(queues=["mail"], now=NOW + 10)
    await c.settle(dead(lease), now=NOW + 12)
    (lease,) = await c.run(submit("ran", "acme", body=body("work")), now=NOW + 20)
    await c.settle(completed(lease), now=NOW + 21)
    await c.enqueue(submit("waits", "other", body=body("work")), now=NOW + 30)


@pytest.fixture(params=["ledger", "broker"])
async def asked(
    request: pytest.FixtureRequest, store: MemoryBroker, app: Fairlead, ledger: Ledger
) -> AsyncIterator[Fairlead]:
    """An app to ask: of a ledger that has it all, or without one."""
    await lived(store)
    if request.param == "ledger":
        await record(store, ledger)
        yield app
    else:
        yield Fairlead(store=store)


def ids(page: HistoryPage) -> set[str]:
    return {task.id for task in page.tasks}


async def test_pages_tell_what_became_of_tasks(asked: Fairlead, request: Any) -> None:
    page = await asked.ahistory()
    assert (ids(page), page.cursor) == ({"died", "ran", "waits"}, None)
    assert page.source == request.node.callspec.params["asked"]
    (died,) = [task for task in page.tasks if task.id == "died"]
    assert (died.task, died.queue, died.tenant, died.state) == ("mail", "mail", "acme", "dead")
    assert (died.attempts, died.reason, died.priority) == (2, "exhausted", "normal")
    assert (died.error_type, died.error) == ("ValueError", "it did not work")
    assert (died.created_at, died.finished_at) == (NOW, NOW + 12)


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        ({"state": "dead"}, {"died"}),
        ({"state": "refused"}, set()),
        ({"queue": "mail"}, {"died"}),
        ({"tenant": "other"}, {"waits"}),
        ({"name": "work"}, {"ran", "waits"}),
        ({"error": "valueerror work"}, {"died"}),
        ({"error": "timeout"}, set()),
        ({"since": NOW + 20}, {"ran", "waits"}),
        ({"until": datetime.fromtimestamp(NOW + 20, UTC)}, {"died"}),
        ({"since": NOW + 1, "until": NOW + 30, "tenant": "acme"}, {"ran"}),
        ({"state": "completed", "name": "mail"}, set()),
    ],
)
async def test_every_condition_counts(
    asked: Fairlead, selection: dict[str, Any], found: set[str]
) -> None:
    assert ids(await asked.ahistory(**selection)) == found


async def test_pages_go_on_where_the_last_one_ended(app: Fairlead, ledger: Ledger) -> None:
    store = app._clients.store
    c = Client(store)
    await c.enqueue(*(submit(f"t{n}", body=body("work")) for n in range(5)))  # at one moment
    await c.enqueue(submit("last", body=body("work")), now=NOW + 1)
    await record(store, ledger)
    seen: list[str] = []
    cursor = None
    for size in (2, 3, 1):
        page = await app.ahistory(limit=size, cursor=cursor)
        seen += [task.id for task in page.tasks]
        cursor = page.cursor
    assert cursor is None
    assert seen[0] == "last"
    assert sorted(seen) == ["last", *(f"t{n}" for n in range(5))]


async def test_every_attempt_is_told(app: Fairlead, store: Store, ledger: Ledger) -> None:
    c = Client(store, "one")
    worker = WorkerRecord(incarnation="one", host="box", pid=77, started_at=NOW)
    await store.beat("one", worker=worker, now=NOW)
    (lease,) = await c.run(submit("a:t", body=body("mail")))
    await c.settle(failed(lease), now=NOW + 1)
    await record(store, ledger)  # an error is kept for the last failure only: it is read in time
    two = Client(store, "two")
    (lease,) = await two.fetch(now=NOW + 10)
    await two.settle(dead(lease), now=NOW + 12)
    await record(store, ledger)
    await c.requeue("a:t", now=NOW + 20)
    (lease,) = await c.fetch(now=NOW + 21)
    await record(store, ledger)

    told = await app.atask_history("t", "a")
    assert told is not None
    assert told.source == "ledger"
    assert not told.is_cut
    one, second, third = told.attempts
    assert (one.number, one.worker, one.host, one.pid) == (1, "one", "box", 77)
    assert (one.started_at, one.ended_at, one.outcome) == (NOW, NOW + 1, "failed")
    assert (one.error_type, one.error) == ("ValueError", "it did not work")
    assert (second.number, second.worker, second.outcome) == (2, "two", "failed")
    assert (second.reason, second.error_type, second.host) == ("exhausted", "ValueError", "")
    assert (third.number, third.outcome, third.ended_at) == (1, "", None)
    assert [change.kind for change in told.changes] == [
        "enqueued", "started", "retrying", "queued", "started", "dead", "requeued", "started",
    ]  # fmt: skip
    assert [change.at for change in told.changes][-1] == NOW + 21


async def _of(app: Fairlead, id: str) -> Any:
    clients = app._clients
    return await history_of(clients.ledger_or_none, clients.current(), id)


async def test_without_a_row_the_broker_answers(app: Fairlead, store: Store) -> None:
    await lived(store)  # nobody records it
    died = await _of(app, "died")
    assert (died.source, died.task.state) == ("broker", "dead")
    (last,) = died.attempts
    assert (last.number, last.outcome, last.error_type) == (2, "failed", "ValueError")
    assert [change.kind for change in died.changes] == ["enqueued", "dead"]
    (lease,) = await Client(store, "two").fetch(now=NOW + 40)
    runs = await _of(app, lease.message.id)
    (last,) = runs.attempts
    assert (last.number, last.outcome, last.started_at) == (1, "", NOW + 40)
    assert await app.atask_history("unheard-of") is None


async def test_what_was_never_sent_has_a_history(
    app: Fairlead, ledger: Ledger, ledger_dsn: str
) -> None:
    enqueue_at(ledger_dsn, given("waits"), given("never"))
    await ledger.claim_tasks(term=TERM, limit=9)
    await ledger.refuse_tasks(term=TERM, ids=["never"], reasons=["conflict"], stands_for=[""])
    never = await _of(app, "never")
    assert [(change.kind, change.state) for change in never.changes] == [
        ("committed", "pending"),
        ("refused", "refused"),
    ]
    assert never.attempts == []
    assert ids(await app.ahistory(state="claimed")) == {"waits"}


@pytest.mark.parametrize(
    "selection",
    [
        {"state": "lost"},
        {"limit": 0},
        {"limit": True},
        {"cursor": "l1"},
        {"cursor": "b1"},
        {"cursor": f"l1-{2**70}"},
        {"cursor": 5},
        {"since": "yesterday"},
        {"until": datetime(2026, 1, 1)},  # noqa: DTZ001 - refused for that
        {"since": 1e300},
        {"error": ""},
        {"error": "a\x00b"},
    ],
)
async def test_what_makes_no_sense_is_refused(app: Fairlead, selection: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refused:
        await app.ahistory(**selection)
    assert refused.value.option == next(iter(selection))


async def test_an_option_that_does_not_exist_is_refused(app: Fairlead) -> None:
    with pytest.raises(InvalidInput, match="did you mean queue"):
        await app.ahistory(queues="mail")  # type: ignore[call-arg]


@pytest.fixture
def sync_app(store: MemoryBroker, ledger_dsn: str) -> Iterator[Fairlead]:
    app = Fairlead(store=store, ledger=ledger_dsn)
    yield app
    app.close()


def test_sync_code_asks_the_same(sync_app: Fairlead, ledger_dsn: str) -> None:
    enqueue_at(ledger_dsn, given("acme:t"))
    assert ids(sync_app.history(state="pending")) == {"acme:t"}
    told = sync_app.task_history("t", "acme")
    assert told is not None
    assert [change.kind for change in told.changes] == ["committed"]
    assert sync_app.task_history("t") is None
