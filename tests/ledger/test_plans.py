"""With a million rows, everything that the manager and the listings ask for comes from an index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from fairlead.ledger.migrator import migrations
from fairlead.ledger.statements import statement
from tests.support.postgres import Postgres

ROWS = 1_000_000
_INDEX = re.compile(r"^create (?:unique )?index .*?;$", re.MULTILINE | re.DOTALL)

# Nearly all have ended, as in a ledger that has been in use for a month.
_FILL = f"""
insert into fairlead.tasks (id, state, queue, tenant, name, submission, created_at, due_at,
    updated_at, started_at, finished_at, claimed_term, reason, error_type, error)
select 'task-' || n, s.state, 'queue-' || n % 20, 'tenant-' || n % 1000, 'name-' || n % 50, 'body',
    at, at, at, at, case when s.state in ('completed', 'dead', 'refused') then at end,
    case when s.state = 'claimed' then 1 end, case when s.state = 'refused' then 'full' else '' end,
    case when s.state = 'dead' then 'ValueError' else '' end,
    case when s.state = 'dead' then 'error number ' || n else '' end
from generate_series(1, {ROWS}) n,
    lateral (select now() - interval '1 second' * ({ROWS} - n) as at) moment,
    lateral (select (array['pending', 'claimed', 'scheduled', 'queued', 'running', 'retrying',
        'dead', 'refused'])[n % 1000 + 1] as early) e,
    lateral (select coalesce(early, 'completed') as state) s
"""


@pytest.fixture
def million(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    """A ledger with a million rows: the indexes are made when they are in, which is faster."""
    with (
        postgres.database("template0") as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("create schema fairlead")
        texts = [each.text for each in migrations()]
        for text in texts:
            connection.execute(_INDEX.sub("", text))
        connection.execute("alter table fairlead.tasks set unlogged")
        connection.execute("alter table fairlead.listings set unlogged")
        connection.execute("set maintenance_work_mem = '256MB'")
        connection.execute(_FILL)
        for index in (found for text in texts for found in _INDEX.findall(text)):
            connection.execute(index)
        connection.execute("update fairlead.leadership set term = 1")
        connection.execute("analyze fairlead.tasks, fairlead.listings")
        yield connection


# The statement, its parameters, and the index that must be used.
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("claim_tasks", {"term": 1, "limit": 500}, "tasks_due"),
    ("release_claims", {"term": 2, "limit": 500}, "tasks_by_state"),
    ("next_due", {}, "tasks_due"),
    ("lag", {}, "tasks_due"),
    ("stuck_tasks", {"older": 300.0, "limit": 500}, "tasks_by_state"),
    ("unfinished_tasks", {"state": "queued", "older": 60.0, "limit": 500}, "tasks_by_state"),
    ("delete_old_tasks", {"term": 1, "keep": 9e5, "limit": 1000}, "tasks_kept"),
    ("states_of", {"ids": ["task-1", "task-2"]}, "tasks_pkey"),
    ("parents_of", {"ids": ["task-1", "task-2"]}, "tasks_pkey"),
    ("last_events", {"ids": ["task-1", "task-2"]}, "tasks_pkey"),
    ("unfinished_tasks", {"state": "running", "limit": 500}, "tasks_by_state"),
    ("count_tasks", {"state": "dead", "limit": 10_001}, "tasks_by_state"),
    ("count_tasks", {"error": "number", "limit": 10_001}, "tasks_by_error"),
    ("task", {"id": "task-5"}, "tasks_pkey"),
    ("list_tasks", {}, "listings_pkey"),
    ("list_tasks", {"queue": "queue-1"}, "listings_"),  # one of two that cost about the same
    ("list_tasks", {"tenant": "tenant-1"}, "listings_by_tenant"),
    ("list_tasks", {"name": "name-1"}, "listings_"),
    ("list_tasks", {"until": 1_000_000_000.0}, "listings_pkey"),
    ("list_tasks", {"since": 9e9, "queue": "queue-1"}, "listings_"),
    ("list_tasks", {"since": 9e8, "until": 1e9, "tenant": "tenant-1"}, "listings_"),
    ("list_tasks", {"state": "completed", "tenant": "tenant-500"}, "listings_by_tenant"),
    ("list_tasks", {"before": datetime.fromtimestamp(9e8, UTC), "before_seq": 5}, "listings_pkey"),
    ("list_few_tasks", {"state": "completed"}, "tasks_by_state"),
    ("list_few_tasks", {"state": "running", "queue": "queue-4"}, "tasks_by_state"),
    ("list_few_tasks", {"state": "dead", "tenant": "tenant-6"}, "tasks_by_state"),
    ("list_few_tasks", {"state": "dead", "until": 1e9}, "tasks_by_state"),
    ("list_few_tasks", {"error": "number 5006"}, "tasks_by_error"),
    ("list_few_tasks", {"error": "number 5006", "name": "name-6"}, "tasks_by_error"),
]


@pytest.mark.slow
@pytest.mark.long(30)
def test_an_index_answers(million: psycopg.Connection[Any]) -> None:
    # One test: to make a million rows takes longer than all that is asked.
    for name, given, index in CASES:
        page = {"limit": 50} if name.startswith("list_") else {}
        check(million, name, {**page, **given}, index)


def check(
    connection: psycopg.Connection[Any], name: str, given: dict[str, Any], index: str
) -> None:
    text = statement(name).without(given)
    with connection.transaction(force_rollback=True):
        cursor = connection.execute(f"explain (analyze, format json) {text}", given)
        row = cursor.fetchone()
    assert row is not None
    [plan] = row[0]
    nodes = list(walk(plan["Plan"]))
    shown = f"{name} {given}: {json.dumps(plan, indent=1)}"
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert any(each.startswith(index) for each in used), shown
    for node in nodes:
        if node["Node Type"] == "Seq Scan":
            assert node["Relation Name"] == "leadership", shown
    read = max(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
    )
    assert read <= 20_000, shown  # a few pages of rows, not the table
    assert plan["Execution Time"] < 2_000, shown


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for each in node.get("Plans", ()):
        yield from walk(each)
