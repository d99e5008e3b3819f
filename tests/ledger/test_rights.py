"""The rights that the documentation grants are those that a program and a manager need."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fairlead import Fairlead
from fairlead.ledger.address import parse_address
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.migrator import migrate
from fairlead.ledger.pool import Pool
from fairlead.manager.manager import Manager
from fairlead.model.ledger_errors import LedgerRefused
from tests.manager.bench import until
from tests.support.postgres import Postgres

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ledger.md"
ROLES = ("shop", "manager")


@pytest.fixture
def roles(postgres: Postgres) -> Iterator[None]:
    """Two roles that may do nothing yet."""
    for role in ROLES:
        postgres.execute(f"create role {role}")
    try:
        yield
    finally:
        for role in ROLES:
            postgres.execute(f"drop role {role}")


def of(role: str, dsn: str) -> str:
    return f"{dsn}&options=-c%20role%3D{role}"


async def is_recorded(app: Fairlead) -> bool:
    return bool((await app.ahistory(state="completed", limit=1)).tasks)


@pytest.mark.usefixtures("roles")
async def test_the_documented_rights_are_enough(postgres: Postgres) -> None:
    grants = re.search(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert grants is not None
    with postgres.database() as dsn:
        app = Fairlead("memory://", ledger=of("shop", dsn))

        @app.task
        def double(number: int) -> int:
            return 2 * number

        with pytest.raises(LedgerRefused, match="grant this role its rights") as refused:
            await app.ahistory()
        assert refused.value.cause == "permission"
        postgres.execute(grants[1], dsn=dsn)
        ledger = Ledger(of("manager", dsn))
        manager = Manager(app._clients.store, ledger)
        running = asyncio.create_task(manager.run())
        try:
            with psycopg.connect(of("shop", dsn)) as connection:
                handle = double.using(tx=connection).enqueue(4)
                assert await handle.astate() == "uncommitted"
                later = double.using(tx=connection, delay=3600).enqueue(5)
                flow = app.enqueue_flow(double.call(1) >> double.call(2), tx=connection)
            assert await ledger.migrate() == []  # by whoever may read what there is
            assert await later.acancel()
            assert await later.astate() == "cancelled"
            async with asyncio.timeout(30), app.worker():
                assert await handle.aresult(timeout=30) == 8
                assert await flow.aresult(timeout=30) == 4
                await until(lambda: is_recorded(app))
        finally:
            manager.stop()
            await running
            await ledger.close()
            await app.aclose()


@pytest.mark.usefixtures("roles")
async def test_who_may_not_migrate_is_told_what_it_takes(postgres: Postgres) -> None:
    with postgres.database("template0") as dsn:
        pool = Pool(parse_address(of("shop", dsn)))
        with pytest.raises(LedgerRefused, match="`grant create on database`") as refused:
            await migrate(pool)
        assert (refused.value.cause, refused.value.code) == ("permission", "42501")


@pytest.mark.usefixtures("roles")
def test_nobody_else_writes_listings_through_the_triggers(postgres: Postgres) -> None:
    grants = re.search(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert grants is not None
    with postgres.database() as dsn:
        postgres.execute(grants[1], dsn=dsn)
        with psycopg.connect(of("shop", dsn)) as connection:
            connection.execute("create temporary table mine (like fairlead.tasks)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(
                    "create trigger listed after insert on mine referencing new table as added"
                    " for each statement execute function fairlead.list_added()"
                )
