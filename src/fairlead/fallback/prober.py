"""Finds out whether a shard that was away takes writes again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlead.broker import Caller, Store
from fairlead.broker.repeats import Limit
from fairlead.fallback.outages import Outages
from fairlead.model.errors import FairleadError
from fairlead.runtime.ids import new_id
from fairlead.runtime.randomness import generator


class Prober:
    """Asks one shard. A probe writes and reads: a call without tasks that is numbered."""

    def __init__(
        self,
        shard: str,
        store: Store,
        outages: Outages,
        *,
        silence: float,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        """A probe has ``silence`` seconds."""
        self._shard = shard
        self._store = store
        self._outages = outages
        self._silence = silence
        self._dice = dice
        self._caller = Caller(f"probe-{new_id()}")

    async def run(self) -> None:
        """Probe until the shard is not away any more."""
        while self._outages.is_away(self._shard):
            await asyncio.sleep(self._outages.pause(self._shard, self._dice()))
            self._outages.probed(self._shard, good=await self.probe())

    async def probe(self) -> bool:
        """Return whether the shard takes a write and says who it is."""
        limit = Limit(asyncio.get_running_loop().time() + self._silence, tries=1)
        try:
            async with asyncio.timeout(self._silence):
                await self._caller.call(lambda call: self._store.enqueue(call, []), limit)
                await self._store.hello()
        except (FairleadError, TimeoutError):
            return False
        return True
