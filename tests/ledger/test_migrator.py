"""Migrations: from nothing, twice, by several at once, beside a release that knows less."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.ledger.address import parse_address
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.migrator import Migration, migrate, migrations, schema_status
from fairlead.ledger.pool import Pool
from fairlead.model.ledger_errors import LedgerRefused, LedgerUnreachable
from tests.ledger.rows import enqueue_at, given, query
from tests.support.postgres import Postgres

NAMES = [f"{each.number:04d}_{each.name}" for each in migrations()]
LAST = migrations()[-1].number


@pytest.fixture
def empty_dsn(postgres: Postgres) -> Iterator[str]:
    with postgres.database("template0") as dsn:
        yield dsn


@pytest.fixture
async def own(postgres: Postgres) -> AsyncIterator[Pool]:
    """Connections to a migrated database that the test may change."""
    with postgres.database() as dsn:
        yield Pool(parse_address(dsn))


def pool(dsn: str) -> Pool:
    return Pool(parse_address(dsn))


async def test_a_ledger_without_a_schema_says_how_to_get_one(empty_dsn: str) -> None:
    ledger = Ledger(empty_dsn)
    try:
        with pytest.raises(LedgerRefused, match="has no schema; run `fairlead db migrate`"):
            await ledger.open()
        status = await ledger.schema_status()
        assert (status.applied, status.pending, status.unknown) == ([], NAMES, [])
        assert await ledger.migrate() == NAMES
        assert await ledger.migrate() == []
        assert (await ledger.leadership()).term == 0
        assert (await ledger.schema_status()).applied == NAMES
    finally:
        await ledger.close()


async def test_several_at_once_apply_each_once(empty_dsn: str) -> None:
    done = await asyncio.gather(*(migrate(pool(empty_dsn)) for _ in range(4)))
    assert sorted(done) == [[], [], [], NAMES]
    found = query(empty_dsn, "select number from fairlead.migrations order by number")
    assert [number for (number,) in found] == [each.number for each in migrations()]


async def test_whoever_waits_too_long_for_another_is_told(own: Pool) -> None:
    blocker = await own.connect()
    try:
        await blocker.execute("select pg_advisory_lock(%s)", (0x666C_6D69,))
        with pytest.raises(LedgerUnreachable, match="another process has been migrating"):
            await migrate(own, timeout=0.1)
    finally:
        await blocker.close()


async def test_a_migration_that_fails_leaves_nothing_of_itself(own: Pool) -> None:
    wrong = Migration(
        LAST + 1, "wrong", "alter table fairlead.tasks add column x int; select nowhere"
    )
    with pytest.raises(LedgerRefused):
        await migrate(own, [*migrations(), wrong])
    assert (await schema_status(own)).unknown == []
    right = Migration(LAST + 1, "right", "alter table fairlead.tasks add column x int")
    assert await migrate(own, [*migrations(), right]) == [f"{LAST + 1:04d}_right"]


async def test_an_older_release_goes_on_while_and_after_a_newer_one_migrates(
    postgres: Postgres,
) -> None:
    later = Migration(
        LAST + 1,
        "later",
        "alter table fairlead.tasks add column later int not null default 0;"
        "select pg_sleep(0.2);"
        "create index tasks_later on fairlead.tasks (later)",
    )
    with postgres.database() as dsn:
        accepted: list[tuple[str, str]] = []
        ends = threading.Event()

        def produce() -> None:
            number = 0
            while not ends.is_set() or number < 5:
                accepted.extend(enqueue_at(dsn, given(f"t{number}")))
                number += 1

        producer = threading.Thread(target=produce)
        async with Ledger(dsn) as old:
            producer.start()
            try:
                await old.take_leadership(term=1, holder="old")
                done = await migrate(pool(dsn), [*migrations(), later])
            finally:
                ends.set()
                producer.join(30)
            assert done == [f"{LAST + 1:04d}_later"]
            assert {code for _, code in accepted} == {"accepted"}
            claimed = await old.claim_tasks(term=1, limit=10_000)
            assert len(claimed) == len(accepted)
        async with Ledger(dsn) as again:  # opened by the release that does not know it
            status = await again.schema_status()
        assert status.is_usable
        assert status.unknown == [f"{LAST + 1:04d}_later"]
