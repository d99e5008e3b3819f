"""Keeps the leases of one incarnation, and hears which attempts have to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from fairlead.broker import Broker
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import HEARTBEAT, LEASE, BeatReply, LeaseRef, StandingOrder
from fairlead.model.errors import BrokerError
from fairlead.runtime.component import every

log = logging.getLogger("fairlead.worker")


class Heartbeater:
    """One beat keeps every lease of the incarnation, however many attempts there are.

    It runs where nothing can hold it up: in the supervisor, for each of its children; of a worker
    without one, in the worker's own process.
    """

    name = "heartbeater"

    def __init__(
        self,
        broker: Broker,
        *,
        incarnation: str,
        answered: Callable[[], int],
        held: Callable[[], Sequence[LeaseRef]],
        describe: Callable[[], WorkerRecord],
        heard: Callable[[BeatReply | None], None],
        lease: float = LEASE,
    ) -> None:
        self._broker = broker
        self._incarnation = incarnation
        self._answered = answered  # the exchange up to which it knows what it was lent
        self._held = held  # the leases that the worker believes to have
        self._describe = describe
        self._heard = heard  # told of every answer, and with None that there was none
        self.lease = lease  # seconds
        self._order: StandingOrder = ""  # that was heard last
        self.kept_at = 0.0  # when the last beat began that was answered, by the monotonic clock

    async def run(self) -> None:
        """Beat every third of the lease: two may be lost before anything is."""
        await every(lambda: min(self.lease / 3, HEARTBEAT), self.beat)

    async def beat(self) -> BeatReply:
        """Keep the leases, describe the worker, and pass on what is lost or cancelled.

        What the broker believes to be on loan here and nobody here knows of goes back.
        """
        unclaimed = 0
        try:
            while True:
                began = time.monotonic()
                answered = self._answered()  # first: what is lent meanwhile is not compared
                reply = await self._broker.beat(
                    self._incarnation,
                    self._held(),
                    answered=answered,
                    worker=self._describe(),
                    lease=self.lease,
                )
                self.kept_at = began
                unclaimed += reply.unclaimed
                if not reply.more:
                    break
        except BrokerError:
            self._heard(None)
            raise
        finally:
            if unclaimed:
                fields = {"incarnation": self._incarnation, "tasks": unclaimed}
                log.warning("gave back leases that this worker did not know of", extra=fields)
        self._heard(reply)
        if reply.order != self._order:  # say at once that it is obeyed, not with the next beat
            self._order = reply.order
            return await self.beat()
        return reply
