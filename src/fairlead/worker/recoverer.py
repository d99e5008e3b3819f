"""Gives back what workers held whose lease is over."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.broker import Broker
from fairlead.runtime.component import every

__all__ = ("Recoverer",)

_INTERVAL = 5.0  # seconds on average


class Recoverer:
    """Sweeps after workers that are gone. Any worker does it for all; twice does no harm."""

    name = "recoverer"

    def __init__(self, broker: Broker, dice: Callable[[], float]) -> None:
        self._broker = broker
        self._dice = dice

    async def run(self) -> None:
        """Sweep every five seconds, a quarter more or less: workers drift apart."""
        await every(lambda: _INTERVAL * (0.75 + 0.5 * self._dice()), self.recover)

    async def recover(self) -> int:
        """Sweep until there is no more; how many tasks were given back."""
        count, more = 0, True
        while more:
            moved = await self._broker.sweep()
            count += moved.count
            more = moved.more
        return count
