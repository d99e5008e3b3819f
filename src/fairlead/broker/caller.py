"""One incarnation's numbered line of calls: one in flight, and a lost reply asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairlead.broker.verbs import Call
from fairlead.model.errors import Ambiguous

__all__ = ("Caller",)

T = TypeVar("T")

_REPEATS = 8  # of one call whose reply was lost, before the caller hears of it
_PAUSE = 0.05  # seconds before the first repeat, doubled each time


class Caller:
    """Numbers the calls of one incarnation to one shard."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._number = 0
        self._line = asyncio.Lock()

    async def call(self, verb: Callable[[Call], Awaitable[T]]) -> T:
        """Carry out ``verb`` under the next number; after ``Ambiguous`` under the same again.

        Whoever is cancelled while waiting for a reply leaves a number behind that is never
        repeated; the broker's answer to it is simply not read.
        """
        async with self._line:
            self._number += 1
            call = Call(self.incarnation, self._number)
            pause = _PAUSE
            for _ in range(_REPEATS):
                try:
                    return await verb(call)
                except Ambiguous:
                    await asyncio.sleep(pause)
                    pause *= 2
            return await verb(call)
