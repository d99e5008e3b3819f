"""What handlers write while they run: progress, XCom values and checkpoints, under their lease."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker import Broker, Caller
from fairlead.broker.verbs import MAX_EXCHANGE, Call, Settled, Write
from fairlead.model.errors import Fenced
from fairlead.runtime.batcher import Batcher

__all__ = ("Writer",)


class Writer:
    """Carries the writes of all attempts to the broker, those of one moment in one call."""

    def __init__(self, broker: Broker, caller: Caller, incarnation: str) -> None:
        self.incarnation = incarnation  # whose leases they are; in a slot process not the caller's
        self._broker = broker
        self._caller = caller
        self._batcher: Batcher[Write, Settled] = Batcher(self._flush, limit=MAX_EXCHANGE)

    async def write(self, write: Write) -> None:
        """Return once it is written; Fenced if the lease is over."""
        if await self._batcher.submit(write) != "applied":
            raise Fenced(write.lease.id, write.lease.token)

    async def pull(self, tenant: str, key: str) -> bytes | None:
        """One XCom value of a tenant, or None."""
        (value,) = await self._broker.pull(tenant, [key])
        return value

    async def _flush(self, writes: list[Write]) -> Sequence[Settled | Exception]:
        async def verb(call: Call) -> list[Settled]:
            return await self._broker.write(call, writes)

        return await self._caller.call(verb)
