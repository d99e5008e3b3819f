"""The caller's own transaction: how one statement is run through each kind of connection.

Every statement has one parameter, a text, so that all drivers can run all of them. A library is
only imported if the caller's object comes from it. Nothing here begins, commits or rolls back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

from fairlead.model.errors import InvalidOption
from fairlead.model.ledger_errors import LedgerRefused

#: What ``tx=`` takes. There is no common type: psycopg ``Connection`` or ``AsyncConnection``,
#: SQLAlchemy ``Session``, ``Connection``, ``AsyncSession``, ``AsyncConnection`` or scoped sessions,
#: asyncpg ``Connection`` (also from a pool), psycopg2 ``connection``, or the alias of a Django
#: database such as ``"default"``.
Connection: TypeAlias = Any

Rows: TypeAlias = Sequence[Sequence[Any]]

_PARAMETER = "%(text)s"  # as it stands in the statements
_MISSING = frozenset(("3F000", "42883", "42P01"))  # schema, function, table: SQLSTATEs
_RULE = (
    "a connection of psycopg, psycopg2, SQLAlchemy (or a session) or asyncpg, or the alias of a "
    'Django database such as "default"'
)


class Transaction:
    """Runs statements in the transaction of one connection. A subclass for each kind."""

    is_async: ClassVar[bool] = False
    #: How the driver writes the parameter of a statement.
    parameter: ClassVar[str] = "%s"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, statement: str, text: str) -> Rows:
        """Run a statement, wait for it, and return its rows as sequences."""
        with _explained():
            return self._run(statement.replace(_PARAMETER, self.parameter), text)

    async def arows(self, statement: str, text: str) -> Rows:
        """Run a statement from async code. A sync connection blocks, as the caller's own calls."""
        with _explained():
            return await self._arun(statement.replace(_PARAMETER, self.parameter), text)

    def check_sync(self) -> None:
        """Refuse an async connection in sync code, which cannot await it."""
        if self.is_async:
            raise self._misplaced()

    def _misplaced(self) -> InvalidOption:
        rule = "a sync connection here; with this one use the async form: await aenqueue(...)"
        return InvalidOption("tx", _name(type(self._connection)), rule)

    def _run(self, statement: str, text: str) -> Rows:
        raise self._misplaced()  # only async connections do not say how

    async def _arun(self, statement: str, text: str) -> Rows:
        return self._run(statement, text)


class _Psycopg(Transaction):
    """psycopg 3. A cursor of its own: the caller's may have other rows and placeholders."""

    def _run(self, statement: str, text: str) -> Rows:
        import psycopg
        from psycopg.rows import tuple_row

        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            return cursor.execute(statement, (text,)).fetchall()


class _AsyncPsycopg(Transaction):
    is_async = True

    async def _arun(self, statement: str, text: str) -> Rows:
        import psycopg
        from psycopg.rows import tuple_row

        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, (text,))
            return await cursor.fetchall()


class _Psycopg2(Transaction):
    def _run(self, statement: str, text: str) -> Rows:
        from psycopg2.extensions import cursor as plain_cursor

        with self._connection.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(statement, (text,))
            rows: Rows = cursor.fetchall()
            return rows


class _Asyncpg(Transaction):
    is_async = True
    parameter = "$1"

    async def _arun(self, statement: str, text: str) -> Rows:
        rows = await self._connection.fetch(statement, text)
        return [tuple(row) for row in rows]


class _SqlAlchemy(Transaction):
    parameter = ":text"

    def _run(self, statement: str, text: str) -> Rows:
        from sqlalchemy import text as sql

        connection = self._taking_part()
        _check_postgresql(connection.dialect.name)
        return [tuple(row) for row in connection.execute(sql(statement), {"text": text})]

    def _taking_part(self) -> Any:
        return self._connection


class _SqlAlchemySession(_SqlAlchemy):
    """A session: its connection takes part in its transaction, which begins if it has to."""

    def _taking_part(self) -> Any:
        return self._connection.connection()


class _AsyncSqlAlchemy(Transaction):
    is_async = True
    parameter = ":text"

    async def _arun(self, statement: str, text: str) -> Rows:
        from sqlalchemy import text as sql

        connection = await self._taking_part()
        _check_postgresql(connection.dialect.name)
        return [tuple(row) for row in await connection.execute(sql(statement), {"text": text})]

    async def _taking_part(self) -> Any:
        return self._connection


class _AsyncSqlAlchemySession(_AsyncSqlAlchemy):
    async def _taking_part(self) -> Any:
        return await self._connection.connection()


class _Django(Transaction):
    """A connection of Django's, by its alias, in the thread that calls."""

    def _run(self, statement: str, text: str) -> Rows:
        connection = _django_connection(self._connection)
        _check_postgresql(connection.vendor)
        with connection.cursor() as cursor:
            cursor.execute(statement, [text])
            rows: Rows = cursor.fetchall()
            return rows

    async def _arun(self, statement: str, text: str) -> Rows:
        """Run it in the thread in which Django's own async methods run."""
        from asgiref.sync import sync_to_async

        rows: Rows = await sync_to_async(self._run, thread_sensitive=True)(statement, text)
        return rows


#: By package and class. Subclasses of these, which users and other packages make, count as well.
_KINDS: dict[tuple[str, str], type[Transaction]] = {
    ("psycopg", "Connection"): _Psycopg,
    ("psycopg", "AsyncConnection"): _AsyncPsycopg,
    ("psycopg2", "connection"): _Psycopg2,
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("sqlalchemy", "Session"): _SqlAlchemySession,
    ("sqlalchemy", "scoped_session"): _SqlAlchemySession,
    ("sqlalchemy", "Connection"): _SqlAlchemy,
    ("sqlalchemy", "AsyncSession"): _AsyncSqlAlchemySession,
    ("sqlalchemy", "async_scoped_session"): _AsyncSqlAlchemySession,
    ("sqlalchemy", "AsyncConnection"): _AsyncSqlAlchemy,
}


def transaction_of(tx: Connection) -> Transaction:
    """Return what runs statements in the caller's transaction; InvalidOption for other objects."""
    if isinstance(tx, str):
        return _Django(tx)
    for kind in type(tx).__mro__:
        found = _KINDS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found(tx)
    raise InvalidOption("tx", None if tx is None else _name(type(tx)), _RULE)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_postgresql(kind: str) -> None:
    if kind != "postgresql":
        rule = "a transaction in PostgreSQL, where the tables of Fairlead are"
        raise InvalidOption("tx", kind, rule)


def _django_connection(alias: str) -> Any:
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
    except ImportError:
        raise InvalidOption("tx", alias, f"{_RULE}; Django is not installed") from None
    try:
        known = list(connections)
    except ImproperlyConfigured as error:
        raise InvalidOption("tx", alias, f"{_RULE}; Django is not configured: {error}") from None
    if alias not in known:
        raise InvalidOption("tx", alias, f"one of settings.DATABASES: {', '.join(known)}")
    return connections[alias]


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do if the ledger is not there. Other errors are the driver's own."""
    try:
        yield
    except Exception as error:
        code = _sqlstate(error)
        if code in _MISSING:
            raise LedgerRefused(
                "schema",
                "the database of this transaction has no tables of Fairlead, or older ones; "
                "create them: fairlead db migrate",
                code,
            ) from error
        raise


def _sqlstate(error: BaseException | None) -> str:
    """The code of a database error, whatever the drivers and layers wrapped it into."""
    attributes: tuple[str, ...] = ("sqlstate", "pgcode")
    steps: tuple[Callable[[Any], Any], ...] = (
        lambda each: getattr(each, "orig", None),
        lambda each: each.__cause__,
    )
    for _ in range(5):
        if error is None:
            break
        for attribute in attributes:
            code = getattr(error, attribute, None)
            if isinstance(code, str):
                return code
        error = next((found for step in steps if (found := step(error)) is not None), None)
    return ""
