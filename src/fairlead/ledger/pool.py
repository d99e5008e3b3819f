"""Connections to the ledger, for one event loop: statements, transactions, what errors mean.

One policy for repeats: a statement that collided with another transaction (a deadlock, a lock that
was not to be had in time) is tried again a few times, because it certainly did nothing. Nothing
else is repeated here: only the caller knows whether what may have been done can be done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fairlead.ledger.address import Address, conninfo, psycopg_of
from fairlead.ledger.errors import at_connect, is_collision, meaning
from fairlead.ledger.statements import Statement
from fairlead.model.ledger_errors import LedgerAmbiguous, LedgerError, LedgerUnreachable
from fairlead.runtime.randomness import generator

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

_TRIES = 5
_FIRST_PAUSE = 0.02  # seconds, doubled each time, with jitter
_CHECK_IN = 2.0  # seconds for a sign of life, which takes a round trip
_RECENT = 15.0  # seconds for which a failure to connect explains that there is no connection
_GRACE = 5.0  # seconds beyond the server's own limit before a statement is given up here


class Answer(msgspec.Struct, frozen=True):
    """The rows of a statement, and how many it changed or returned."""

    rows: Sequence[tuple[Any, ...]]
    count: int


class Executor(Protocol):
    """What runs a statement: a pool, or a transaction."""

    async def run(self, statement: Statement, parameters: Mapping[str, Any]) -> Answer:
        """Run it. Raises the errors of ``model/ledger_errors.py``."""
        ...


class Pool:
    """Up to ``size`` connections of one event loop; each statement is a transaction of its own."""

    def __init__(
        self,
        address: Address,
        *,
        size: int = 8,
        statement_timeout: float = 10.0,
        lock_timeout: float = 5.0,
        connect_timeout: float = 5.0,
    ) -> None:
        self._address = address
        self._where = address.shown
        self._size = size
        self._limit = statement_timeout
        self._connect_in = connect_timeout
        self._conninfo = conninfo(
            address, statement_timeout=statement_timeout, lock_timeout=lock_timeout
        )
        self._pool: AsyncConnectionPool[AsyncConnection[tuple[Any, ...]]] | None = None
        self._keeper: asyncio.Task[None] | None = None  # closes the pool at the end of the loop
        self._trouble: tuple[float, Exception] | None = None  # when, and why it could not connect

    @property
    def where(self) -> str:
        """The address without a password, for messages."""
        return self._where

    async def connect(self) -> AsyncConnection[tuple[Any, ...]]:
        """Return a connection of the caller's own, which it closes."""
        psycopg = psycopg_of()
        try:
            async with asyncio.timeout(self._connect_in + _GRACE):
                made: AsyncConnection[tuple[Any, ...]] = await psycopg.AsyncConnection.connect(
                    self._conninfo, **self._session()
                )
                return made
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise at_connect(error, self._where) from error

    async def open(self) -> None:
        """Begin to connect. The first connections are made when they are needed."""
        psycopg_of()
        from psycopg_pool import AsyncConnectionPool

        pool = AsyncConnectionPool(
            self._conninfo,
            connection_class=self._remembering(),
            kwargs=self._session(),
            min_size=0,
            max_size=self._size,
            timeout=self._connect_in,
            reconnect_timeout=self._connect_in,
            max_idle=60.0,
            check=AsyncConnectionPool.check_connection,
            num_workers=2,
            name="fairlead",
            open=False,
        )
        await pool.open()
        self._pool, self._keeper = pool, asyncio.create_task(_keep(pool), name="ledger connections")

    async def close(self) -> None:
        """Close the connections; without effect on a pool that is closed."""
        pool, self._pool = self._pool, None
        keeper, self._keeper = self._keeper, None
        if pool is not None and keeper is not None:
            await pool.close(timeout=_GRACE)
            keeper.cancel()
            await asyncio.wait([keeper])

    async def run(self, statement: Statement, parameters: Mapping[str, Any]) -> Answer:
        """Run a statement in a transaction of its own, again if it collided with another one."""
        psycopg = psycopg_of()
        pause = _FIRST_PAUSE
        for attempt in range(_TRIES):
            try:
                async with self._connection() as connection:
                    return await execute(connection, statement, parameters, self._limit)
            except psycopg.Error as error:
                if not is_collision(error) or attempt == _TRIES - 1:
                    raise meaning(error, self._where, is_in_doubt=statement.writes) from error
            except TimeoutError as error:
                raise self._given_up(statement.writes) from error
            await asyncio.sleep(pause * generator.uniform(0.5, 1.5))
            pause *= 2
        raise AssertionError("unreachable")  # the last attempt returned or raised

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Run what is done inside in one transaction: all of it, or nothing if an error is raised.

        Raises LedgerAmbiguous if the connection is lost while it commits.
        """
        psycopg = psycopg_of()
        async with self._connection() as connection:
            transaction = Transaction(connection, self._where, self._limit)
            try:
                await self._control(connection, "begin")
                yield transaction
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
                    await self._control(connection, "rollback")
                raise
            try:
                await self._control(connection, "commit")
            except psycopg.Error as error:
                raise meaning(error, self._where, is_in_doubt=True) from error
            except TimeoutError as error:
                raise self._given_up(True) from error

    async def _control(self, connection: AsyncConnection[Any], command: str) -> None:
        psycopg = psycopg_of()
        try:
            async with asyncio.timeout(self._limit + _GRACE):
                await connection.execute(command)
        except psycopg.Error as error:
            if command == "begin":
                raise meaning(error, self._where, is_in_doubt=False) from error
            raise
        except TimeoutError as error:
            if command == "begin":
                raise self._given_up(False) from error
            raise

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[tuple[Any, ...]]]:
        """Borrow a connection, and raise a cancellation of this task that was lost meanwhile.

        On Python 3.11 the pool and psycopg lose one that comes together with what they wait for. A
        task that goes on after errors would never end, nor would those who wait for its end.
        """
        cancelled = _cancellations()
        try:
            async with self._borrowed() as connection:
                if _cancellations() <= cancelled:
                    yield connection
        finally:
            if _cancellations() > cancelled:
                raise asyncio.CancelledError

    @contextlib.asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[AsyncConnection[tuple[Any, ...]]]:
        pool = self._pool  # whoever closes it meanwhile still gets the connection back
        if pool is None:
            raise LedgerUnreachable(f"the connections to the ledger at {self._where} are closed")
        from psycopg_pool import PoolClosed, PoolTimeout

        try:
            # The pool limits its own waiting, but not that for a sign of life of a connection.
            async with asyncio.timeout(self._connect_in + _CHECK_IN):
                connection = await pool.getconn()
        except (PoolTimeout, TimeoutError) as error:
            if self._trouble is not None and time.monotonic() - self._trouble[0] < _RECENT:
                raise at_connect(self._trouble[1], self._where) from error
            raise LedgerUnreachable(
                f"the ledger at {self._where} gave no connection within {self._connect_in:g} s"
            ) from error
        except PoolClosed as error:
            raise LedgerUnreachable(f"the connections to {self._where} are closed") from error
        try:
            yield connection
        finally:
            # A connection that was left in the middle of something is closed there, not used again.
            await pool.putconn(connection)

    def _remembering(self) -> type[AsyncConnection[tuple[Any, ...]]]:
        """Connections that tell why they failed, which the pool keeps to itself."""
        from psycopg import AsyncConnection, Error

        pool = self

        class Remembering(AsyncConnection[tuple[Any, ...]]):
            @classmethod
            async def connect(cls, *args: Any, **options: Any) -> Any:
                try:
                    return await super().connect(*args, **options)
                except (Error, OSError) as error:
                    pool._trouble = (time.monotonic(), error)
                    raise

        return Remembering

    def _session(self) -> dict[str, Any]:
        prepare = {"prepare_threshold": None} if self._address.is_pooled else {}
        return {"autocommit": True, **prepare}

    def _given_up(self, writes: bool) -> LedgerError:
        what = f"the ledger at {self._where} did not answer within {self._limit + _GRACE:g} s"
        return (
            LedgerAmbiguous(f"{what}; it may have been done") if writes else LedgerUnreachable(what)
        )


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _keep(pool: AsyncConnectionPool[Any]) -> None:
    """Close a pool when this is cancelled, which the end of the loop does if nobody else did.

    Tasks of the pool lose a cancellation that arrives at the wrong moment, and ``asyncio.run`` of a
    program that did not close its app would wait for them for ever. They hear of an orderly end.
    """
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await pool.close(timeout=_GRACE)


class Transaction:
    """An open transaction. Whatever fails in it, nothing of it was written."""

    def __init__(self, connection: AsyncConnection[Any], where: str, limit: float) -> None:
        self._connection, self._where, self._limit = connection, where, limit

    async def run(self, statement: Statement, parameters: Mapping[str, Any]) -> Answer:
        psycopg = psycopg_of()
        try:
            return await execute(self._connection, statement, parameters, self._limit)
        except psycopg.Error as error:
            raise meaning(error, self._where, is_in_doubt=False) from error
        except TimeoutError as error:
            raise LedgerUnreachable(
                f"the ledger at {self._where} did not answer in time"
            ) from error

    async def copy(
        self, statement: Statement, types: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Copy rows to where a ``copy ... from stdin`` in the binary format says."""
        psycopg = psycopg_of()
        try:
            async with asyncio.timeout(self._limit + _GRACE):
                cursor = self._connection.cursor()
                async with cursor.copy(statement.text) as copying:
                    copying.set_types(types)
                    for row in rows:
                        await copying.write_row(row)
        except psycopg.Error as error:
            raise meaning(error, self._where, is_in_doubt=False) from error
        except TimeoutError as error:
            raise LedgerUnreachable(
                f"the ledger at {self._where} did not answer in time"
            ) from error


async def execute(
    connection: AsyncConnection[Any],
    statement: Statement,
    parameters: Mapping[str, Any],
    limit: float,
) -> Answer:
    """Run a statement on a connection; errors are psycopg's, or a TimeoutError."""
    async with asyncio.timeout(limit + _GRACE):
        # None leaves it to psycopg: what is run often is prepared.
        prepare = None if statement.is_prepared else False
        cursor = await connection.execute(
            statement.without(parameters), parameters, prepare=prepare
        )
        rows = await cursor.fetchall() if cursor.description is not None else ()
        return Answer(rows, cursor.rowcount)
