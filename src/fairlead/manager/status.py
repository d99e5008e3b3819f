"""Publishes what the roles of the leader have done: a row for each in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.ledger.ledger import Ledger
from fairlead.manager.counts import Counts
from fairlead.manager.leader_term import Term, lost
from fairlead.model.ledger_errors import LedgerError

_INTERVAL = 1.0  # seconds between two writes, at least
_PATIENCE = 30.0  # seconds that a leader has without a ledger
_HEARTBEAT = 5.0  # seconds after which it is written though nothing has changed

#: In the counts of the auditor: of the broker that was compared in full.
GENERATION = "generation"


class StatusWriter:
    """Writes the counts of all roles, at most once a second, for one term."""

    name = "status"

    def __init__(
        self,
        ledger: Ledger,
        term: Term,
        counts: Sequence[Counts],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._term = term
        self._counts = counts
        self._clock = clock
        self._answered = clock()
        self._written: dict[str, tuple[float, dict[str, Any]]] = {}

    async def run(self) -> None:
        """Write for ever. Raises LostLeadership if the ledger takes nothing for half a minute.

        Another manager may reach it; this one stands by until it does.
        """
        while True:
            try:
                await self.write_once()
            except LedgerError as error:
                if self._clock() - self._answered > _PATIENCE:
                    why = f"the ledger took nothing for {_PATIENCE:g} s"
                    raise lost(self._term.number, why) from error
                raise
            self._answered = self._clock()
            await asyncio.sleep(_INTERVAL)

    async def write_once(self) -> int:
        """Write what has changed, or was not written for a while; how many rows."""
        shown = {each.role: each.shown() for each in self._counts}
        count = 0
        for role, values in shown.items():
            at, last = self._written.get(role, (-_HEARTBEAT, {}))
            if values == last and self._clock() - at < _HEARTBEAT:
                continue
            await self._ledger.write_status(role=role, term=self._term.number, counts=values)
            self._written[role] = self._clock(), values
            count += 1
        return count
