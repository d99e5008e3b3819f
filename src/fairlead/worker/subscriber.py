"""Hears at once when somebody cancels a task that runs here."""

from __future__ import annotations

from fairlead.broker import Broker
from fairlead.runtime.component import every
from fairlead.worker.inflight import Inflight

__all__ = ("Subscriber",)

_TIMEOUT = 30.0  # seconds that one call waits for mail
_PAUSE = 0.01  # seconds between two calls, should one return at once without any


class Subscriber:
    """Reads the mail of this incarnation. The heartbeat tells of cancels too, only later.

    While nothing runs there is nothing to cancel, and it asks for no mail.
    """

    name = "subscriber"

    def __init__(self, broker: Broker, inflight: Inflight, *, incarnation: str) -> None:
        self._broker = broker
        self._inflight = inflight
        self._incarnation = incarnation
        self._after = 0  # the number of the last mail read

    async def run(self) -> None:
        """Wait for mail and act on it."""
        await every(_PAUSE, self._wait)

    async def receive(self, timeout: float = 0.0) -> int:
        """Act on the mail there is, or comes within ``timeout``; how many attempts it stops."""
        stopped = 0
        for mail in await self._broker.collect(self._incarnation, self._after, timeout):
            self._after = max(self._after, mail.number)
            if mail.kind == "cancel" and self._inflight.stop(mail.id, mail.token, "cancel"):
                stopped += 1
        return stopped

    async def _wait(self) -> None:
        await self._inflight.some()
        await self.receive(_TIMEOUT)
