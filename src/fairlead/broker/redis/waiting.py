"""wait, take, collect, events: the verbs that sleep until the server has something to tell.

Nobody polls: a bell is a list that a script puts a token into, and who waits pops it. The token is
a wake-up for one; whoever took it and leaves without using it puts it back. Who takes also pops a
list of its own, in which a script puts the task that it lends to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any, cast

from fairlead.broker import checks
from fairlead.broker.redis import answers
from fairlead.broker.redis.connection import Value
from fairlead.broker.redis.frame import Frame
from fairlead.broker.redis.scripts import load
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.waiter import LONGEST_SLEEP, Taker, Waiter
from fairlead.broker.repeats import pause
from fairlead.broker.verbs import LEASE, Call, Mail, Taken
from fairlead.broker.views import EventPage
from fairlead.broker.waits import Woken
from fairlead.model.errors import BrokerError, OutOfOrder
from fairlead.model.events import EventId

__all__ = ("Waiting",)

_log = logging.getLogger(__name__)


class Waiting(Frame):
    """The blocking half of the broker."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._takers: dict[str, Taker] = {}  # by incarnation

    async def wait(self, queues: Sequence[str], timeout: float, *, mail_for: str = "") -> bool:
        """Return when there may be something to fetch; see ``fairlead.broker.protocol``."""
        ends = time.monotonic() + timeout
        session = await self._session()
        waiter = Waiter(queues, self.keys.mail_bell(mail_for) if mail_for else "")
        found = gone = False
        try:
            while not self._closed:
                found = await self._look(session, waiter, ends - time.monotonic())
                left = ends - time.monotonic()
                if found or left <= 0.0:
                    break
                found = await self._listen(session, waiter, left)
                if found:  # the token says so; what is left of the work wakes the next one
                    break
            return found and not self._closed
        except GeneratorExit:  # thrown away with its loop: there is nothing to do it on
            gone = True
            raise
        finally:
            if not (found or gone):
                self._leave(session, waiter)
            elif waiter.alarm is not None:
                self._alarm_held = True

    async def take(
        self,
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
        if self._closed:
            return Taken()
        ends = time.monotonic() + timeout
        session = await self._session()
        mail_bell = self.keys.mail_bell(mail_for) if mail_for else ""
        taker = Taker(call, queues, mail_bell, lease, session.loop.create_future())
        self._takers[call.incarnation] = taker

        def close(_: Future[None]) -> None:
            _ = session.start(self._withdraw(taker))

        session.closing.add_done_callback(close)
        taken, gone = Taken(), False
        try:
            taken = await self._task_or_wake_up(session, taker, ends, woken)
        except OutOfOrder:  # an exchange was faster
            taker.leaves = True
        except GeneratorExit:  # thrown away with its loop
            gone = True
            raise
        finally:
            session.closing.remove_done_callback(close)
            if self._takers.get(call.incarnation) is taker:
                del self._takers[call.incarnation]
            if not (taken.found or gone):
                self._leave(session, taker)
            elif taker.alarm is not None and not taken.leased:
                self._alarm_held = True
        return taken

    async def _task_or_wake_up(
        self, session: Session, taker: Taker, ends: float, woken: Woken
    ) -> Taken:
        while not (self._closed or taker.leaves):
            if await self._look(session, taker, ends - time.monotonic()):
                return Taken(found=True)
            left = ends - time.monotonic()
            if left <= 0.0:
                await self._withdraw(taker)
                return Taken()
            taken = await self._listen_for_task(session, taker, left)
            if taken.leased:
                return taken
            if taken.found:  # until it fetches it may be handed a task still
                woken()
                return await self._last_task(session, taker, found=True)
        return Taken() if taker.is_drained else await self._last_task(session, taker)

    async def _listen_for_task(self, session: Session, taker: Taker, left: float) -> Taken:
        """Sleep until a task was handed over, a bell rings, it is time, or the taker leaves."""
        own = self.keys.handed(taker.call.incarnation)
        rung = await self._pop(session, taker, left, own)
        if rung is None:
            return Taken()
        if rung[0] == own.encode():
            return taker.loan(rung[1])
        if rung[0] == taker.mail_bell.encode():
            await self._ring_back(rung)  # it is for whoever collects it
            return Taken(found=True)
        if rung[0] == self.keys.bell.encode() or taker.leaves:
            taker.tokens = [self.keys.suffix(rung[0])]
            return Taken()
        return Taken(found=True)

    async def _pop(self, session: Session, taker: Taker, left: float, own: str) -> Any:
        """The first token of a bell, or the task that was handed over; None: nothing so far."""
        bells = [*(self.keys.bell_of(queue) for queue in taker.queues), self.keys.bell]
        if taker.mail_bell:
            bells.append(taker.mail_bell)
        seconds = taker.sleep(left)
        if seconds <= 0.0:
            return None
        ends = time.monotonic() + seconds
        try:
            rung = await session.server.block(
                "BLPOP", own, *bells, seconds=seconds, on_stray=self._ring_back, end=taker.end
            )
        except BrokerError as error:
            if not error.passes:
                raise
            # Perhaps something went with the connection: look again, without hurrying.
            taker.failures += 1
            await asyncio.wait((taker.end,), timeout=min(pause(taker.failures), left))
            return None
        taker.failures = 0
        taker.is_drained = rung is None and taker.end.done() and time.monotonic() < ends
        return rung

    async def _last_task(self, session: Session, taker: Taker, *, found: bool = False) -> Taken:
        """What was handed over before the exchange that ends the wait, while nobody listens."""
        await asyncio.wait((taker.end,), timeout=LONGEST_SLEEP)
        own = self.keys.handed(taker.call.incarnation)
        entry = await session.server.command("LPOP", own)
        taken = Taken() if entry is None else taker.loan(entry)
        return taken if taken.leased else Taken(found=found)

    async def _withdraw(self, taker: Taker) -> None:
        """Have nothing handed over any more, and what was goes back; then let the taker go."""
        taker.leaves = True
        args: list[Value] = [self._clock(None), taker.call.incarnation, taker.call.number, 0.0]
        try:
            await self._run("offer", [*args, taker.lease], taker.call)
        except OutOfOrder:
            pass  # it made another call: that has done it
        except BrokerError as error:
            _log.warning("an offer stands that nobody is behind: %s", type(error).__name__)
        finally:
            taker.finish()

    async def _look(self, session: Session, waiter: Waiter, left: float) -> bool:
        """Whether something is runnable, and if not, when to look again."""
        sleep = min(max(left, 0.0), LONGEST_SLEEP)
        # If the answer is yes the wake-up is ours; who is cancelled before it comes cannot know.
        waiter.asking = True
        waiter.tokens += [self.keys.bell_suffix(queue) for queue in waiter.queues]
        doubts = session.server.doubts
        found, due, holds = await self._ask(waiter, sleep)
        if found == 1:
            return True
        # Was the alarm given to us in a reply that was lost, the next one says it is somebody's.
        perhaps = session.server.doubts != doubts
        waiter.told(float(due) if due else None, holds=holds == 1 or perhaps)
        return False

    async def _ask(self, waiter: Waiter, sleep: float) -> Any:
        clock = self._clock(None)
        if not isinstance(waiter, Taker):
            return await self._run("ready", [clock, "", sleep, *waiter.queues])
        call = waiter.call
        args: list[Value] = [clock, call.incarnation, call.number, sleep, waiter.lease]
        return await self._run("offer", [*args, *waiter.queues], call)

    async def _listen(self, session: Session, waiter: Waiter, left: float) -> bool:
        """Sleep until a bell rings, it is time, or the broker is closed; whether work was told."""
        bells = [*(self.keys.bell_of(queue) for queue in waiter.queues), self.keys.bell]
        if waiter.mail_bell:
            bells.append(waiter.mail_bell)
        seconds = waiter.sleep(left)
        if seconds <= 0.0:
            return False
        try:
            rung = await self._block(session, ("BLPOP", *bells), seconds, self._ring_back)
        except BrokerError as error:
            if not error.passes:
                raise
            # Perhaps a token went with the connection: look again, without hurrying.
            waiter.failures += 1
            await asyncio.sleep(min(pause(waiter.failures), left))
        else:
            waiter.failures = 0
            if rung and rung[0] == waiter.mail_bell.encode():
                await self._ring_back(rung)  # it is for whoever collects it
                return True
            if rung and rung[0] != self.keys.bell.encode():
                return True
            waiter.tokens = [self.keys.suffix(rung[0])] if rung else []
        return False

    def _leave(self, session: Session, waiter: Waiter) -> None:
        """Put back what somebody else must hear: the token, and who watches the time."""
        if waiter.tokens or waiter.asking or waiter.alarm is not None:
            _ = session.start(self._hand_on(session, waiter))

    async def _hand_on(self, session: Session, waiter: Waiter) -> None:
        bells: list[Value] = list(waiter.tokens)
        try:
            if waiter.asking or waiter.alarm is not None:
                # Lay the alarm down: one that ends now is nobody's. And ask again what the answer
                # would have been: a bell that is rung in vain wakes somebody in vain.
                queues = waiter.queues if waiter.asking else ()
                found, _, _ = await self._run("ready", [self._clock(None), "", 0.0, *queues])
                if waiter.asking and found == 0:
                    bells = []
                bells.append(self.keys.suffix(self.keys.bell.encode()))
            await session.server.run(load("ring"), self.keys.prefix, bells)
        except BrokerError as error:
            _log.warning("a wake-up could not be passed on", extra={"error": type(error).__name__})

    async def _ring_back(self, reply: Any) -> None:
        """Put the token back that came when nobody waited for it any more.

        A task that was handed over then is known to nobody: a beat takes it back.
        """
        if reply[0].startswith(self.keys.handed("").encode()):
            return
        session = await self._session()
        await session.server.run(load("ring"), self.keys.prefix, [self.keys.suffix(reply[0])])

    async def _block(
        self,
        session: Session,
        command: tuple[Value, ...],
        seconds: float,
        on_stray: Callable[[Any], Any] | None,
    ) -> Any:
        """The reply of a blocking command; None when the time is over or the broker is closed."""
        if self._closed:
            return None
        call = session.start(session.server.block(*command, seconds=seconds, on_stray=on_stray))
        try:
            await asyncio.wait((call, session.closing), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._drop(session, call, on_stray)
            raise
        if call.done():
            return call.result()
        self._drop(session, call, on_stray)
        return None

    def _drop(
        self, session: Session, call: asyncio.Task[Any], on_stray: Callable[[Any], Any] | None
    ) -> None:
        """Give a blocked call up; what it brings in this very moment goes to ``on_stray``."""

        def ended(call: asyncio.Task[Any]) -> None:
            if call.cancelled() or call.exception() is not None:
                return
            reply = call.result()
            if reply is not None and on_stray is not None:
                _ = session.start(on_stray(reply))

        call.cancel()
        call.add_done_callback(ended)

    # -- mail ----------------------------------------------------------------------------------

    async def collect(self, incarnation: str, after: int, timeout: float) -> list[Mail]:
        """The incarnation's mail with numbers above ``after``."""
        ends = time.monotonic() + timeout
        session = await self._session()
        bell = self.keys.mail_bell(incarnation)
        while True:
            reply = await self._run("collect", [self._clock(None), incarnation, after])
            left = ends - time.monotonic()
            if reply or left <= 0.0 or self._closed:
                return answers.letters(reply)
            seconds = min(left, LONGEST_SLEEP)
            await self._rest(session, ("BLPOP", bell), seconds, self._ring_back)

    async def _rest(
        self,
        session: Session,
        command: tuple[Value, ...],
        seconds: float,
        on_stray: Callable[[Any], Any] | None,
    ) -> None:
        """Sleep until there may be more to read."""
        try:
            await self._block(session, command, seconds, on_stray)
        except BrokerError as error:
            if not error.passes:
                raise
            await asyncio.sleep(min(pause(1), seconds))

    # -- events --------------------------------------------------------------------------------

    async def events(
        self,
        *,
        after: EventId | None = None,
        reader: str | None = None,
        limit: int = 500,
        timeout: float = 0.0,
        latest: bool = False,
    ) -> EventPage:
        """Events behind ``after``; see ``fairlead.broker.protocol``."""
        checks.check_reader(reader, limit)
        if latest:
            reply = await self._run("events", [self._clock(None), "", "$", "", "0", 1])
            return answers.event_page(reply, self.shard, 1)
        ends = time.monotonic() + timeout
        session = await self._session()
        while True:
            page = await self._read(after, reader, limit)
            left = ends - time.monotonic()
            if page.events or page.gap or left <= 0.0 or self._closed:
                return page
            last = cast(EventId, page.last)
            await self._rest(session, *_xread(self.keys.events, last.entry, left), None)

    async def _read(self, after: EventId | None, reader: str | None, limit: int) -> EventPage:
        while True:
            if after is not None and not self._generation:
                await self.hello()
            generation = self._generation
            args: list[Value] = [self._clock(None), reader or "", "", "", "0", limit]
            if after is not None:
                foreign = (after.generation, after.shard) != (generation, self.shard)
                args[2:5] = after.entry, after.index, "1" if foreign else "0"
            reply = await self._run("events", args, writes=reader is not None)
            if after is None or reply[1].decode() == generation:
                return answers.event_page(reply, self.shard, limit)
            await self.hello()  # the server was emptied meanwhile


class _Behind(float):
    """Seconds to wait, for a command whose last argument is not its timeout but a place.

    ``Server.block`` ends every command with the seconds plus some; XREAD wants its own before the
    keys, and ends with where to read on.
    """

    place: str

    def __add__(self, other: float) -> str:  # type: ignore[override]
        return self.place


def _xread(key: str, entry: int, left: float) -> tuple[tuple[Value, ...], float]:
    """The command that waits for the next entry of the stream, and for how long."""
    seconds = _Behind(min(left, LONGEST_SLEEP))
    seconds.place = f"{entry}-0"
    longest = int((float(seconds) + 2.0) * 1000)  # later than we give up, as with all others
    return ("XREAD", "COUNT", 1, "BLOCK", longest, "STREAMS", key), seconds
