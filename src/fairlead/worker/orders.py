"""Does what the broker says with every heartbeat: stop attempts, hand back, obey operators."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fairlead.broker.requests import BeatReply, StandingOrder
from fairlead.worker.inflight import Inflight
from fairlead.worker.processor import Processor

log = logging.getLogger("fairlead.worker")


class Orders:
    """The order in force. A stop cannot be taken back.

    An order to pause is independent of a signal to be quiet: it takes the end of both until the
    worker fetches again.
    """

    def __init__(
        self, inflight: Inflight, processor: Processor, stop: Callable[[], object]
    ) -> None:
        self._inflight = inflight
        self._processor = processor
        self._stop = stop  # in good time, as a signal would
        self.standing: StandingOrder = ""

    @property
    def is_paused(self) -> bool:
        """Whether it may not fetch, by order."""
        return self.standing == "pause"

    def on_heartbeat(self, reply: BeatReply | None) -> None:
        """Do what the broker answered; nothing if it did not answer."""
        if reply is None:
            return
        for ref in reply.lost:
            self._inflight.stop(ref.id, ref.token, "lost")
        for ref in reply.cancelled:
            self._inflight.stop(ref.id, ref.token, "cancel")
        if reply.paused:
            self._processor.hand_back(reply.paused)
        self.obey(reply.order)

    def obey(self, order: StandingOrder) -> None:
        """Do what is ordered, unless it is done already."""
        if order == self.standing or self.standing == "stop":
            return
        self.standing = order
        if order == "stop":
            log.warning("worker stops: an operator ordered it")
            self._stop()
            return
        log.info("worker is paused: an operator ordered it" if order else "worker is resumed")
        self._processor.be_quiet(order == "pause", by="order")

    def forget(self) -> None:
        """Begin anew: what was ordered in a former life is over."""
        self.standing = ""
