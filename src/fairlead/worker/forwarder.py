"""Makes tasks ready whose time has come, goes on with releasing dependents, fires schedules."""

from __future__ import annotations

import asyncio
import math

from fairlead.broker import Broker
from fairlead.runtime.component import every
from fairlead.worker.scheduler import Scheduler

_SAFETY = 5.0  # seconds: what no reply had told of is found by then
_COVERED = 30.0  # seconds: the same while somebody else looks; but perhaps not at every shard


class Forwarder:
    """Wakes when something is due, as the broker's replies foretell.

    A full worker needs it most: while one fetches or waits, the broker promotes by itself. So it
    looks for the unforetold only rarely while its worker waits there anyway.
    """

    name = "forwarder"

    def __init__(self, broker: Broker, scheduler: Scheduler) -> None:
        self._broker = broker
        self._scheduler = scheduler
        self._due = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._at = math.inf  # when the alarm goes, by the loop's clock
        self._rung = False  # it went, and what it was for is still to be done
        self._last = -math.inf  # when it last looked, by the loop's clock
        self.covered = False  # the worker waits in the broker, which does the same meanwhile

    async def run(self) -> None:
        """Forward whenever something is due."""
        try:
            await every(_SAFETY, self._step, wake=self._due)
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm, self._at = None, math.inf

    async def _step(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._rung or not self.covered or now - self._last >= _COVERED:
            await self.forward()
            self._rung, self._last = False, now

    async def forward(self) -> int:
        """Promote, deliver and fire until there is no more; how many tasks moved."""
        count, ticks = 0, False
        for step in (self._broker.promote, self._broker.deliver):
            more = True
            while more:
                moved = await step()
                count += moved.count
                more = moved.more
                ticks = ticks or moved.ticks
        if ticks:
            count += await self._scheduler.tick(self.expect)
        return count

    def expect(self, due_in: float | None) -> None:
        """Learn from a reply in how many seconds there is something to forward."""
        if due_in is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + due_in
        if at >= self._at or due_in > _SAFETY:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._at = at
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm, self._at = None, math.inf
        self._rung = True
        self._due.set()
