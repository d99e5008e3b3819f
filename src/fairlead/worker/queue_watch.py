"""Warns of the queues that a worker serves: nothing is ever sent to one, or too much waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from fairlead.broker import Inspector
from fairlead.model.registry import Registry
from fairlead.runtime.component import every
from fairlead.worker.notices import notice_idle

__all__ = ("QueueWatch",)

log = logging.getLogger("fairlead.worker")

_INTERVAL = 30.0  # seconds
_MOST_QUEUES = 50  # that are looked at


class QueueWatch:
    """Logs once for each time that a queue reaches its ``warn_depth``, whoever filled it.

    Of all workers that serve a queue the one that has been there for longest says so.
    """

    name = "queue watch"

    def __init__(
        self,
        store: Inspector,
        registry: Registry,
        queues: Callable[[], Sequence[str]],
        incarnation: str,
    ) -> None:
        self._store = store
        self._registry = registry
        self._queues = queues
        self._incarnation = incarnation
        self._deep: set[str] = set()  # queues that have reached it, which was said
        self._is_new = True
        self.is_first = True  # no process beside this one has said that it is idle

    async def run(self) -> None:
        """Look every half minute."""
        await every(_INTERVAL, self.look)

    async def look(self) -> None:
        """Look at the queues once. At the first time say as well what nobody will send."""
        if self._is_new and self.is_first:
            await notice_idle(self._store, self._registry, self._queues())
        self._is_new = False
        for queue in self._queues()[:_MOST_QUEUES]:
            await self._compare(queue)

    async def _compare(self, queue: str) -> None:
        (setting,) = (await self._store.settings(queue)).queues
        depth = 0
        if isinstance(setting.warn_depth, int):
            counts = (await self._store.snapshot(queue, tenants=False)).queues.get(queue)
            depth = 0 if counts is None else counts.depth
        if not isinstance(setting.warn_depth, int) or depth < setting.warn_depth:
            self._deep.discard(queue)
        elif queue not in self._deep:
            self._deep.add(queue)
            serving = [w.incarnation for w in await self._store.workers() if queue in w.queues]
            if min(serving, default=self._incarnation) >= self._incarnation:
                fields = {"queue": queue, "depth": depth, "warn_depth": setting.warn_depth}
                log.warning(
                    "queue %s reached its warn_depth of %d: %d waiting",
                    queue, setting.warn_depth, depth, extra=fields,
                )  # fmt: skip
