"""Warns of the queues that a worker serves: nothing is ever sent to one, or too much waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from msgspec import UNSET

from fairlead.broker import Inspector
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.model.registry import Registry
from fairlead.runtime.component import every

log = logging.getLogger("fairlead.worker")

_INTERVAL = 30.0  # seconds
_MOST_QUEUES = 50  # that are looked at
_MOST_ASKED = 20  # that nobody may have sent to


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
        *,
        is_first: bool = True,
    ) -> None:
        """``is_first``: no process beside this one has said that it is idle."""
        self._store = store
        self._registry = registry
        self._queues = queues
        self._incarnation = incarnation
        self._deep: set[str] = set()  # queues that have reached it, which was said
        self._speaks = is_first  # of what nobody will send, at the first look

    async def run(self) -> None:
        """Look every half minute."""
        await every(_INTERVAL, self.look)

    async def look(self) -> None:
        """Look at the queues once. At the first time say as well what nobody will send."""
        if self._speaks:
            await _notice_idle(self._store, self._registry, self._queues())
        self._speaks = False
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


async def _notice_idle(store: Inspector, registry: Registry, queues: Sequence[str]) -> None:
    """Warn if a worker will hardly get anything to do: it has no tasks, or a queue is not filled.

    A queue is suspected if no task of the app names it and the broker has never heard of it.
    """
    if not list(registry):
        log.warning(
            "this app has no tasks: a module that declares some with @app.task has to be imported "
            "by the one that the worker loads"
        )
        return
    named = {spec.options.queue for spec in registry if spec.options.queue is not UNSET}
    known = sorted({DEFAULT_QUEUE, *map(str, named)})
    for queue in [each for each in queues if each not in known][:_MOST_ASKED]:
        if not (await store.snapshot(queue, tenants=False)).queues:
            close = get_close_matches(queue, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            log.warning(
                "nothing was ever sent to queue %s, and no task of this app names it%s",
                queue, hint, extra={"queue": queue},
            )  # fmt: skip
