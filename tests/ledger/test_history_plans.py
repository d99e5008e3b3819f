"""Pages of the history are read from an index, whatever is asked for: never the whole table."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fairlead.ledger.rows import moment
from fairlead.ledger.statements import statement

NOW = 1_700_000_000.0
ROWS = 20_000

_FILL = f"""
insert into fairlead.tasks
    (id, state, queue, tenant, name, created_at, finished_at, error_type, error)
select 'id' || n, case when n % 100 = 0 then 'dead' else 'completed' end, 'q' || n % 5,
       't' || n % 200, 'name' || n % 20, to_timestamp({NOW} + n), to_timestamp({NOW} + n),
       case when n % 100 = 0 then 'Error' || n % 7 else '' end,
       case when n % 100 = 0 then 'it took ' || n % 13 || ' seconds' else '' end
from generate_series(1, {ROWS}) n
"""


@pytest.fixture
def filled(ledger_dsn: str) -> str:
    with psycopg.connect(ledger_dsn, autocommit=True) as connection:
        connection.execute(_FILL)
        connection.execute("analyze fairlead.tasks, fairlead.listings")
    return ledger_dsn


def test_every_page_is_read_from_an_index(filled: str) -> None:
    middle = {"since": NOW + ROWS / 2, "until": NOW + ROWS / 2 + 600}
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "listings_pkey"),
        ({"before": moment(NOW + 50), "before_seq": 3}, "listings_pkey"),
        (middle, "listings_pkey"),
        ({"queue": "q1", "since": NOW + ROWS - 99}, "listings_"),
        ({"tenant": "t7"}, "listings_by_tenant"),
        ({"tenant": "t7", **middle}, "listings_by_tenant"),
        ({"tenant": "t7", "before": moment(NOW + 500), "before_seq": 3}, "listings_by_tenant"),
        ({"tenant": "t7", "state": "completed"}, "listings_by_tenant"),
        ({"name": "name3", "until": NOW + 5_000}, "listings_"),
    ]
    few: list[tuple[dict[str, Any], str]] = [
        ({"state": "dead"}, "tasks_by_state"),
        ({"state": "dead", **middle}, "tasks_by_state"),
        ({"state": "dead", "tenant": "t100"}, "tasks_by_state"),
        ({"error": "Error3 12"}, "tasks_by_error"),
    ]
    every = ("before", "before_seq", "state", "queue", "tenant", "name", "error", "since", "until")
    cases = [("list_tasks", *each) for each in asked] + [("list_few_tasks", *each) for each in few]
    with psycopg.connect(filled, autocommit=True) as connection:
        for name, given, index in cases:
            values = {**dict.fromkeys(every), **given, "limit": 51}
            text = f"explain (analyze, timing off, summary off) {statement(name).without(values)}"
            rows = connection.execute(text, values).fetchall()
            plan = "\n".join(row[0] for row in rows)
            assert "Seq Scan" not in plan, (given, plan)
            assert index in plan, (given, plan)
