"""Hears at once when somebody cancels a task that runs here, or lends this worker another."""

from __future__ import annotations

from fairlead.broker import Broker
from fairlead.runtime.component import every
from fairlead.worker.inflight import Inflight
from fairlead.worker.intake import Intake

__all__ = ("Subscriber",)

_TIMEOUT = 30.0  # seconds that one call waits for mail
_PAUSE = 0.01  # seconds between two calls, should one return at once without any


class Subscriber:
    """Reads the mail of this incarnation. The heartbeat tells of cancels too, only later.

    While nothing runs there is nothing to cancel, and it asks for no mail by itself: what others
    lend wakes whoever waits for work.
    """

    name = "subscriber"

    def __init__(
        self, broker: Broker, inflight: Inflight, intake: Intake, *, incarnation: str
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._inflight = inflight
        self._incarnation = incarnation
        self._after = 0  # the number of the last mail read
        self._is_reading = False  # it hears of what comes now

    async def run(self) -> None:
        """Wait for mail and act on it."""
        await every(_PAUSE, self._wait)

    @property
    def unread(self) -> str:
        """The incarnation whose mail nobody waits for now; empty: somebody does."""
        return "" if self._is_reading else self._incarnation

    async def receive(self, timeout: float = 0.0) -> int:
        """Act on the mail there is, or comes within ``timeout``.

        Return how many attempts it stops, or loans it brings. While somebody reads it already,
        that one acts on it.
        """
        if self._is_reading:
            return 0
        self._is_reading = True
        try:
            letters = await self._broker.collect(self._incarnation, self._after, timeout)
            lent = [mail for mail in letters if mail.kind == "lent"]
            if lent:  # before they are confirmed: whoever fails here reads them again
                await self._intake.accept(lent)
        finally:
            self._is_reading = False
        acts = len(lent)
        for mail in letters:
            self._after = max(self._after, mail.number)
            if mail.kind == "cancel" and self._inflight.stop(mail.id, mail.token, "cancel"):
                acts += 1
        return acts

    async def _wait(self) -> None:
        await self._inflight.some()
        await self.receive(_TIMEOUT)
