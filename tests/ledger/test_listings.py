"""What listings are found by is kept beside the tasks, whoever changes these."""

from __future__ import annotations

import psycopg
import pytest

from fairlead.ledger import queries
from fairlead.ledger.ledger import Ledger
from tests.ledger.rows import enqueue, enqueue_at, given, query, record

_APART = """
select coalesce(t.id, l.id) from fairlead.listings l
full join fairlead.tasks t on (t.created_at, t.seq, t.id, t.queue, t.tenant, t.name)
    = (l.created_at, l.seq, l.id, l.queue, l.tenant, l.name)
where t.id is null or l.id is null
"""


def listed(dsn: str) -> list[str]:
    """The ids that listings have, in their order, once they are seen to agree with the tasks."""
    assert query(dsn, _APART) == []
    return [row[0] for row in query(dsn, "select id from fairlead.listings order by seq")]


async def test_every_task_is_listed_from_its_enqueue_to_its_removal(
    ledger: Ledger, ledger_dsn: str
) -> None:
    enqueue_at(ledger_dsn, given("a"), given("b"), given("a"))
    enqueue_at(ledger_dsn, given("b"), given("c"))
    assert listed(ledger_dsn) == ["a", "b", "c"]
    await record(ledger, "a", "direct", states="completed", finished=1.0)
    await record(ledger, "unnamed", names="")
    assert listed(ledger_dsn) == ["a", "b", "c", "direct", "unnamed"]
    await record(ledger, "unnamed", entries=2)  # now the broker has said its name
    assert listed(ledger_dsn)[-1] == "unnamed"
    assert [row.id for row in await ledger.list_tasks(name="send", limit=1)] == ["c"]
    term = (await ledger.leadership()).term
    assert await ledger.delete_old_tasks(term=term, keep=60.0, limit=9) == 1
    assert listed(ledger_dsn) == ["a", "b", "c", "unnamed"]
    query(
        ledger_dsn, "update fairlead.tasks set id = 'd', queue = 'q', tenant = 't' where id = 'b'"
    )
    query(ledger_dsn, "delete from fairlead.tasks where id = 'a'")
    assert listed(ledger_dsn) == ["d", "c", "unnamed"]


def test_what_is_rolled_back_is_not_listed(ledger_dsn: str) -> None:
    with psycopg.connect(ledger_dsn) as connection:
        enqueue(connection, given("a"))
        connection.rollback()
    assert listed(ledger_dsn) == []


@pytest.mark.parametrize("few", [0, 10_000], ids=["many", "few"])
async def test_a_page_is_the_same_whichever_way_it_is_found(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(queries, "_FEW", few)
    for number in range(12):
        state, error = ("dead", "ValueError") if number % 2 else ("queued", "")
        await record(
            ledger, f"{number:02}", states=state, queues=f"q{number % 3}", error_types=error,
            at=1_700_000_000.0 + number, finished=1_700_000_000.0 if error else None,
        )  # fmt: skip
    found = await ledger.list_tasks(state="dead", queue="q1", limit=1)
    assert [row.id for row in found] == ["07"]
    place = {"before": found[0].created_at, "before_seq": found[0].seq}
    found = await ledger.list_tasks(state="dead", queue="q1", limit=9, **place)  # type: ignore[arg-type]
    assert [row.id for row in found] == ["01"]
    found = await ledger.list_tasks(error="valueerror", name="send", since=1_700_000_004.0, limit=2)
    assert [row.id for row in found] == ["11", "09"]
    assert [row.id for row in await ledger.list_tasks(state="queued", limit=2)] == ["10", "08"]
    assert await ledger.list_tasks(state="dead", error="keyerror") == []
