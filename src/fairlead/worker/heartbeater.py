"""Keeps the leases of this worker, and hears which attempts have to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from fairlead.broker import Broker
from fairlead.broker.verbs import HEARTBEAT, LEASE, BeatReply, WorkerRecord
from fairlead.runtime.component import every
from fairlead.worker.inflight import Inflight
from fairlead.worker.syncer import Syncer

__all__ = ("Heartbeater",)


class Heartbeater:
    """One beat keeps every lease of the incarnation, however many attempts there are."""

    name = "heartbeater"

    def __init__(
        self,
        broker: Broker,
        inflight: Inflight,
        syncer: Syncer,
        *,
        incarnation: str,
        tasks: Callable[[], tuple[str, ...]] = tuple,
        concurrency: int = 0,
    ) -> None:
        self._broker = broker
        self._inflight = inflight
        self._syncer = syncer
        self._incarnation = incarnation
        self._tasks = tasks
        self._concurrency = concurrency
        self.lease = LEASE  # seconds
        self.queues: tuple[str, ...] = ()
        self.started_at = 0.0  # the broker's clock

    async def run(self) -> None:
        """Beat every third of the lease: two may be lost before anything is."""
        await every(lambda: min(self.lease / 3, HEARTBEAT), self.beat)

    async def beat(self) -> BeatReply:
        """Keep the leases, describe the worker, and stop what is lost or cancelled."""
        reply = await self._broker.beat(
            self._incarnation, self._inflight.held(), worker=self._record(), lease=self.lease
        )
        for ref in reply.lost:
            self._inflight.stop(ref.id, ref.token, "lost")
        for ref in reply.cancelled:
            self._inflight.stop(ref.id, ref.token, "cancel")
        return reply

    def _record(self) -> WorkerRecord:
        return WorkerRecord(
            incarnation=self._incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            tasks=self._tasks(),
            concurrency=self._concurrency,
            running=len(self._inflight),
            started_at=self.started_at,
            details={
                "settled": self._syncer.settled,
                "fenced": self._syncer.fenced,
                "unsent": self._syncer.pending,
            },
        )
