"""What handlers write while they run: progress, log lines, XCom values, checkpoints; fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from fairlead.broker import LIMIT, Caller, Store
from fairlead.broker.repeats import Limit, late, undone
from fairlead.broker.requests import MAX_EXCHANGE, MAX_XCOM_BYTES, Call, Settled, Write
from fairlead.model.errors import BrokerError, Fenced, Refused
from fairlead.runtime.batcher import Batcher
from fairlead.runtime.component import Outage

_SOON = 2.0  # seconds that progress may take to be written
_AWAY = 0.1  # seconds, while the broker is known to be away: handlers have their own time limits


class Writes(Protocol):
    """Where the context of an attempt writes to and reads from."""

    limit: float  # seconds that a call may take that does not say so itself
    incarnation: str  # whose leases the attempts have

    async def write(self, write: Write, limit: float | None = None) -> None:
        """Return once it is written."""
        ...

    async def report(self, write: Write) -> bool:
        """Write what nobody depends on; whether it was written."""
        ...

    async def pull(self, tenant: str, key: str) -> bytes | None:
        """One XCom value of a tenant, or None."""
        ...

    async def checkpoint(self, id: str) -> bytes | None:
        """What a task has saved last, or None."""
        ...


class ProgressWriter:
    """Carries the writes of all attempts to the broker, those of one moment in one call."""

    def __init__(
        self, broker: Store, caller: Caller, incarnation: str, *, limit: float = LIMIT
    ) -> None:
        """``caller`` is nobody else's: an exchange is repeated for as long as an outage lasts.

        ``limit`` is how many seconds a call may take that does not say so itself.
        """
        self.limit = limit
        self.incarnation = incarnation  # whose leases they are; in a slot process not the caller's
        self._broker = broker
        self._caller = caller
        self._batcher: Batcher[Write, Settled] = Batcher(
            self._flush, limit=MAX_EXCHANGE, again=undone, late=late
        )
        self._unwritten = Outage("progress")

    async def write(self, write: Write, limit: float | None = None) -> None:
        """Return once it is written, within so many seconds.

        Raises ``Fenced`` if the lease is over, ``Refused`` if the tenant has no room for the value.
        """
        until = asyncio.get_running_loop().time() + (self.limit if limit is None else limit)
        answer = await self._batcher.submit(write, until)
        if answer == "full":
            raise Refused(
                "full",
                f"there is no room for the xcom value {write.key!r}: values of one tenant may "
                f"count for {MAX_XCOM_BYTES} bytes in all; push fewer or smaller ones, with a "
                "shorter ttl, or store them elsewhere and push where they are",
            )
        if answer != "applied":
            raise Fenced(write.lease.id, write.lease.token)

    async def report(self, write: Write) -> bool:
        """Write what nobody depends on; whether it was. Fenced if the lease is over.

        A broker that cannot take it is logged once, and is not the handler's business.
        """
        try:
            await self.write(write, _SOON if self._unwritten.since is None else _AWAY)
        except BrokerError as error:
            self._unwritten.failed(error)
            return False
        self._unwritten.over()
        return True

    async def pull(self, tenant: str, key: str) -> bytes | None:
        """One XCom value of a tenant, or None."""
        (value,) = await self._broker.pull(tenant, [key])
        return value

    async def checkpoint(self, id: str) -> bytes | None:
        """What a task has saved last, or None."""
        (record,) = await self._broker.find([id], parts="log")
        return None if record is None else record.checkpoint

    async def _flush(self, writes: list[Write]) -> Sequence[Settled | Exception]:
        async def verb(call: Call) -> list[Settled]:
            return await self._broker.write(call, writes)

        limit = Limit(self._batcher.earliest, self._batcher.latest)
        return await self._caller.call(verb, limit)
