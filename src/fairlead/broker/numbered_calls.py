"""One incarnation's numbered line of calls: one in flight, and a lost reply asked again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairlead.broker.repeats import LIMIT, Limit, Rounds, late, repeated
from fairlead.broker.requests import Call
from fairlead.model.errors import BrokerError, InvalidOption

T = TypeVar("T")


class Caller:
    """Numbers the calls of one incarnation to one shard.

    Whoever must never wait for another's calls has a line, and so an incarnation, of its own.
    """

    def __init__(self, incarnation: str, *, limit: float = LIMIT, first: int = 1) -> None:
        """``limit`` is how many seconds a call may take that does not say so itself.

        ``first`` is the number of the first call. Several that have a line of one name after each
        other, such as leaders, begin at their terms: from the first call of a term on, every call
        of an older one is ``OutOfOrder``.
        """
        if first < 1:
            raise InvalidOption("first", first, "1 or more")
        self.incarnation = incarnation
        self.limit = limit
        self._number = first - 1
        self._line = asyncio.Lock()
        self._here = 0  # calls in the line, the one in flight included
        self._trouble: BrokerError | None = None  # of the one in flight

    def reserve(self, least: int = 0) -> int:
        """Return the next number, or ``least`` if that is greater, for a call to come.

        Calls go in the order of their numbers: whoever reserves one uses it before the next.
        """
        self._number = max(self._number + 1, least)
        return self._number

    async def call(
        self,
        verb: Callable[[Call], Awaitable[T]],
        limit: Limit | None = None,
        *,
        number: int | None = None,
        failed: Callable[[BrokerError], None] | None = None,
    ) -> T:
        """Carry out ``verb`` under the next number, and again under it as ``repeats`` says.

        Or under ``number``, which was reserved; also again, after a call that got no reply.

        Whoever is cancelled while waiting for a reply leaves a number behind that is never
        repeated; the broker's answer to it is simply not read, and should it arrive behind the next
        number, it is not carried out. ``failed`` hears of every round that failed.
        """
        if limit is None:
            limit = Limit(asyncio.get_running_loop().time() + self.limit)
        self._here += 1
        try:
            if self._here == 1:
                await self._line.acquire()  # it is free
            else:
                await self._queue(limit.until)
            try:
                number = self.reserve() if number is None else number
                until = None if limit.insists else limit.until
                call = Call(self.incarnation, number, until, limit.tries is not None)
                try:
                    return await verb(call)
                except BrokerError as error:
                    first = error
                return await self.ask_again(verb, call, limit, first, failed)
            finally:
                self._line.release()
        finally:
            self._here -= 1

    async def ask_again(
        self,
        verb: Callable[[Call], Awaitable[T]],
        call: Call,
        limit: Limit,
        first: BrokerError,
        failed: Callable[[BrokerError], None] | None = None,
    ) -> T:
        """Go on with a call whose first round failed, here or elsewhere; no other is under way."""

        def ask(rounds: Rounds) -> Awaitable[T]:
            until = None if limit.insists else rounds.until
            return verb(Call(call.incarnation, call.number, until, call.hasty))

        def heard(error: BrokerError) -> None:
            self._trouble = error
            if failed is not None:
                failed(error)

        try:
            return await repeated(ask, limit, after=first, failed=heard)
        finally:
            self._trouble = None

    async def _queue(self, until: float) -> None:
        """Wait for one's turn, no longer than there is time for the call."""
        try:
            async with asyncio.timeout_at(None if until == math.inf else until):
                await self._line.acquire()
        except TimeoutError:
            raise late(in_flight=False) from self._trouble
