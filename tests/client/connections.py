"""Every kind of connection that a caller may have a transaction on, with the same few methods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings
from django.db import connections
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

__all__ = (
    "ASYNC",
    "SYNC",
    "Opened",
    "OpenedAsync",
    "close_django",
    "configure_django",
    "django_on",
    "tasks_in",
)


class Opened:
    """A connection with a transaction; ``tx`` is what Fairlead is given."""

    def __init__(self, tx: Any, execute: Callable[[str], Any], owner: Any) -> None:
        self.tx, self.execute = tx, execute
        self.commit: Callable[[], None] = owner.commit
        self.rollback: Callable[[], None] = owner.rollback


class OpenedAsync:
    def __init__(self, tx: Any, execute: Callable[[str], Any], end: Callable[[str], Any]) -> None:
        self.tx, self.execute, self._end = tx, execute, end

    async def commit(self) -> None:
        await self._end("commit")

    async def rollback(self) -> None:
        await self._end("rollback")


# -- sync -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def psycopg3(dsn: str) -> Iterator[Opened]:
    with contextlib.closing(psycopg.connect(dsn, row_factory=dict_row)) as connection:
        yield Opened(connection, connection.execute, connection)


@contextlib.contextmanager
def psycopg_raw(dsn: str) -> Iterator[Opened]:
    """Its cursors write parameters in another way."""
    with contextlib.closing(psycopg.connect(dsn, cursor_factory=psycopg.RawCursor)) as connection:
        yield Opened(connection, connection.execute, connection)


@contextlib.contextmanager
def old_psycopg(dsn: str) -> Iterator[Opened]:
    with contextlib.closing(psycopg2.connect(dsn)) as connection:

        def execute(text: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(text)

        yield Opened(connection, execute, connection)


@contextlib.contextmanager
def alchemy_connection(dsn: str) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(alchemy_url(dsn, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield Opened(connection, lambda t: connection.execute(sqlalchemy.text(t)), connection)


@contextlib.contextmanager
def alchemy_session(dsn: str) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(alchemy_url(dsn, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield Opened(session, lambda text: session.execute(sqlalchemy.text(text)), session)


@contextlib.contextmanager
def alchemy_scoped(dsn: str) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(alchemy_url(dsn, "psycopg2"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    try:
        yield Opened(session, lambda text: session.execute(sqlalchemy.text(text)), session)
    finally:
        session.remove()


@contextlib.contextmanager
def django_alias(dsn: str) -> Iterator[Opened]:
    with django_on(dsn):
        connection = connections["default"]
        connection.set_autocommit(False)

        def execute(text: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(text)

        yield Opened("default", execute, connection)


@contextlib.contextmanager
def django_on(dsn: str) -> Iterator[None]:
    """Let the database ``default`` of Django be this one, for this thread."""
    configure_django(dsn)
    try:
        yield
    finally:
        close_django()


def configure_django(dsn: str) -> None:
    if not settings.configured:
        lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        postgres = {"ENGINE": "django.db.backends.postgresql"}
        settings.configure(DATABASES={"default": postgres, "lite": lite}, USE_TZ=True)
        django.setup()
    parts = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    connections.databases["default"] |= {
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or query.get("user", ""),
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or query.get("host", ""),
        "PORT": str(parts.port or query.get("port", "")),
    }


def close_django() -> None:
    """Of the thread that calls: the next connection is a new one, to wherever it is then."""
    for alias in ("default", "lite"):
        connections[alias].close()
        del connections[alias]


# -- async ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def psycopg3_async(dsn: str) -> AsyncIterator[OpenedAsync]:
    connection = await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row)
    try:
        yield OpenedAsync(connection, connection.execute, lambda end: getattr(connection, end)())
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[OpenedAsync]:
    connection = await asyncpg.connect(dsn)
    # As those who like their JSON decoded do: it must not encode ours once more.
    await connection.set_type_codec("json", encoder=repr, decoder=repr, schema="pg_catalog")
    await connection.execute("begin")
    try:
        yield OpenedAsync(connection, connection.execute, connection.execute)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[OpenedAsync]:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=1)
    try:
        async with pool.acquire() as connection:
            await connection.execute("begin")
            yield OpenedAsync(connection, connection.execute, connection.execute)
    finally:
        pool.terminate()


@contextlib.asynccontextmanager
async def alchemy_async(dsn: str, driver: str) -> AsyncIterator[OpenedAsync]:
    engine = create_async_engine(alchemy_url(dsn, driver), poolclass=NullPool)
    async with engine.connect() as connection:
        yield OpenedAsync(
            connection,
            lambda text: connection.execute(sqlalchemy.text(text)),
            lambda end: getattr(connection, end)(),
        )


@contextlib.asynccontextmanager
async def alchemy_async_session(dsn: str) -> AsyncIterator[OpenedAsync]:
    engine = create_async_engine(alchemy_url(dsn, "asyncpg"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield OpenedAsync(
            session,
            lambda text: session.execute(sqlalchemy.text(text)),
            lambda end: getattr(session, end)(),
        )


def alchemy_url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


SYNC: dict[str, Callable[[str], AbstractContextManager[Opened]]] = {
    "psycopg": psycopg3,
    "psycopg-raw": psycopg_raw,
    "psycopg2": old_psycopg,
    "sqlalchemy-connection": alchemy_connection,
    "sqlalchemy-session": alchemy_session,
    "sqlalchemy-scoped": alchemy_scoped,
    "django": django_alias,
}
ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[OpenedAsync]]] = {
    "psycopg": psycopg3_async,
    "asyncpg": asyncpg_connection,
    "asyncpg-pool": asyncpg_pool,
    "sqlalchemy-psycopg": lambda dsn: alchemy_async(dsn, "psycopg"),
    "sqlalchemy-asyncpg": lambda dsn: alchemy_async(dsn, "asyncpg"),
    "sqlalchemy-session": alchemy_async_session,
}


def tasks_in(dsn: str) -> list[str]:
    """The ids of the tasks that are committed, in the order in which they were written."""
    with psycopg.connect(dsn) as connection:
        return [id for (id,) in connection.execute("select id from fairlead.tasks order by seq")]
