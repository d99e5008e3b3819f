"""The schema states its invariants, and every statement has a method of its shape."""

from __future__ import annotations

import inspect

import psycopg
import pytest

from fairlead.ledger.ledger import Ledger
from fairlead.ledger.queries import Queries
from fairlead.ledger.statements import statement, statements
from fairlead.model.ledger_errors import LedgerRefused
from tests.ledger.rows import enqueue_at, given, record


def test_every_statement_has_a_method_with_its_parameters() -> None:
    methods = {
        name: set(inspect.signature(method).parameters) - {"self"}
        for name, method in inspect.getmembers(Queries, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    # These are the steps of TransactionQueries.record_tasks, and of list_tasks.
    apart = {"make_incoming", "join_by_index", "copy_incoming", "move_tasks", "add_tasks"}
    apart |= {"count_tasks", "list_few_tasks"}
    assert methods == {
        name: set(each.parameters)
        for name, each in statements().items()
        # Those with a text run on connections of callers.
        if name not in apart and each.parameters != {"text"}
    }


def test_effects_of_a_manager_are_fenced_by_the_row_of_the_leadership() -> None:
    # The status is for people, and compared with its own term; the leadership is what is compared.
    apart = {"take_leadership", "write_status", "record_workers"}
    apart |= {"cancel_pending", "cancel_pending_flow"}  # of callers: what no manager has claimed
    for name, each in statements().items():
        if each.writes and name not in apart:
            assert "fairlead.leadership where term = %(term)s for share" in each.text, name
            assert each.text.count("holds") > 1, name


def test_conditions_that_are_not_given_are_left_out() -> None:
    text = statement("list_tasks").without({"queue": "mail", "state": None, "before": 5})
    assert "queue = %(queue)s" in text
    assert "state = " not in text
    assert "@" not in text


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("state = 'lost'", "tasks_state"),
        ("state = 'claimed'", "tasks_claimed"),
        ("claimed_term = 3", "tasks_claimed"),
        ("state = 'dead'", "tasks_finished"),
        ("finished_at = now()", "tasks_finished"),
        ("submission = null", "tasks_sendable"),
        ("state = 'refused', finished_at = now()", "tasks_refused"),
        ("recoveries = 4", "tasks_recoveries"),
    ],
)
def test_a_row_that_cannot_be_is_refused(ledger_dsn: str, change: str, rule: str) -> None:
    enqueue_at(ledger_dsn, given("a"))
    with (
        psycopg.connect(ledger_dsn, autocommit=True) as connection,
        pytest.raises(psycopg.errors.CheckViolation) as refused,
    ):
        connection.execute(f"update fairlead.tasks set {change}")
    assert refused.value.diag.constraint_name == rule


async def test_a_refusal_names_the_rule_and_no_value(ledger: Ledger) -> None:
    with pytest.raises(LedgerRefused) as refused:
        await record(ledger, "secret-id", states="lost", errors="secret")
    assert (refused.value.cause, refused.value.passes) == ("constraint", False)
    assert "tasks_state" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_there_is_one_leader(ledger_dsn: str) -> None:
    with (
        psycopg.connect(ledger_dsn, autocommit=True) as connection,
        pytest.raises(psycopg.errors.IntegrityError),
    ):
        connection.execute("insert into fairlead.leadership (term, holder) values (9, 'second')")
