"""take: sleep until a task is handed over by the call that enqueues it, or there is another way.

A taker leaves an offer, and listens on a list of its own beside the bells.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import Future
from collections.abc import Sequence
from functools import partial
from typing import Any

from fairlead.broker import checks
from fairlead.broker.redis.answers import handed
from fairlead.broker.redis.loop_session import LoopSession
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.waits import LONGEST_SLEEP, Waiter
from fairlead.broker.redis.wire import Value
from fairlead.broker.repeats import pause
from fairlead.broker.requests import LEASE, Call, Taken
from fairlead.broker.waits import Woken
from fairlead.model.errors import BrokerError, OutOfOrder

_log = logging.getLogger(__name__)


async def take(
    session: Session,
    call: Call,
    queues: Sequence[str],
    timeout: float,
    woken: Woken,
    *,
    lease: float = LEASE,
    mail_for: str = "",
) -> Taken:
    """Wait, ready to be handed a task; see ``fairlead.broker.protocol``."""
    checks.check_lease("lease", lease)
    if session.is_closed:
        return Taken()
    ends = time.monotonic() + timeout
    here = await session.here()
    taker = Taker(session, here, queues, mail_for, call, lease)
    session.takers[call.incarnation] = taker

    def close(_: Future[None]) -> None:
        _ = here.start(taker.withdraw())

    here.closing.add_done_callback(close)
    taken, gone = Taken(), False
    try:
        taken = await _task_or_wake_up(taker, ends, woken)
    except OutOfOrder:  # an exchange was faster
        taker.leaves = True
    except GeneratorExit:  # thrown away with its loop
        gone = True
        raise
    finally:
        here.closing.remove_done_callback(close)
        if session.takers.get(call.incarnation) is taker:
            del session.takers[call.incarnation]
        if not (taken.found or gone):
            taker.leave()
        elif taker.alarm is not None and not taken.leased:
            session.alarm_held = True
    return taken


async def _task_or_wake_up(taker: Taker, ends: float, woken: Woken) -> Taken:
    while not (taker.session.is_closed or taker.leaves):
        if await taker.look(ends - time.monotonic()):
            return Taken(found=True)
        left = ends - time.monotonic()
        if left <= 0.0:
            await taker.withdraw()
            return Taken()
        taken = await taker.listen_for_task(left)
        if taken.leased:
            return taken
        if taken.found:  # until it fetches it may be handed a task still
            woken()
            return await taker.last_task(found=True)
    return Taken() if taker.is_drained else await taker.last_task()


class Taker(Waiter):
    """One call of ``take``: a waiter that may be handed a task."""

    def __init__(
        self,
        session: Session,
        here: LoopSession,
        queues: Sequence[str],
        mail_for: str,
        call: Call,
        lease: float,
    ) -> None:
        super().__init__(session, here, queues, mail_for)
        self.call = call
        self.lease = lease
        self.own = session.keys.handed(call.incarnation)
        self.leaves = False  # its incarnation exchanges, or the broker is closed
        # Done when nothing can be handed over any more.
        self.end: asyncio.Future[None] = here.loop.create_future()
        self.is_drained = False  # it listened until then

    async def ask(self, sleep: float) -> Any:
        """Ask the server what there is, and offer to be handed it."""
        session, call = self.session, self.call
        args: list[Value] = [session.clock(None), call.incarnation, call.number, sleep, self.lease]
        return await session.run("offer", [*args, *self.queues], call)

    async def listen_for_task(self, left: float) -> Taken:
        """Sleep until a task was handed over, a bell rings, it is time, or the taker leaves."""
        rung = await self._pop(left)
        if rung is None:
            return Taken()
        if rung[0] == self.own.encode():
            return self._loan(rung[1])
        if rung[0] == self.mail_bell.encode():
            await self.stray(rung)  # it is for whoever collects it
            return Taken(found=True)
        keys = self.session.keys
        if rung[0] == keys.bell.encode() or self.leaves:
            self.tokens = [keys.suffix(rung[0])]
            return Taken()
        return Taken(found=True)

    async def _pop(self, left: float) -> Any:
        """The first token of a bell, or the task that was handed over; None: nothing so far."""
        seconds = self.sleep(left)
        if seconds <= 0.0:
            return None
        ends = time.monotonic() + seconds
        block = partial(self.here.server.block, on_stray=self.stray, end=self.end)
        try:
            rung = await block("BLPOP", self.own, *self.bells, seconds=seconds)
        except BrokerError as error:
            if not error.passes:
                raise
            # Perhaps something went with the connection: look again, without hurrying.
            self.failures += 1
            await asyncio.wait((self.end,), timeout=min(pause(self.failures), left))
            return None
        self.failures = 0
        self.is_drained = rung is None and self.end.done() and time.monotonic() < ends
        return rung

    async def last_task(self, *, found: bool = False) -> Taken:
        """What was handed over before the exchange that ends the wait, while nobody listens."""
        await asyncio.wait((self.end,), timeout=LONGEST_SLEEP)
        entry = await self.here.server.command("LPOP", self.own)
        taken = Taken() if entry is None else self._loan(entry)
        return taken if taken.leased else Taken(found=found)

    def _loan(self, entry: bytes) -> Taken:
        """The task that was handed over; of another wait it is known to nobody, and goes back."""
        number, lease = handed(entry)
        return Taken(found=True, leased=[lease]) if number == self.call.number else Taken()

    async def withdraw(self) -> None:
        """Have nothing handed over any more, and what was goes back; then let the taker go."""
        self.leaves = True
        session, call = self.session, self.call
        args: list[Value] = [session.clock(None), call.incarnation, call.number, 0.0, self.lease]
        try:
            await session.run("offer", args, call)
        except OutOfOrder:
            pass  # it made another call: that has done it
        except BrokerError as error:
            _log.warning("an offer stands that nobody is behind: %s", type(error).__name__)
        finally:
            self.finish()

    def finish(self) -> None:
        """Have it return soon."""
        self.leaves = True
        if not self.end.done():
            self.end.set_result(None)
