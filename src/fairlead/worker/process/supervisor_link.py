"""A child's end of the line to its supervisor, who keeps its leases and sees whether it lives."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Protocol

import msgspec

from fairlead.telemetry.counters import Counted, Counters
from fairlead.worker.healthchecker import Healthchecker
from fairlead.worker.inflight import Inflight
from fairlead.worker.orders import Orders
from fairlead.worker.process.ipc import (
    Channel,
    CountersReport,
    HeartbeatReport,
    Introduction,
    Order,
    Retiring,
)
from fairlead.worker.process.retirement import Retirement
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.processor import Processor
from fairlead.worker.runner import Runner
from fairlead.worker.syncer import Syncer

log = logging.getLogger("fairlead.worker")

_TICK = 0.25  # seconds
_TOLD = 4  # ticks between two reports of figures


class Supervised(Protocol):
    """The worker at this end."""

    @property
    def inflight(self) -> Inflight: ...
    @property
    def syncer(self) -> Syncer: ...
    @property
    def processor(self) -> Processor: ...
    @property
    def runner(self) -> Runner: ...
    @property
    def healthchecker(self) -> Healthchecker: ...
    @property
    def orders(self) -> Orders: ...
    @property
    def abandoned(self) -> int: ...


class SupervisorLink:
    """Obeys the supervisor, and shows it that the loop goes round.

    Nobody keeps the leases when the supervisor is silent. Then everything is stopped and handed
    back as soon as they may be over, and nothing is fetched until it speaks again. That it could
    not reach the broker is something else: then nobody else could take the tasks either.
    """

    name = "supervisor link"

    def __init__(
        self,
        channel: Channel,
        shared_state: SharedState,
        *,
        url: str,
        retirement: Retirement,
        overdue: float = 60.0,
        quiet: bool = False,
        paused: bool = False,
        is_first: bool = True,
        counters: Counters | None = None,
        hurry: Callable[[], None] | None = None,
    ) -> None:
        """``counters``: what they count is told to the supervisor.

        ``is_first``: there is no child before this one, nor beside it. ``hurry`` is called when
        the child has to leave at once.
        """
        self.shared_state = shared_state
        self._quiet = quiet  # it must not fetch
        self._paused = paused  # nor by an order, from the beginning
        self._url = url
        self.alone = False  # there is no supervisor any more
        self.ordered = asyncio.Event()  # to stop, in one way or another
        self.is_first = is_first
        self._hurry = hurry
        self._channel = channel
        self._retirement = retirement
        self._overdue = overdue  # seconds that a handler may go on after it was told to stop
        self._worker: Supervised | None = None
        self._lease = math.inf  # seconds, once introduced
        self._heard = 0.0  # when the supervisor last spoke, by the loop's clock
        self.kept_at = 0.0  # when it began to keep the leases the last time, by the same
        self._retiring = False
        self._counters = counters
        self._told = Counted()

    @property
    def introduced(self) -> bool:
        """Whether the supervisor knows whom it looks after."""
        return self._worker is not None

    def introduce(self, worker: Supervised, introduction: Introduction) -> None:
        """Tell the supervisor whom it has to look after. Raises ``InvalidInput`` as ``begin``."""
        now = asyncio.get_running_loop().time()
        self._retirement.begin(now)
        self._worker = worker
        self._lease = introduction.lease
        self._heard = now
        worker.processor.kept = False  # before its first heartbeat nobody could tell whose they are
        if self._quiet:
            worker.processor.be_quiet()
        if self._paused:
            worker.orders.obey("pause")
        self._channel.send(msgspec.structs.replace(introduction, url=self._url))

    async def run(self) -> None:
        """Listen and tick."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="listen")
            group.create_task(self._tick(), name="tick")

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._heard = asyncio.get_running_loop().time()
            if isinstance(message, HeartbeatReport):
                self._on_heartbeat(message)
            elif isinstance(message, Order):
                self._obey(message)
        log.error("supervisor gone: this child hands back what it has and ends")
        self.alone = True
        self._leave()

    def _obey(self, order: Order) -> None:
        if order.what == "leave":
            self._leave()
        elif order.what == "stop":
            self.ordered.set()
        else:
            self._quiet = order.what == "quiet"
            if self._worker is not None:
                self._worker.processor.be_quiet(self._quiet)

    def _leave(self) -> None:
        self.ordered.set()
        if self._hurry is not None:
            self._hurry()

    def _on_heartbeat(self, report: HeartbeatReport) -> None:
        if self._worker is not None:
            self._worker.processor.kept = True
            if report.reply is not None:
                self.kept_at = self._heard - report.took
            self._worker.orders.on_heartbeat(report.reply)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self.shared_state.tick(0.0)  # from now on it is expected to
        for tick in count(1):
            due = loop.time() + _TICK
            await asyncio.sleep(_TICK)
            now = loop.time()
            if tick % _TOLD == 0:
                self.report_counters()
            self.shared_state.tick(max(now - due, 0.0))
            if self._worker is not None:
                self._look(self._worker, now)

    def _look(self, worker: Supervised, now: float) -> None:
        syncer = worker.syncer
        self.shared_state.count(syncer.settled, syncer.refused, syncer.unsettled, worker.abandoned)
        checker, wants = worker.healthchecker, worker.processor.wants
        self.shared_state.fetched(checker.answered_at, checker.health.failing, wants=wants)
        if now - self._heard > self._lease and worker.processor.kept:
            log.error("supervisor silent: nobody keeps the leases, so all that runs is handed back")
            worker.processor.kept = False
            worker.processor.hand_back()
            worker.inflight.stop_all("release")  # refused where it is too late for that
        if self._retiring:
            return
        if why := self._retirement.why(syncer.settled, now):
            self._retire(why)
        elif worker.runner.overdue[1] > self._overdue:
            self._retire("a handler does not stop")
        elif worker.abandoned >= worker.processor.concurrency:
            self._retire("abandoned handlers go on in it")

    def report_counters(self) -> None:
        """Tell the supervisor what was counted, if there is anything new."""
        if self._counters is None or self._channel.is_behind:
            return  # the next report has it all
        if (counted := self._counters.counted()) != self._told:
            self._told = counted
            self._channel.send(CountersReport(counted))

    def _retire(self, why: str) -> None:
        self._retiring = True
        self._channel.send(Retiring(why))
