"""What errors of the server mean: not executed, perhaps executed, refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from fairlead.ledger.ledger import Ledger
from fairlead.ledger.listener import Listener
from fairlead.model.errors import InvalidOption
from fairlead.model.ledger_errors import LedgerAmbiguous, LedgerRefused, LedgerUnreachable
from tests.ledger.rows import enqueue_at, given, query
from tests.support.postgres import Postgres

LOCKED = "lock table fairlead.leadership in access exclusive mode"


@asynccontextmanager
async def held(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Keep everybody else out of the leadership while this is open."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(LOCKED)
        yield connection
        await connection.rollback()


async def end_the_one_that_waits(dsn: str) -> None:
    ask = (
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = %s"
    )
    until = time.monotonic() + 20
    while not await asyncio.to_thread(query, dsn, ask, "Lock"):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_a_connection_lost_in_a_write_leaves_doubt(ledger: Ledger, ledger_dsn: str) -> None:
    async with held(ledger_dsn):
        write = asyncio.create_task(ledger.take_leadership(term=1, holder="x"))
        await end_the_one_that_waits(ledger_dsn)
        with pytest.raises(LedgerAmbiguous):
            await write
        read = asyncio.create_task(ledger.leadership())
        await end_the_one_that_waits(ledger_dsn)
        with pytest.raises(LedgerUnreachable):
            await read
    assert (await ledger.leadership()).term == 0  # and it works again


async def test_in_a_transaction_nothing_was_done_before_the_commit(
    ledger: Ledger, ledger_dsn: str
) -> None:
    async def work() -> None:
        async with ledger.transaction() as calls:
            await calls.take_leadership(term=1, holder="x")

    async with held(ledger_dsn):
        task = asyncio.create_task(work())
        await end_the_one_that_waits(ledger_dsn)
        with pytest.raises(LedgerUnreachable):
            await task


async def test_a_connection_lost_in_the_commit_leaves_doubt(postgres: Postgres) -> None:
    with postgres.database() as dsn:
        query(
            dsn,
            "create function public.wait() returns trigger language plpgsql as $$ begin"
            " perform from fairlead.leadership for share; return null; end $$;"
            "create constraint trigger late after update on fairlead.workers"
            " deferrable initially deferred for each row execute function public.wait();",
        )
        async with Ledger(dsn) as ledger:
            worker: dict[str, Any] = {"incarnations": ["w"], "hosts": [""], "pids": [1]}
            await ledger.record_workers(**worker, started=[None])

            async def work() -> None:
                async with ledger.transaction() as calls:
                    await calls.record_workers(**worker, started=[None])

            async with held(dsn):
                task = asyncio.create_task(work())
                await end_the_one_that_waits(dsn)  # its commit waits in the trigger
                with pytest.raises(LedgerAmbiguous):
                    await task


async def test_a_lock_that_is_not_to_be_had_is_tried_again_and_then_refused(
    ledger_dsn: str,
) -> None:
    async with Ledger(ledger_dsn, lock_timeout=0.05) as ledger:
        async with held(ledger_dsn) as other:
            task = asyncio.create_task(ledger.take_leadership(term=1, holder="x"))
            await asyncio.sleep(0.12)  # longer than one try
            await other.rollback()
            await task
            await other.execute(LOCKED)
            with pytest.raises(LedgerRefused) as refused:
                await ledger.take_leadership(term=2, holder="x")
        assert (refused.value.cause, refused.value.passes) == ("busy", True)
        assert (await ledger.leadership()).term == 1


async def test_a_statement_that_takes_too_long_is_given_up(ledger_dsn: str) -> None:
    async with Ledger(ledger_dsn, statement_timeout=0.1) as ledger, held(ledger_dsn):
        with pytest.raises(LedgerRefused) as refused:
            await ledger.leadership()
        assert (refused.value.cause, refused.value.code) == ("timeout", "57014")


async def test_a_ledger_that_takes_no_writes_says_so(postgres: Postgres) -> None:
    with postgres.database() as dsn:
        name = dsn.split("@/")[1].split("?")[0]
        query(dsn, f"alter database {name} set default_transaction_read_only = on")
        async with Ledger(dsn) as ledger:
            assert (await ledger.leadership()).term == 0
            with pytest.raises(LedgerRefused) as refused:
                await ledger.take_leadership(term=1, holder="x")
            assert refused.value.cause == "read_only"


async def test_a_server_that_is_away_is_unreachable_and_then_is_there_again(
    postgres: Postgres, ledger_dsn: str
) -> None:
    async with Ledger(ledger_dsn, connect_timeout=0.5) as ledger:
        listener = await ledger.listen("fairlead_due")
        assert await listener.wait_notified(10)
        postgres.stop("immediate")
        began = time.monotonic()
        with pytest.raises(LedgerUnreachable):
            await ledger.leadership()
        assert time.monotonic() - began < 20
        assert not await listener.wait_notified(0.1)
        postgres.start()
        await back(ledger)
        await heard_again(listener)
        await asyncio.to_thread(enqueue_at, ledger_dsn, given("a"))
        assert await listener.wait_notified(20)
        await listener.close()


@pytest.mark.slow
async def test_a_server_that_hangs_is_not_waited_for_without_end(
    postgres: Postgres, ledger_dsn: str
) -> None:
    async with Ledger(ledger_dsn, statement_timeout=0.5, connect_timeout=0.5) as ledger:
        await ledger.leadership()
        postgres.pause()
        try:
            began = time.monotonic()
            with pytest.raises(LedgerUnreachable):
                await ledger.leadership()
            assert time.monotonic() - began < 60
        finally:
            postgres.resume()
        await back(ledger)


async def back(ledger: Ledger) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            await ledger.leadership()
        except LedgerUnreachable:
            assert time.monotonic() < until
        else:
            return


async def heard_again(listener: Listener) -> None:
    """Wait for its new connection, which counts as news."""
    until = time.monotonic() + 20
    while not await listener.wait_notified(1):
        assert time.monotonic() < until


async def test_a_restart_between_two_calls_is_not_noticed(
    postgres: Postgres, ledger: Ledger
) -> None:
    await ledger.take_leadership(term=1, holder="x")
    await asyncio.to_thread(postgres.restart)
    await ledger.take_leadership(term=2, holder="x")
    assert (await ledger.leadership()).term == 2


async def test_where_nothing_listens_it_says_so_at_once() -> None:
    ledger = Ledger("postgresql://user:secret@127.0.0.1:1/shop")
    with pytest.raises(LedgerUnreachable, match=r"127\.0\.0\.1:1/shop") as away:
        await ledger.open()
    assert "secret" not in str(away.value)
    assert "secret" not in repr(ledger)
    await ledger.close()


async def test_a_database_that_there_is_not_is_named(postgres: Postgres) -> None:
    ledger = Ledger(postgres.dsn_of("nobody"))
    with pytest.raises(LedgerRefused, match="create the database") as refused:
        await ledger.open()
    assert refused.value.cause == "database"
    await ledger.close()


@pytest.mark.parametrize("url", ["mysql://user:secret@host/x", "host", "redis://:secret@host", ""])
def test_another_kind_of_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidOption, match="ledger") as refused:
        Ledger(url)
    assert "secret" not in str(refused.value)


async def test_behind_a_pooler_nothing_is_prepared_or_set(ledger_dsn: str) -> None:
    async with Ledger(f"{ledger_dsn}&prepare=off") as ledger:
        for _ in range(8):
            await ledger.leadership()
        async with ledger.transaction() as calls:
            await calls.take_leadership(term=1, holder="x")
        connection = await ledger._pool.connect()  # type: ignore[union-attr]
        try:
            assert connection.prepare_threshold is None
            cursor = await connection.execute("show statement_timeout")
            assert await cursor.fetchone() == ("0",)
        finally:
            await connection.close()
    with pytest.raises(InvalidOption, match="on or off"):
        Ledger(f"{ledger_dsn}&prepare=maybe")


async def test_no_connection_says_why(postgres: Postgres) -> None:
    with postgres.database() as dsn:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        async with Ledger(dsn, connect_timeout=1.0) as ledger:
            await ledger.leadership()
            postgres.execute(f"alter database {name} allow_connections false")
            postgres.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                f" where datname = '{name}'"
            )
            with pytest.raises(LedgerUnreachable, match="not currently accepting connections"):
                await ledger.leadership()
            postgres.execute(f"alter database {name} allow_connections true")
            assert (await ledger.leadership()).term == 0
