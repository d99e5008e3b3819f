"""Gives back what workers held that are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from fairlead.broker import Store
from fairlead.fallback.outcomes import Outcomes
from fairlead.model.errors import BrokerError
from fairlead.runtime.component import every
from fairlead.runtime.identity import is_gone

log = logging.getLogger("fairlead.worker")

_INTERVAL = 5.0  # seconds on average
_LAST_WORDS = 2.0  # seconds in which a worker that stops gives back what it holds


class Recoverer:
    """Sweeps after workers that are gone. Any worker does it for all; twice does no harm.

    A task that has taken three processes down in a row is not given back but dead: the broker
    counts, by the rule of ``model.retries``.
    """

    name = "recoverer"

    def __init__(
        self, store: Store, dice: Callable[[], float], outcomes: Outcomes | None = None
    ) -> None:
        """``outcomes``: the spool in which there may be some of workers that are gone."""
        self._store = store
        self._dice = dice
        self._outcomes = outcomes

    async def run(self) -> None:
        """Sweep every five seconds, a quarter more or less: workers drift apart."""
        await every(lambda: _INTERVAL * (0.75 + 0.5 * self._dice()), self.recover)

    async def recover(self) -> int:
        """Sweep until there is no more; how many tasks were given back."""
        count, more = 0, True
        while more:
            moved = await self._store.sweep()
            count += moved.count
            more = moved.more
        return count

    async def reclaim(self) -> int:
        """Give back what processes of this machine held that have ended; how many tasks.

        Nobody has to wait for the lease of a process of which we know that it is gone.
        """
        found = await self._store.workers(silent=True)
        gone = [each for each in found if is_gone(each.host, each.pid, each.details)]
        if gone and self._outcomes is not None:
            await self._outcomes.await_others(self._store, {each.incarnation for each in gone})
        count = 0
        for worker in gone:
            returned = await give_back(self._store, worker.incarnation)
            fields = {"incarnation": worker.incarnation, "pid": worker.pid, "tasks": returned}
            log.warning("gave back what a dead worker held", extra=fields)
            count += returned
        return count


async def give_back(
    store: Store, incarnation: str, started: list[str] | None = None, blocked: Sequence[str] = ()
) -> int:
    """End all leases of an incarnation that is gone; how many there were."""
    count, more = 0, True
    while more:
        moved = await store.give_back(incarnation, started, blocked=blocked)
        count += moved.count
        more = moved.more
    return count


async def give_back_soon(store: Store, incarnation: str) -> None:
    """End the leases of a worker that stops, charged to nobody; log it if the broker is away."""
    try:
        async with asyncio.timeout(_LAST_WORDS):
            await give_back(store, incarnation, [])
    except (BrokerError, TimeoutError) as error:  # the sweep of another worker will do it
        log.warning("leases not given back", extra={"error": type(error).__name__})
