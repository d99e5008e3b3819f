"""Holds the leadership of managers: one leads, by a lease at the broker, the others stand by."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable

from fairlead.broker import LIMIT, Store
from fairlead.ledger.ledger import Ledger
from fairlead.manager.leader_term import LINE, Term, lost
from fairlead.model.errors import BrokerError
from fairlead.model.ledger_errors import LedgerRefused
from fairlead.runtime import fault_injection

TTL = 10.0  # seconds that the broker keeps the leadership for one who is not heard of
RENEWAL = 3.0  # seconds between two renewals
_MARGIN = 2.0  # seconds before the end of the lease at which a leader stops for want of a renewal
_STANDBY = 1.0  # seconds between two looks of one who stands by, at most
_SOON = 0.5  # seconds after a renewal that failed
_TOUCH = 60.0  # seconds within which the broker hears of the line of a term
_GIVING_UP = 2.0  # seconds to give the leadership back

log = logging.getLogger("fairlead.manager")


def new_holder() -> str:
    """A name for this process that no other has: people find the process by it."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"


class Leader:
    """Takes the leadership when it is free, renews it, and gives it back.

    The lease is measured by a clock of this process, from before each renewal was asked for. So it
    is over here before it is over at the broker, whatever the answers took. What a leader does
    after all, because it was stopped in between, is refused by the number of its term.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        holder: str = "",
        *,
        ttl: float = TTL,
        renewal: float = RENEWAL,
        limit: float = LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = holder or new_holder()
        self._store = store
        self._ledger = ledger
        self._ttl = ttl
        self._renewal = min(renewal, ttl / 3)
        self._margin = min(_MARGIN, ttl / 5)
        # A broker that is away is to be noticed before the lease is over: only then what was
        # claimed can be given back.
        self._limit = min(limit, ttl / 3)
        self._clock = clock
        self._until = 0.0  # by the clock
        self.free_in = 0.0  # seconds until the leadership of another is over, as it was last seen

    async def take(self) -> Term | None:
        """Ask for the leadership once; None if another holds it.

        The new term is written into the ledger, then the broker gets its first call: from there on
        no earlier term changes anything. Raises BrokerError or LedgerError, and leads not, if one
        of the two could not be told.
        """
        asked = self._clock()
        found = await self._store.lead(LINE, self.holder, ttl=self._ttl)
        if found.holder != self.holder:
            self.free_in = max(found.until - found.now, 0.0)
            return None
        fault_injection.reached("leading")
        try:
            await self._tell_ledger(found.term)
            term = Term(self._store, found.term, self.holder, limit=self._limit)
            await term.touch()
        except BaseException:
            await self.release()
            raise
        fault_injection.reached("fenced")
        self._until = asked + self._ttl - self._margin
        return term

    async def _tell_ledger(self, number: int) -> None:
        """Write a new term. Whoever led before may stand still inside of a transaction."""
        try:
            ended = await self._ledger.end_older_sessions(term=number)
        except LedgerRefused as error:  # it runs under another role, which may not: wait instead
            log.warning("sessions of the last leader stay", extra={"reason": str(error)})
        else:
            if ended:
                log.warning("ended sessions of the last leader", extra={"sessions": ended})
        await self._ledger.take_leadership(term=number, holder=self.holder)

    async def hold(self, term: Term) -> None:
        """Renew until the leadership is lost, then raise LostLeadership."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew_always(term), name="leader")
            group.create_task(_keep_line(term), name="line")

    async def renew(self, term: Term) -> bool:
        """Ask once for another while; False if the broker did not answer.

        Raises LostLeadership if another term has begun, or this one is over by our clock.
        """
        asked = self._clock()
        try:
            async with asyncio.timeout(max(self._until - asked, 0.0)):
                found = await self._store.lead(LINE, self.holder, ttl=self._ttl)
        except (BrokerError, TimeoutError) as error:
            if self._clock() >= self._until:
                why = f"it could not be renewed within {self._ttl - self._margin:g} s"
                raise lost(term.number, why) from error
            return False
        if (found.holder, found.term) != (self.holder, term.number):
            raise lost(term.number, "another manager leads")
        if self._clock() >= asked + self._ttl - self._margin:
            raise lost(term.number, "the answer of the broker took too long")
        self._until = asked + self._ttl - self._margin
        return True

    async def release(self) -> None:
        """Give the leadership back, so that another takes it at once; as far as that is possible.

        What cannot be told ends by itself with the lease.
        """
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(_GIVING_UP):
                await self._store.lead(LINE, self.holder, ttl=self._ttl, release=True)

    def pause(self) -> float:
        """Seconds until it is worth asking again."""
        return min(_STANDBY, self.free_in + 0.05)

    async def _renew_always(self, term: Term) -> None:
        pause, failing = self._renewal, False
        while True:
            await asyncio.sleep(pause)
            done = await self.renew(term)
            if not done and not failing:
                log.warning("leadership could not be renewed; it is tried again")
            failing = not done
            pause = self._renewal if done else _SOON


async def _keep_line(term: Term) -> None:
    """Have the broker remember the number of the term: it forgets lines that are silent."""
    while True:
        await asyncio.sleep(max(_TOUCH / 2 - term.idle(), 1.0))
        if term.idle() >= _TOUCH / 2:
            with contextlib.suppress(BrokerError):  # the renewals say what is wrong
                await term.touch()
