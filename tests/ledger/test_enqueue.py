"""``fairlead.enqueue_tasks``: what a caller's own transaction runs."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path

import psycopg
import pytest

from fairlead.ledger.ledger import Ledger
from fairlead.ledger.statements import statement
from tests.ledger.rows import enqueue, enqueue_at, given, query

ROOT = Path(__file__).parents[2]


def test_a_task_is_accepted_once_and_told_from_another_of_its_id(ledger_dsn: str) -> None:
    assert enqueue_at(ledger_dsn, given("a"), given("b")) == [("a", "accepted"), ("b", "accepted")]
    assert enqueue_at(ledger_dsn, given("c"), given("a"), given("b", "other")) == [
        ("c", "accepted"),
        ("a", "duplicate"),
        ("b", "conflict"),
    ]
    found = query(ledger_dsn, "select id, state, queue, tenant from fairlead.tasks order by seq")
    assert found == [(id, "pending", "mail", "acme") for id in "abc"]
    [(body,)] = query(ledger_dsn, "select submission from fairlead.tasks where id = 'b'")
    assert bytes(body) == b"body of b"  # the first one stands


def test_an_id_twice_in_one_batch_is_one_task(ledger_dsn: str) -> None:
    batch = (given("a"), given("a"), given("a", "other"))
    assert enqueue_at(ledger_dsn, *batch) == [
        ("a", "accepted"),
        ("a", "duplicate"),
        ("a", "conflict"),
    ]
    assert enqueue_at(ledger_dsn) == []


def test_a_rollback_leaves_nothing(ledger_dsn: str) -> None:
    with psycopg.connect(ledger_dsn) as connection:
        assert enqueue(connection, given("a")) == [("a", "accepted")]
        connection.rollback()
    assert query(ledger_dsn, "select id from fairlead.tasks") == []
    assert enqueue_at(ledger_dsn, given("a")) == [("a", "accepted")]


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_transactions_with_one_id_the_second_waits_for_the_first(
    ledger_dsn: str, commits: bool
) -> None:
    answers: list[tuple[str, str]] = []
    with psycopg.connect(ledger_dsn) as first:
        enqueue(first, given("a", "one"))
        second = threading.Thread(
            target=lambda: answers.extend(enqueue_at(ledger_dsn, given("a", "two")))
        )
        second.start()
        waits = (
            "select count(*) from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        )
        while query(ledger_dsn, waits) == [(0,)]:
            assert second.is_alive()
        first.commit() if commits else first.rollback()
    second.join(30)
    assert answers == [("a", "conflict" if commits else "accepted")]


def test_delays_and_deadlines_are_counted_from_the_ledgers_clock(ledger_dsn: str) -> None:
    enqueue_at(ledger_dsn, given("later", delay=90.5, deadline=600), given("now"))
    found = query(
        ledger_dsn,
        "select extract(epoch from due_at - created_at)::float8,"
        " extract(epoch from deadline_at - created_at)::float8 from fairlead.tasks order by seq",
    )
    assert found == [(90.5, 600.0), (0.0, None)]


def test_dependencies_come_along(ledger_dsn: str) -> None:
    enqueue_at(ledger_dsn, given("a", depends_on=["x", "y"]), given("b", depends_on=None))
    found = query(ledger_dsn, "select depends_on from fairlead.tasks order by seq")
    assert found == [(["x", "y"],), ([],)]


async def test_the_dispatcher_hears_of_what_is_due_soon_and_of_nothing_else(
    ledger: Ledger, ledger_dsn: str
) -> None:
    listener = await ledger.listen("fairlead_due")
    try:
        assert await listener.wait_notified(10)  # it is new: it may have missed something
        enqueue_at(ledger_dsn, given("later", delay=3600))
        assert not await listener.wait_notified(0.1)
        await asyncio.to_thread(enqueue_at, ledger_dsn, given("now"))
        assert await listener.wait_notified(10)
        assert not await listener.wait_notified(0.05)  # one transaction, one notification
        enqueue_at(ledger_dsn, given("now"))  # a duplicate is nothing new
        assert not await listener.wait_notified(0.1)
    finally:
        await listener.close()


def test_a_flow_is_accepted_once(ledger_dsn: str) -> None:
    flow = json.dumps(
        {"id": "f", "tenant": "acme", "name": "import", "draft": "Ym9keQ==", "members": 3}
    )
    ask = "select fairlead.enqueue_flow(%s::json)"
    assert query(ledger_dsn, ask, flow) == [("accepted",)]
    assert query(ledger_dsn, ask, flow) == [("duplicate",)]
    found = query(ledger_dsn, "select id, state, draft, members from fairlead.flows")
    assert found == [("f", "pending", b"body", 3)]


def test_the_grants_of_the_page_are_enough_to_enqueue_and_to_cancel(ledger_dsn: str) -> None:
    page = (ROOT / "docs/how-to/ledger.md").read_text()
    (grants,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    with psycopg.connect(ledger_dsn) as connection:  # roles are gone with the transaction
        for role in ("shop", "manager"):
            connection.execute(f"create role {role}_of_a_test")
        connection.execute(re.sub(r"\b(shop|manager)\b", r"\1_of_a_test", grants))
        connection.execute("set local role shop_of_a_test")
        assert enqueue(connection, given("a")) == [("a", "accepted")]
        cancel = statement("cancel_pending").text
        assert connection.execute(cancel, {"id": "a", "tenant": "acme"}).fetchall() == [(0,)]
        connection.rollback()
