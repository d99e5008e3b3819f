"""Looks after rows that have been running for long, and removes those that are old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.ledger.ledger import Ledger
from fairlead.manager.comparison import Comparison
from fairlead.manager.counts import Counts
from fairlead.manager.leader_term import Term
from fairlead.runtime.randomness import generator

KEEP = 30 * 86_400.0  # seconds that rows are kept whose task has ended
STUCK = 300.0  # seconds after which a running row is looked at
_INTERVAL = 30.0  # seconds on average
_STUCK_AT_ONCE = 500
_OLD_AT_ONCE = 1_000
_MOST_BATCHES = 20  # of old rows, in one step

log = logging.getLogger("fairlead.manager")


class Janitor:
    """Tends the ledger, in small steps, for one term.

    A row that is running and that the broker does not know is sent again, three times at most; then
    it is dead, with the reason ``lost``.
    """

    name = "janitor"

    def __init__(
        self,
        ledger: Ledger,
        term: Term,
        comparison: Comparison,
        counts: Counts,
        *,
        stuck: float = STUCK,
        keep: float = KEEP,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        self._ledger = ledger
        self._term = term
        self._comparison = comparison
        self._counts = counts
        self._stuck = stuck
        self._keep = keep
        self._dice = dice
        self._behind: tuple[float, int] | None = None  # where the next page of stuck rows begins

    async def run(self) -> None:
        """Tend every half minute, a quarter more or less."""
        while True:
            more = await self.tend_once()
            await asyncio.sleep(0.1 if more else _INTERVAL * (0.75 + 0.5 * self._dice()))

    async def tend_once(self) -> bool:
        """Look at stuck rows, and remove old ones; whether there is more to do at once."""
        async with self._comparison.alone:
            stuck = await self._tend_stuck()
        old = await self._remove_old()
        return stuck or old

    async def _tend_stuck(self) -> bool:
        before, seq = self._behind or (None, 0)
        rows = await self._ledger.stuck_tasks(
            older=self._stuck, limit=_STUCK_AT_ONCE, before=before, before_seq=seq
        )
        is_full = len(rows) == _STUCK_AT_ONCE
        self._behind = (rows[-1].created_at, rows[-1].seq) if is_full else None
        if not rows:
            return False
        self._counts.add("looked_at", len(rows))
        found = await self._comparison.compare([(row, "running") for row in rows])
        lost = await self._comparison.lost(found.lost)
        if lost:
            moved = await self._ledger.recover_tasks(
                term=self._term.number,
                ids=[row.id for row in lost],
                entries=[row.last_entry for row in lost],
                indexes=[row.last_index for row in lost],
            )
            dead = sum(each.state == "dead" for each in moved)
            self._counts.add("recovered", len(moved) - dead)
            self._counts.add("lost", dead)
            if moved:
                fields = {"sent_again": len(moved) - dead, "dead": dead}
                level = logging.ERROR if dead else logging.WARNING
                log.log(level, "running tasks were unknown to the broker", extra=fields)
        return is_full

    async def _remove_old(self) -> bool:
        for _ in range(_MOST_BATCHES):
            tasks = await self._ledger.delete_old_tasks(
                term=self._term.number, keep=self._keep, limit=_OLD_AT_ONCE
            )
            flows = await self._ledger.delete_old_flows(
                term=self._term.number, keep=self._keep, limit=_OLD_AT_ONCE
            )
            workers = await self._ledger.delete_old_workers(
                term=self._term.number, keep=self._keep, limit=_OLD_AT_ONCE
            )
            self._counts.add("removed", tasks + flows)
            if max(tasks, flows, workers) < _OLD_AT_ONCE:
                return False
        return True
