"""Looks whether this worker does what it is there for: it reaches its broker, and it fetches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from fairlead.broker import Broker
from fairlead.broker.records import Hello
from fairlead.model.errors import BrokerError
from fairlead.runtime.component import Outage
from fairlead.worker.syncer import Syncer

_INTERVAL = 5.0  # seconds
_ANSWER = 2.0  # seconds in which the broker must answer


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is; durations in seconds."""

    failing: float  # how long the broker has not answered; 0: it does
    fetch_age: float  # since the broker last answered an exchange
    lag: float  # how late the loop came round when it was looked at


class Healthchecker:
    """Asks the broker now and then, and watches how late the loop is."""

    name = "healthchecker"

    def __init__(
        self,
        broker: Broker,
        syncer: Syncer,
        met: Callable[[Hello], Awaitable[None]],
        told: Callable[[Health], None] | None = None,
    ) -> None:
        self._broker = broker
        self._syncer = syncer
        self._met = met
        self._told = told
        self._outage = Outage(self.name)
        self._began = time.monotonic()
        self.health = Health(failing=0.0, fetch_age=0.0, lag=0.0)

    @property
    def answered_at(self) -> float:
        """When the broker last answered an exchange; before it ever did, when this began."""
        return max(self._syncer.answered_at, self._began)

    async def run(self) -> None:
        """Check every five seconds."""
        loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        while True:
            await self.check()
            due = loop.time() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            self.health = msgspec.structs.replace(self.health, lag=max(loop.time() - due, 0.0))

    async def check(self) -> Health:
        """Ask the broker once; how the worker is."""
        hello: Hello | None = None
        try:
            async with asyncio.timeout(_ANSWER):
                hello = await self._broker.hello()
        except (BrokerError, TimeoutError) as error:
            self._outage.failed(error if isinstance(error, BrokerError) else _silent())
        else:
            self._outage.over()
        now = time.monotonic()
        since = self._outage.since
        self.health = Health(
            failing=0.0 if since is None else max(now - since, 0.001),
            fetch_age=max(now - self.answered_at, 0.0),
            lag=self.health.lag,
        )
        if self._told is not None:
            self._told(self.health)
        if hello is not None:
            await self._met(hello)
        return self.health


def _silent() -> BrokerError:
    return BrokerError(f"no answer within {_ANSWER:g} s")
