"""What runs beside the calls of a process: probes, the drain, and the adoption of what was left."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.fallback.drainer import Drainer
from fairlead.fallback.prober import Prober
from fairlead.fallback.rejections import Rejections
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import BrokerError
from fairlead.model.outage import Ramp
from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime.component import within
from fairlead.runtime.randomness import generator

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

_ADOPTION = 10.0  # seconds between two looks at what dead processes left; half of them by dice
_AGAIN = 1.0  # seconds until the next pass, if the last one left something
_TROUBLE = 5.0  # seconds after an error that nobody expected
_LAST = 0.5  # seconds for what is still to be sent when the process ends

log = logging.getLogger("fairlead.fallback")


class BackgroundLoop:
    """Keeps the spool of one process moving. Runs on one loop until it is stopped."""

    def __init__(
        self,
        fallback: Fallback,
        *,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        self._fallback = fallback
        self._clock = clock
        self._dice = dice
        self._drainer = Drainer(fallback, clock=clock)
        self._rejections = Rejections(fallback.spool)
        self._unadopted = ""  # why nothing could be adopted the last time
        self._ramp: Ramp | None = None
        self._draining: set[str] = set()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._adopts_at = self._looks_at = 0.0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._is_woken = False

    def wake(self) -> None:
        """Look again now. From any thread."""
        if self._loop is not None and not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._heard)
            except RuntimeError:  # the loop is closed
                return

    def _heard(self) -> None:
        """Probe at once: whoever waits for the disk, a broker that is back takes tasks."""
        self._is_woken = False
        self._news.set()
        if self._goes_on():
            self._start_probes()

    def stop(self) -> None:
        """End ``run`` soon. From any thread."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Probe, drain and adopt until ``stop``."""
        self._loop = asyncio.get_running_loop()
        try:
            while self._goes_on():
                self._news.clear()
                try:
                    wait = await self._turn()
                except Exception as error:  # noqa: BLE001 - what is in the spool must not stay there
                    if not self._goes_on():
                        return
                    _tell(error)
                    wait = _TROUBLE
                if self._goes_on():
                    await within(wait, self._news)
            await self._finish()
        finally:
            for probe in self._probes.values():
                probe.cancel()

    def _goes_on(self) -> bool:
        return not self._stopping

    async def _turn(self) -> float:
        """Do what is due; return the seconds until something is again."""
        now = self._clock()
        if now >= self._adopts_at:
            self._adopts_at = now + _ADOPTION * (0.5 + self._dice() / 2.0)
            await self._adopt()
        self._start_probes()
        wait = await self._drain()
        wait = min(wait, await self._fallback.local.step(self._drainer.is_doubted))
        replayer = self._fallback.replayer
        if not len(self._fallback.recent_enqueues) and not replayer.is_behind:
            replayer.forget()
            self._looks_at = 0.0
        else:
            if self._clock() >= self._looks_at or replayer.is_moved:
                await replayer.look()
                self._looks_at = self._clock() + replayer.INTERVAL
            wait = min(wait, max(self._looks_at - self._clock(), 0.0))
        return min(wait, max(self._adopts_at - self._clock(), 0.0))

    async def _adopt(self) -> None:
        spool = self._fallback.spool
        try:
            count = await in_thread(spool.adopt)
        except (SpoolFailed, OSError) as error:
            if str(error) != self._unadopted:  # it would be said every few seconds
                self._unadopted = str(error)
                log.warning("the directory of the spool cannot be used; tried again: %s", error)
            return
        self._unadopted = ""
        if count:
            log.warning("%d records of processes that are gone were adopted", count)
        await self._rejections.look(self._fallback)

    def _start_probes(self) -> None:
        fallback = self._fallback
        for shard in fallback.outages.away():
            probe = self._probes.get(shard)
            if probe is None or probe.done():
                store = fallback.parts.stores[shard]
                prober = Prober(
                    shard,
                    store,
                    fallback.outages,
                    silence=fallback.options.silence,
                    dice=self._dice,
                )
                self._probes[shard] = asyncio.create_task(prober.run(), name=f"probe-{shard}")

    async def _drain(self) -> float:
        """Take a step of the drain if it is time; return the seconds until the next."""
        fallback, now = self._fallback, self._clock()
        outages = fallback.outages
        back = {shard for shard in fallback.parts.stores if outages.of(shard) == "draining"}
        if fallback.spool.depth == 0 and not back:
            self._ramp = None
            return _ADOPTION
        if len(outages.away()) == len(fallback.parts.stores):
            return _ADOPTION  # a probe that goes well wakes us
        if self._ramp is None or not back <= self._draining:
            self._ramp = Ramp(now, self._dice())
        self._draining = back
        await self._settle()
        if self._clock() < self._ramp.begins:
            return self._ramp.begins - self._clock()
        goes_on = await self._drainer.step(self._ramp.batch)
        await self._rejections.look(fallback)
        if goes_on:
            drainer = self._drainer
            await self._ask()
            excess = self._fallback.latency.excess
            return self._ramp.wait(self._clock(), drainer.busy, drainer.count, excess)
        if fallback.spool.depth == 0:
            self._ramp = None
        return _AGAIN if self._drainer.left or fallback.spool.depth else 0.0

    async def _ask(self) -> None:
        """Find out how long calls take, if nobody here makes any: others may."""
        fallback = self._fallback
        if fallback.latency.is_known:
            return
        for shard, store in fallback.parts.stores.items():
            if not fallback.outages.is_away(shard):
                began = self._clock()
                with suppress(BrokerError, TimeoutError):
                    async with asyncio.timeout(fallback.options.silence):
                        await store.hello()
                fallback.latency.heard(self._clock() - began)

    async def _settle(self) -> None:
        """Settle outcomes of workers that are gone: each second may cost a lease."""
        try:
            await self._fallback.outcomes.settle(self._fallback.store)
        except BrokerError as error:
            log.info("outcomes not settled; tried again", extra={"error": type(error).__name__})

    async def _finish(self) -> None:
        """Send what can be sent in a moment: what stays has to wait for another process."""
        fallback = self._fallback
        await fallback.local.finish()
        if fallback.spool.depth == 0 or fallback.outages.away():
            return
        try:
            async with asyncio.timeout(_LAST):
                while await self._drainer.step():
                    pass
        except TimeoutError:
            return


def _tell(error: Exception) -> None:
    log.error("the spool is not drained; tried again", exc_info=error)
