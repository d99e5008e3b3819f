"""Publishes what a worker tells of its tasks, for as long as it works."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from fairlead.broker import Broker, Caller
from fairlead.broker.documents import DocumentChange
from fairlead.model.catalog import KIND, digest_of
from fairlead.runtime.component import every
from fairlead.runtime.randomness import generator

log = logging.getLogger("fairlead.worker")

TTL = 180.0  # seconds that a catalog is known after the last worker that has it
_INTERVAL = 30.0  # seconds on average: several writes may fail before it is gone


class Publisher:
    """Writes the catalog of one worker, again and again well before it would be forgotten.

    Workers of the same code write the same document, so there is one for each release. It runs
    where the heartbeats are sent from: in the supervisor, which gets the bytes from its child; of a
    worker without one, in the worker's own process.
    """

    name = "publisher"

    def __init__(
        self,
        broker: Broker,
        incarnation: str,
        make: Callable[[], bytes] | bytes | None,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        self._broker = broker
        self._caller = Caller(f"{incarnation}:catalog")
        self._make = make if callable(make) else None
        self._dice = dice
        self._is_full = False  # and that was said
        self.data = make if isinstance(make, bytes) else b""  # empty: nothing is published

    def prepare(self) -> None:
        """Put the catalog together. What goes wrong is no reason not to work."""
        if self._make is None:
            return
        try:
            self.data = self._make()
        except Exception as error:  # noqa: BLE001 - annotations are code: it may be anything
            fields = {"error": type(error).__name__, "stack": traceback.format_exc()}
            log.warning("catalog not made: nobody is told of these tasks", extra=fields)

    @property
    def digest(self) -> str:
        """By what name the catalog is known; empty if there is none."""
        return digest_of(self.data) if self.data else ""

    async def run(self) -> None:
        """Publish every half minute, a quarter more or less: workers drift apart."""
        await every(lambda: _INTERVAL * (0.75 + 0.5 * self._dice()), self.publish)

    async def publish(self) -> None:
        """Write the catalog, unless there is none."""
        if not self.data:
            return
        change = DocumentChange(kind=KIND, name=self.digest, value=self.data, ttl=TTL)
        [answer] = await self._caller.call(
            lambda call: self._broker.write_documents(call, [change])
        )
        if answer.code == "full" and not self._is_full:
            log.error("catalog not published: the broker holds as many as it may")
        self._is_full = answer.code == "full"
