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
        connection.execute("analyze fairlead.tasks")
    return ledger_dsn


def test_every_page_is_read_from_an_index(filled: str) -> None:
    middle = {"since": NOW + ROWS / 2, "until": NOW + ROWS / 2 + 600}
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "tasks_newest"),
        ({"before": moment(NOW + 50), "before_seq": 3}, "tasks_newest"),
        (middle, "tasks_newest"),
        ({"state": "dead"}, "tasks_by_state"),
        ({"state": "dead", **middle}, "tasks_by_state"),
        ({"queue": "q1", "since": NOW + ROWS - 99}, "tasks_"),
        ({"tenant": "t7"}, "tasks_by_tenant"),
        ({"tenant": "t7", **middle}, "tasks_by_tenant"),
        ({"tenant": "t7", "before": moment(NOW + 500), "before_seq": 3}, "tasks_by_tenant"),
        ({"name": "name3", "until": NOW + 5_000}, "tasks_by_name"),
        ({"error": "Error3 12"}, "tasks_by_error"),
    ]
    every = ("before", "before_seq", "state", "queue", "tenant", "name", "error", "since", "until")
    listing = statement("list_tasks")
    with psycopg.connect(filled, autocommit=True) as connection:
        for given, index in asked:
            values = {**dict.fromkeys(every), **given, "limit": 51}
            text = f"explain (analyze, timing off, summary off) {listing.without(values)}"
            rows = connection.execute(text, values).fetchall()
            plan = "\n".join(row[0] for row in rows)
            assert "Seq Scan" not in plan, (given, plan)
            assert index in plan, (given, plan)
