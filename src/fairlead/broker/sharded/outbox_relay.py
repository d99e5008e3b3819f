"""Carries what is in the outboxes of shards to the shards it is meant for.

An entry leaves its outbox only once the other shard has taken it in. Whoever dies in between leaves
it to others, who may carry it a second time: taking it in again changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from fairlead.broker.sharded.shard_store import ShardStore
from fairlead.model.errors import BrokerError
from fairlead.runtime import fault_injection

_AT_ONCE = 100  # entries that one step carries from one shard to another
_LAST_WORDS = 1.0  # seconds for what is being carried when the broker is closed

_log = logging.getLogger(__name__)


class OutboxRelay:
    """One per broker; several may work at once, in one process or in many."""

    def __init__(self, stores: Mapping[str, ShardStore]) -> None:
        self._stores = stores
        self._waiting: dict[asyncio.AbstractEventLoop, set[str]] = {}  # shards to look into
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    async def carry(self, source: str, now: float | None = None) -> tuple[int, set[str]]:
        """Empty a shard's outbox by one step; how many tasks were told, and the shards reached.

        A shard that cannot be reached keeps nobody else from getting what is theirs.
        """
        others = [name for name in self._stores if name != source]
        told, reached = 0, set()
        outbox = await self._stores[source].outbox(others, _AT_ONCE) if others else []
        for target, entries in zip(others, outbox, strict=True):
            if not entries:
                continue
            fault_injection.reached("read")
            try:
                told += await self._stores[target].receive(source, entries, now=now)
            except BrokerError as error:
                _failed(source, target, error)
                continue
            fault_injection.reached("received")
            reached.add(target)
            fault_injection.reached("confirming")
            await self._stores[source].confirm(target, entries)
            fault_injection.reached("confirmed")
        return told, reached

    def soon(self, shards: Iterable[str], now: float | None = None) -> None:
        """Carry beside the verbs what a call has just written: nobody waits for it."""
        loop = asyncio.get_running_loop()
        self._waiting.setdefault(loop, set()).update(shards)
        if loop not in self._tasks:
            self._tasks[loop] = loop.create_task(self._run(loop, now), name="carrier")

    async def _run(self, loop: asyncio.AbstractEventLoop, now: float | None) -> None:
        waiting = self._waiting[loop]
        try:
            while waiting:
                source = waiting.pop()
                try:
                    _, reached = await self.carry(source, now)
                except BrokerError as error:
                    _failed(source, source, error)
                    continue
                if reached:  # there may be more, and they may have answered
                    waiting |= {source, *reached}
        finally:
            del self._tasks[loop]
            del self._waiting[loop]

    async def close(self) -> None:
        """Let what is being carried arrive, for a moment; the rest is left to others."""
        for loop, task in list(self._tasks.items()):
            if loop is asyncio.get_running_loop():
                await asyncio.wait((task,), timeout=_LAST_WORDS)
                task.cancel()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)


def _failed(source: str, target: str, error: BrokerError) -> None:
    # It stays in the outbox, and the next deliver tries again.
    fields = {"source": source, "target": target, "error": type(error).__name__}
    text = "what shard %s has for shard %s could not be carried: %s"
    _log.warning(text, source, target, error, extra=fields)
