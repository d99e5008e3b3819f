"""Enqueues in the caller's transaction, through every kind of connection, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pytest
import sqlalchemy
from asgiref.sync import sync_to_async
from django.db import transaction

from fairlead import Fairlead, InvalidInput, InvalidOption
from fairlead.client import Task
from fairlead.model.ledger_errors import LedgerRefused
from tests.client.connections import (
    ASYNC,
    SYNC,
    close_django,
    configure_django,
    django_on,
    tasks_in,
)
from tests.support.postgres import Postgres

app = Fairlead("memory://")


@app.task
def work(n: int = 0) -> int:
    return n


def orders_in(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from orders").fetchone()
    assert row is not None
    return int(row[0])


# -- commit, rollback, savepoints -----------------------------------------------------------------


@pytest.mark.parametrize("kind", SYNC)
def test_a_task_exists_if_and_only_if_the_transaction_commits(dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as opened:
        opened.execute("insert into orders values (1)")
        lost = work.using(tx=opened.tx).enqueue(1)
        assert lost.id
        opened.rollback()
        assert (orders_in(dsn), tasks_in(dsn)) == (0, [])

        opened.execute("insert into orders values (2)")
        handles = [work.using(tx=opened.tx).enqueue(n) for n in range(2)]
        handles += app.enqueue_many([work.call(2), work.call(3)], tx=opened.tx)
        assert tasks_in(dsn) == []  # nobody else sees them yet
        opened.commit()
    assert (orders_in(dsn), tasks_in(dsn)) == (1, [handle.id for handle in handles])


@pytest.mark.parametrize("kind", SYNC)
def test_a_savepoint_takes_back_what_came_after_it(dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as opened:
        first = work.using(tx=opened.tx).enqueue(1)
        opened.execute("savepoint here")
        work.using(tx=opened.tx).enqueue(2)
        opened.execute("rollback to savepoint here")
        last = work.using(tx=opened.tx).enqueue(3)
        opened.commit()
    assert tasks_in(dsn) == [first.id, last.id]


@pytest.mark.parametrize("kind", ASYNC)
async def test_a_task_of_an_async_transaction_exists_if_and_only_if_it_commits(
    dsn: str, kind: str
) -> None:
    async with ASYNC[kind](dsn) as opened:
        await opened.execute("insert into orders values (1)")
        await work.using(tx=opened.tx).aenqueue(1)
        await opened.rollback()
        assert (orders_in(dsn), tasks_in(dsn)) == (0, [])
        if kind.startswith("asyncpg"):
            await opened.execute("begin")
        await opened.execute("insert into orders values (2)")
        handle = await work.using(tx=opened.tx).aenqueue(2)
        await opened.execute("savepoint here")
        await work.using(tx=opened.tx).aenqueue(3)
        await opened.execute("rollback to savepoint here")
        more = await app.aenqueue_many([work.call(4), work.call(5)], tx=opened.tx)
        assert tasks_in(dsn) == []
        await opened.commit()
    assert (orders_in(dsn), tasks_in(dsn)) == (1, [each.id for each in (handle, *more)])


def fail_after(n: int) -> None:
    with transaction.atomic():
        work.using(tx="default").enqueue(n)
        raise ZeroDivisionError


def test_django_blocks_nest(dsn: str) -> None:
    with django_on(dsn):
        with transaction.atomic():
            outer = work.using(tx="default").enqueue(1)
            with pytest.raises(ZeroDivisionError):
                fail_after(2)
            with transaction.atomic():
                inner = work.using(tx="default").enqueue(3)
            assert tasks_in(dsn) == []
        assert tasks_in(dsn) == [outer.id, inner.id]
        with pytest.raises(ZeroDivisionError):
            fail_after(4)
        alone = work.using(tx="default").enqueue(5)  # outside: it is committed at once
        assert tasks_in(dsn) == [outer.id, inner.id, alone.id]


async def test_django_in_async_code_works_as_its_own_async_methods_do(dsn: str) -> None:
    configure_django(dsn)
    try:
        handle = await work.using(tx="default").aenqueue(1)
        assert tasks_in(dsn) == [handle.id]
    finally:
        await sync_to_async(close_django)()


def test_a_connection_that_commits_by_itself_does_so(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        handle = work.using(tx=connection).enqueue(1)
        assert tasks_in(dsn) == [handle.id]


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy-session"])
async def test_a_sync_connection_serves_async_code(dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as opened:
        one = await work.using(tx=opened.tx).aenqueue(1)
        (two,) = await app.aenqueue_many([work.call(2)], tx=opened.tx)
        opened.commit()
    assert tasks_in(dsn) == [one.id, two.id]


def test_threads_with_connections_of_their_own(dsn: str) -> None:
    made: dict[int, list[str]] = {}

    def run(number: int) -> None:
        with psycopg.connect(dsn) as connection:
            made[number] = [work.using(tx=connection).enqueue(n).id for n in range(20)]
            if number % 2:
                connection.rollback()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(tasks_in(dsn)) == {*made[0], *made[2]}


@pytest.mark.parametrize("commits", [True, False])
def test_the_same_id_in_two_open_transactions_is_one_task(dsn: str, commits: bool) -> None:
    """The second one waits for the first: it is a duplicate only if that commits."""
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        assert not work.using(tx=one, id="same").enqueue(1).duplicate
        found: list[bool] = []

        def second() -> None:
            found.append(work.using(tx=two, id="same").enqueue(1).duplicate)
            two.commit()

        thread = threading.Thread(target=second)
        thread.start()
        with psycopg.connect(dsn, autocommit=True) as watching:
            waits = (
                "select count(*) from pg_stat_activity"
                " where wait_event_type = 'Lock' and datname = current_database()"
            )
            while watching.execute(waits).fetchone() == (0,):
                assert thread.is_alive()
        if commits:
            one.commit()
        else:
            one.rollback()
        thread.join(30)
    assert found == [commits]
    assert tasks_in(dsn) == ["default:same"]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SYNC)
def test_a_database_without_the_schema_says_what_to_do(empty: str, kind: str) -> None:
    with SYNC[kind](empty) as opened:
        with pytest.raises(LedgerRefused, match="fairlead db migrate") as caught:
            work.using(tx=opened.tx).enqueue(1)
        opened.rollback()
    assert caught.value.cause == "schema"


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_async_database_without_the_schema_says_what_to_do(empty: str, kind: str) -> None:
    async with ASYNC[kind](empty) as opened:
        with pytest.raises(LedgerRefused, match="fairlead db migrate"):
            await work.using(tx=opened.tx).aenqueue(1)
        await opened.rollback()


def test_other_errors_are_those_of_the_driver(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute("select nothing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            work.using(tx=connection).enqueue(1)


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_async_connection_in_sync_code_is_refused(dsn: str, kind: str) -> None:
    async with ASYNC[kind](dsn) as opened:
        for enqueue in (
            lambda: work.using(tx=opened.tx).enqueue(1),
            lambda: app.enqueue_many([work.call(1)], tx=opened.tx),
            lambda: app.enqueue_flow(work.call(1), tx=opened.tx),
            lambda: app.named(work.name).using(tx=opened.tx).enqueue(1),
        ):
            with pytest.raises(InvalidOption, match="aenqueue"):
                enqueue()


class Stranger:
    """Has the methods of a connection, and is none that is known."""

    def execute(self, text: str) -> None: ...


@pytest.mark.parametrize("tx", [None, 7, Stranger(), psycopg, object])
def test_what_is_no_connection_is_refused(tx: Any) -> None:
    with pytest.raises(InvalidOption, match=r"psycopg.*SQLAlchemy.*asyncpg.*Django") as caught:
        work.using(tx=tx)
    if tx is not None:
        assert type(tx).__qualname__ in str(caught.value)
    for enqueue in (app.enqueue_many, app.enqueue_flow):
        with pytest.raises(InvalidOption, match="tx="):
            enqueue([work.call(1)], tx=tx)


def test_cursors_and_engines_are_refused(dsn: str) -> None:
    with psycopg.connect(dsn) as connection, pytest.raises(InvalidOption, match=r"psycopg\.Cursor"):
        work.using(tx=connection.cursor())
    with pytest.raises(InvalidOption, match=r"sqlalchemy.*Engine"):
        work.using(tx=sqlalchemy.create_engine("sqlite://"))


def test_other_databases_are_refused(dsn: str) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with (
        engine.connect() as connection,
        pytest.raises(InvalidOption, match=r"'sqlite' is not valid: it must be .* PostgreSQL"),
    ):
        work.using(tx=connection).enqueue(1)
    engine.dispose()
    with django_on(dsn):
        with pytest.raises(InvalidOption, match=r"'sqlite' is not valid: it must be .* PostgreSQL"):
            work.using(tx="lite").enqueue(1)
        with pytest.raises(InvalidOption, match=r"settings\.DATABASES: default, lite"):
            work.using(tx="defualt").enqueue(1)


def test_a_call_has_no_transaction_of_its_own(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        sender = work.using(tx=connection, tenant="acme")
        for make in (
            lambda: sender.call(1),
            lambda: work.call(1).using(tx=connection),
            lambda: app.named("elsewhere").using(tx=connection).call(1),
            lambda: app.named("elsewhere").call(1).using(tx=connection),
            lambda: app.schedules.create("nightly", sender, every="1d"),
        ):
            with pytest.raises(InvalidInput, match=r"app.enqueue_many\(\[...\], tx=...\)"):
                make()
        assert sender.using(tenant="other").enqueue(1).tenant == "other"  # it still has it
    assert len(tasks_in(dsn)) == 1


def test_the_transaction_is_no_option_that_is_stored(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        sender: Task[..., int] | Any = work.using(tx=connection, queue="mail")
        assert "tx" not in type(sender._bound.said).__struct_fields__
        assert str(connection) not in repr(sender._bound.said)


def test_a_role_needs_few_rights(dsn: str, postgres: Postgres) -> None:
    postgres.execute(
        """
        drop role if exists shop;
        create role shop login;
        grant usage on schema fairlead to shop;
        grant select, insert on fairlead.tasks, fairlead.flows to shop;
        """,
        dsn=dsn,
    )
    try:
        with psycopg.connect(dsn.replace("fairlead@", "shop@", 1)) as connection:
            handle = work.using(tx=connection).enqueue(1)
            app.enqueue_flow(work.call(1), tx=connection)
            app.enqueue_flow(work.call(1), tx=connection, id="f")
            assert app.enqueue_flow(work.call(1), tx=connection, id="f").duplicate
        assert tasks_in(dsn) == [handle.id]
    finally:
        postgres.execute("drop owned by shop; drop role shop", dsn=dsn)


def test_no_library_is_imported_that_the_caller_does_not_use(dsn: str) -> None:
    program = f"""
import sys
import fairlead
libraries = {{"psycopg", "psycopg2", "sqlalchemy", "asyncpg", "django", "asgiref"}}
assert not libraries & set(sys.modules)
app = fairlead.Fairlead("memory://")
work = app.task(name="work")(lambda: None)
import psycopg
with psycopg.connect({dsn!r}) as connection:
    work.using(tx=connection).enqueue()
assert libraries & set(sys.modules) == {{"psycopg"}}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(tasks_in(dsn)) == 1


async def test_async_tasks_may_share_a_connection_one_after_the_other(dsn: str) -> None:
    async with ASYNC["psycopg"](dsn) as opened:
        handles = await asyncio.gather(*(work.using(tx=opened.tx).aenqueue(n) for n in range(10)))
        await opened.commit()
    assert {handle.id for handle in handles} == set(tasks_in(dsn))
