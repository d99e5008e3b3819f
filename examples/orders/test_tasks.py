from __future__ import annotations

import asyncio

import psycopg
import pytest

from fairlead.testing import Kit
from orders.tasks import TABLE, app, place
from tests.support.postgres import ledger_dsn, postgres  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow  # it starts a PostgreSQL


@pytest.fixture
def database(ledger_dsn: str) -> str:  # noqa: F811
    with psycopg.connect(ledger_dsn) as connection:
        connection.execute(TABLE)
    return ledger_dsn


def rows(database: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute("select id, billed from orders order by id").fetchall()


async def test_an_order_is_billed_once_it_is_committed(database: str) -> None:
    async with Kit(app, ledger=database) as kit, app.manager():
        handle = await asyncio.to_thread(place, database, 17, "ada")
        async with asyncio.timeout(60):
            # Until the manager has sent it.
            while await handle.astate() == "pending":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await kit.adrain() == 1
        assert await handle.aresult() == "billed"
        assert rows(database) == [(17, True)]


def test_an_order_that_is_refused_leaves_no_task(database: str) -> None:
    with Kit(app, ledger=database) as kit:
        with pytest.raises(ValueError, match="customer"):
            place(database, 18, "")
        assert rows(database) == []
        with psycopg.connect(database) as connection:
            (count,) = connection.execute("select count(*) from fairlead.tasks").fetchone() or (0,)
        assert count == 0
        assert kit.drain() == 0
