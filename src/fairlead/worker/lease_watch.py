"""Ends attempts in an outage before others may have their tasks.

A broker that a worker does not reach may be down, or only cut off from it. In the second case the
tasks are given to others as soon as the leases are over, and would run twice at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.model.retries import runs_once
from fairlead.worker.inflight import Inflight

log = logging.getLogger("fairlead.worker")

_LOOK = 0.25  # seconds
_LONGEST_MARGIN = 3.0  # seconds; a handler has two of them to end


def margin(lease: float) -> float:
    """Return how many seconds before the end of a lease its attempt must stop."""
    return min(lease / 4.0, _LONGEST_MARGIN)


class LeaseWatch:
    """Stops what runs when nobody could keep the leases for almost as long as they last.

    It goes by the clock of this process, which nobody sets. What is stopped is released and uses up
    no attempt. A task that may begin only once goes on: nobody else will ever run it.
    """

    name = "lease_watch"

    def __init__(
        self,
        inflight: Inflight,
        *,
        lease: Callable[[], float],
        kept_at: Callable[[], float],
        hand_back: Callable[[], None],
    ) -> None:
        """``kept_at`` tells when the call began that kept the leases last, by the loop's clock."""
        self._inflight = inflight
        self._lease = lease
        self._kept_at = kept_at
        self._hand_back = hand_back  # what has not begun
        self._since = 0.0  # when the watch began
        self._is_over = False

    async def run(self) -> None:
        """Look four times a second."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        while True:
            await asyncio.sleep(_LOOK)
            self.look(loop.time())

    def look(self, now: float) -> None:
        """Stop what runs if it is time."""
        lease = self._lease()
        kept_at = max(self._kept_at(), self._since)
        if now - kept_at < lease - margin(lease):
            self._is_over = False
            return
        if not self._is_over:
            self._is_over = True
            fields = {"running": len(self._inflight), "seconds": round(now - kept_at, 1)}
            log.error("leases could not be kept: what runs is handed back", extra=fields)
        self._hand_back()
        for attempt in self._inflight:
            if not runs_once(attempt.lease.message.flags):
                attempt.stop("release")
