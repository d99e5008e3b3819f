"""Shards that failed lately: others go on without them until they answer again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fairlead.broker.repeats import pause
from fairlead.broker.sharded.shard_store import ShardStore
from fairlead.model.errors import BrokerError

_log = logging.getLogger(__name__)


class Away:
    """Remembers which shards failed, and finds out beside the calls whether they are back."""

    def __init__(
        self, stores: Mapping[str, ShardStore], addresses: Mapping[str, str] | None = None
    ) -> None:
        self._stores = stores
        self._addresses = addresses or {}  # of shards, for the log
        self._errors: dict[str, BrokerError] = {}  # by shard that is away
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}  # of probes in a row
        self._next: dict[str, float] = {}  # when to probe again, by the loop's clock

    def failed(self, shard: str, error: BrokerError) -> None:
        """A call to it failed."""
        if shard not in self._errors:
            fields = {**self._fields(shard), "error": type(error).__name__}
            _log.warning("shard %s is away; others go on without it", shard, extra=fields)
        self._errors[shard] = error

    def why(self, shard: str) -> BrokerError | None:
        """What it failed with, if it need not be asked now."""
        error = self._errors.get(shard)
        if error is None:
            return None
        probe, loop = self._probes.get(shard), asyncio.get_running_loop()
        if probe is not None and probe.done() and not probe.cancelled():
            del self._probes[shard]
            if probe.exception() is None:
                del self._errors[shard]
                self._failures.pop(shard, None)
                _log.info("shard %s answers again", shard, extra=self._fields(shard))
                return None
            self._failures[shard] = self._failures.get(shard, 0) + 1
            self._next[shard] = loop.time() + pause(self._failures[shard])
        elif probe is not None and probe.get_loop() is loop and not probe.done():
            return error
        if loop.time() >= self._next.get(shard, 0.0):
            self._probes[shard] = loop.create_task(self._probe(shard), name="probe")
        return error

    def _fields(self, shard: str) -> dict[str, str]:
        where = self._addresses.get(shard)
        return {"shard": shard} if where is None else {"shard": shard, "server": where}

    async def _probe(self, shard: str) -> None:
        await self._stores[shard].promote()  # a verb that writes: reads may work for long before

    async def close(self) -> None:
        """Stop looking."""
        loop = asyncio.get_running_loop()
        here = [each for each in self._probes.values() if each.get_loop() is loop]
        self._probes.clear()
        for probe in here:
            probe.cancel()
        if here:
            await asyncio.wait(here)
