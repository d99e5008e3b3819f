"""Waits for what PostgreSQL notifies of, on a connection of its own that comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from fairlead.ledger.address import psycopg_of
from fairlead.ledger.pool import Pool
from fairlead.model.ledger_errors import LedgerError
from fairlead.runtime.randomness import generator

if TYPE_CHECKING:
    from psycopg import AsyncConnection

log = logging.getLogger("fairlead.ledger")

_LEAST = 2.0  # seconds for a connection
_LONGEST_PAUSE = 5.0  # seconds between two tries to connect


class Listener:
    """Hears notifications of one channel. Who waits also looks from time to time: some get lost."""

    def __init__(self, pool: Pool, channel: str) -> None:
        if not channel.isidentifier():
            raise ValueError(f"{channel!r} is no name of a channel")
        self._pool, self._channel = pool, channel
        self._connection: AsyncConnection[Any] | None = None
        self._pause = 0.1

    async def wait_notified(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; whether there may be something new.

        True also when the connection is new: what was notified of before went unheard. An outage
        is waited through, and logged once.
        """
        psycopg = psycopg_of()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        if self._connection is None:
            return await self._reconnect(timeout)
        try:
            heard = False
            async for _ in self._connection.notifies(timeout=timeout, stop_after=1):
                heard = True  # and those that came with it: they say the same
        except (psycopg.Error, OSError) as error:
            log.warning("the listener of the ledger at %s lost its connection", self._pool.where)
            log.debug("the listener lost its connection", exc_info=error)
            await self.close()
            return await self._reconnect(max(until - loop.time(), 0.0))
        return heard

    async def close(self) -> None:
        """Close the connection; the next wait makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _reconnect(self, timeout: float) -> bool:
        psycopg = psycopg_of()
        try:
            # Those who never wait for long get a connection all the same.
            async with asyncio.timeout(max(timeout, _LEAST)):
                connection = await self._pool.connect()
                try:
                    await connection.execute(f"listen {self._channel}")
                except BaseException:
                    await connection.close()
                    raise
        except (LedgerError, psycopg.Error, OSError, TimeoutError) as error:
            log.debug("the listener of the ledger cannot connect", exc_info=error)
            await asyncio.sleep(min(timeout, self._pause * generator.uniform(0.5, 1.5)))
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return False
        self._connection, self._pause = connection, 0.1
        return True
