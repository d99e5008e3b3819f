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
from fairlead.worker.board import Board
from fairlead.worker.channel import Channel, Figures, Introduction, Kept, Order, Retiring
from fairlead.worker.healthchecker import Healthchecker
from fairlead.worker.inflight import Inflight
from fairlead.worker.orders import Orders
from fairlead.worker.processor import Processor
from fairlead.worker.retirement import Retirement
from fairlead.worker.runner import Runner
from fairlead.worker.syncer import Syncer

__all__ = ("Supervised", "Tether")

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
    def abandoned(self) -> int: ...


class Tether:
    """Obeys the supervisor, and shows it that the loop goes round.

    Nobody keeps the leases when the supervisor is silent. Then everything is stopped and handed
    back as soon as they may be over, and nothing is fetched until it speaks again. That it could
    not reach the broker is something else: then nobody else could take the tasks either.
    """

    name = "tether"

    def __init__(
        self,
        channel: Channel,
        board: Board,
        *,
        url: str,
        retirement: Retirement,
        overdue: float = 60.0,
        quiet: bool = False,
        paused: bool = False,
        counters: Counters | None = None,
    ) -> None:
        """``counters``: what they count is told to the supervisor."""
        self.board = board
        self._quiet = quiet  # it must not fetch
        self._paused = paused  # nor by an order, from the beginning
        self._url = url
        self.alone = False  # there is no supervisor any more
        self.ordered = asyncio.Event()  # to stop, in one way or another
        self.hurry: Callable[[], None] = _nothing  # called when it has to leave at once
        self._channel = channel
        self._retirement = retirement
        self._overdue = overdue  # seconds that a handler may go on after it was told to stop
        self._worker: Supervised | None = None
        self._orders: Orders | None = None
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
        if self._quiet:
            worker.processor.be_quiet()
        self._orders = Orders(worker.processor, self.ordered.set)
        if self._paused:
            self._orders.obey("pause")
        self._channel.send(msgspec.structs.replace(introduction, url=self._url))

    async def run(self) -> None:
        """Listen and tick."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="listen")
            group.create_task(self._tick(), name="tick")

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._heard = asyncio.get_running_loop().time()
            if isinstance(message, Kept):
                self._kept(message)
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
        self.hurry()

    def _kept(self, kept: Kept) -> None:
        worker = self._worker
        if worker is None:
            return
        for id, token in kept.lost:
            worker.inflight.stop(id, token, "lost")
        for id, token in kept.cancelled:
            worker.inflight.stop(id, token, "cancel")
        if kept.paused:
            worker.processor.hand_back(kept.paused)
        worker.processor.kept = True
        if kept.reached:
            self.kept_at = self._heard - kept.took
        if kept.reached and self._orders is not None:
            self._orders.obey(kept.order)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self.board.tick(0.0)  # from now on it is expected to
        for tick in count(1):
            due = loop.time() + _TICK
            await asyncio.sleep(_TICK)
            now = loop.time()
            if tick % _TOLD == 0:
                self.tell_figures()
            self.board.tick(max(now - due, 0.0))
            if self._worker is not None:
                self._look(self._worker, now)

    def _look(self, worker: Supervised, now: float) -> None:
        syncer = worker.syncer
        self.board.count(syncer.settled, syncer.refused, syncer.unsettled, worker.abandoned)
        checker, wants = worker.healthchecker, worker.processor.wants
        self.board.fetched(checker.answered_at, checker.health.failing, wants=wants)
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

    def tell_figures(self) -> None:
        """Tell the supervisor what was counted, if there is anything new."""
        if self._counters is None or self._channel.is_behind:
            return  # the next report has it all
        if (counted := self._counters.counted()) != self._told:
            self._told = counted
            self._channel.send(Figures(counted))

    def _retire(self, why: str) -> None:
        self._retiring = True
        self._channel.send(Retiring(why))


def _nothing() -> None:
    pass
