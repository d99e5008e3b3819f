"""One term of a leader: its number, and the line of calls to the broker that begins at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fairlead.broker import LIMIT, Caller, Store
from fairlead.broker.repeats import Limit
from fairlead.broker.requests import Call
from fairlead.model.errors import OutOfOrder
from fairlead.model.ledger_errors import LostLeadership

T = TypeVar("T")

#: The incarnation of all managers. One name, so that the number of a later term shuts out what is
#: still under way of an earlier one.
LINE = "manager"


class Term:
    """What a leader may do, for as long as no later term has begun."""

    def __init__(self, store: Store, number: int, holder: str, *, limit: float = LIMIT) -> None:
        """``limit`` is how many seconds a call to the broker may take."""
        self.number = number
        self.holder = holder
        self.caller = Caller(LINE, first=number, limit=limit)
        self._store = store
        self._called_at = 0.0  # by the loop's clock

    async def call(self, verb: Callable[[Call], Awaitable[T]], limit: Limit | None = None) -> T:
        """Carry out a verb under the next number; LostLeadership if a later term has begun."""
        try:
            answer = await self.caller.call(verb, limit)
        except OutOfOrder as error:
            raise lost(self.number, "the broker has calls of a later one") from error
        self._called_at = asyncio.get_running_loop().time()
        return answer

    async def touch(self) -> None:
        """Make a call that changes nothing, in every shard.

        Calls of earlier terms, and earlier calls of this one that are still under way, are refused
        from then on.
        """
        await self.call(partial(self._store.configure, changes=()))

    def idle(self) -> float:
        """Seconds since the broker answered the last call."""
        return asyncio.get_running_loop().time() - self._called_at


def lost(term: int, why: str) -> LostLeadership:
    """The error of a term that is over, with the reason as its note."""
    error = LostLeadership(term)
    error.add_note(why)
    return error
