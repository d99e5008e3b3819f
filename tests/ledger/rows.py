"""Rows for tests: enqueued as callers do it, or recorded as the recorder does it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import psycopg

from fairlead.ledger.ledger import Ledger
from fairlead.ledger.record_writer import TransactionQueries


def given(id: str, content: str = "c", **more: Any) -> dict[str, Any]:
    """One object of a batch for ``fairlead.enqueue_tasks``."""
    fields = {
        "id": id,
        "queue": "mail",
        "tenant": "acme",
        "name": "send",
        "level": 2,
        "submission": base64.b64encode(f"body of {id}".encode()).decode(),
        "content": base64.b64encode(content.encode()).decode(),
        "depends_on": [],
        "delay": 0,
        "deadline": None,
    }
    return {**fields, **more}


def enqueue(connection: psycopg.Connection[Any], *batch: dict[str, Any]) -> list[tuple[str, str]]:
    """Call the function in the connection's transaction."""
    cursor = connection.execute(
        "select task_id, code from fairlead.enqueue_tasks(%s::json)", (json.dumps(batch),)
    )
    return cursor.fetchall()


def enqueue_at(dsn: str, *batch: dict[str, Any]) -> list[tuple[str, str]]:
    """Call the function in a transaction of its own, and commit."""
    with psycopg.connect(dsn) as connection:
        return enqueue(connection, *batch)


def query(dsn: str, text: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(text, values)
        return cursor.fetchall() if cursor.description else []


DEFAULTS: Mapping[str, Any] = {
    "states": "queued",
    "queues": "mail",
    "tenants": "acme",
    "names": "send",
    "levels": 2,
    "flows": "",
    "submissions": b"body",
    "contents": b"c",
    "at": 1_700_000_000.0,
    "started": None,
    "finished": None,
    "attempts": 0,
    "workers": "",
    "reasons": "",
    "error_types": "",
    "errors": "",
    "entries": 1,
    "indexes": 0,
    "logs": b"",
}


async def record(calls: Ledger | TransactionQueries, *ids: str, **values: Any) -> int:
    """Record these tasks, all with the same values, under the term that stands."""
    if isinstance(calls, Ledger):
        async with calls.transaction() as work:
            return await record(work, *ids, **values)
    given = {**DEFAULTS, **values}
    before = [given[name] for name in ("states", "queues", "tenants", "names", "levels", "flows")]
    created = [given["submissions"], given["contents"], None, given["at"], None, None]
    moments = [given["at"], given["started"], given["finished"], given["attempts"], False]
    names = ("workers", "reasons", "error_types", "errors", "entries", "indexes", "logs")
    rest = [given[name] for name in names]
    term = (await calls.leadership()).term
    rows = [(id, *before, *created, *moments, *rest) for id in ids]
    return await calls.record_tasks(term=term, rows=rows)
