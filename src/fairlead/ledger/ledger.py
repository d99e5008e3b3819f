"""The ledger of one event loop: it opens with the first call, and closes what it has opened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import msgspec

from fairlead.embedded.postgres import EmbeddedPostgres
from fairlead.ledger.address import parse_address
from fairlead.ledger.listener import Listener
from fairlead.ledger.migrator import SchemaStatus, check_schema, migrate, schema_status
from fairlead.ledger.pool import Answer, Pool
from fairlead.ledger.queries import Queries
from fairlead.ledger.record_writer import TransactionQueries
from fairlead.ledger.statements import Statement


class Ledger(Queries):
    """PostgreSQL as the record of tasks; one for each event loop.

    ``url`` is ``postgresql://user@host/database``, or ``embedded://PATH`` for a server of one's
    own, which starts here and whose schema is brought up to date by itself. Elsewhere one that is
    missing or older than this release is refused: ``fairlead db migrate`` is for that.
    """

    def __init__(
        self,
        url: str,
        *,
        size: int = 8,
        statement_timeout: float = 10.0,
        lock_timeout: float = 5.0,
        connect_timeout: float = 5.0,
    ) -> None:
        self._address = parse_address(url)
        self._options: dict[str, Any] = {
            "size": size,
            "statement_timeout": statement_timeout,
            "lock_timeout": lock_timeout,
            "connect_timeout": connect_timeout,
        }
        self._server: EmbeddedPostgres | None = None
        self._pool: Pool | None = None  # not opened yet
        self._is_checked = False
        self._opening = asyncio.Lock()
        super().__init__(self)

    def __repr__(self) -> str:
        return f"Ledger({self._address.shown!r})"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and look at the schema. Every call does so if this was not called before."""
        await self._opened()

    async def close(self) -> None:
        """Close the connections, and leave the embedded server. The next call opens it again."""
        async with self._opening:
            pool, self._pool, self._is_checked = self._pool, None, False
            server, self._server = self._server, None
            try:
                if pool is not None:
                    await pool.close()
            finally:
                if server is not None:
                    await asyncio.to_thread(server.stop)

    async def run(self, statement: Statement, parameters: Mapping[str, Any]) -> Answer:
        """Run a statement in a transaction of its own; see ``Pool.run``."""
        return await (await self._opened()).run(statement, parameters)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[TransactionQueries]:
        """Run what is called on the ``Queries`` inside in one transaction: all of it or nothing.

        An error inside rolls back. Raises LedgerAmbiguous if the connection is lost at the commit.
        """
        pool = await self._opened()
        async with pool.transaction() as transaction:
            yield TransactionQueries(transaction)

    async def listen(self, channel: str) -> Listener:
        """Return what waits for notifications, on a connection of its own; the caller closes it."""
        return Listener(await self._opened(), channel)

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were applied here."""
        async with self._opening:
            return await migrate(await self._connected())

    async def schema_status(self) -> SchemaStatus:
        """Return which migrations the ledger has, whether this release can use it or not."""
        async with self._opening:
            return await schema_status(await self._connected())

    async def _opened(self) -> Pool:
        if self._is_checked and self._pool is not None:
            return self._pool
        async with self._opening:
            pool = await self._connected()
            if not self._is_checked:
                await check_schema(pool)
                self._is_checked = True
            return pool

    async def _connected(self) -> Pool:
        """Return the pool, with a server behind it; the schema may be any."""
        if self._pool is not None:
            return self._pool
        address = self._address
        if address.path is not None:
            server = EmbeddedPostgres(address.path)
            dsn = await asyncio.to_thread(server.start)
            self._server = server
            address = msgspec.structs.replace(address, url=dsn)
        pool = Pool(address, **self._options)
        if address.path is not None:
            await migrate(pool)
        await pool.open()
        self._pool = pool
        return pool
