"""Has the broker forget what is past its retention."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.broker import Broker
from fairlead.runtime.component import every

_INTERVAL = 30.0  # seconds on average


class Janitor:
    """Tidies up, in small steps. What a caller can see is past its time already without it."""

    name = "janitor"

    def __init__(self, broker: Broker, dice: Callable[[], float]) -> None:
        self._broker = broker
        self._dice = dice

    async def run(self) -> None:
        """Tidy every half minute, a quarter more or less."""
        await every(lambda: _INTERVAL * (0.75 + 0.5 * self._dice()), self.tidy)

    async def tidy(self) -> int:
        """Tidy until there is no more; how many things were forgotten."""
        count, more = 0, True
        while more:
            moved = await self._broker.tidy()
            count += moved.count
            more = moved.more
        return count
