"""wait, collect, events: the verbs that sleep until the server has something to tell.

Nobody polls: a bell is a list that a script puts a token into, and who waits pops it. The token is
a wake-up for one; whoever took it and leaves without using it puts it back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from fairlead.broker import checks
from fairlead.broker.redis.connection import Value
from fairlead.broker.redis.frame import Frame
from fairlead.broker.redis.scripts import load
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.stored import STATES
from fairlead.broker.repeats import pause
from fairlead.broker.verbs import Mail
from fairlead.broker.views import EventPage
from fairlead.model.errors import BrokerError
from fairlead.model.events import Event, EventId, EventKind

__all__ = ("Waiting",)

_LONGEST_SLEEP = 5.0  # seconds; a bell that was lost with a server is missed for so long at most
_SHORTEST_SLEEP = (
    0.001  # seconds until the alarm, so that a clock a bit behind is not asked in a spin
)

_log = logging.getLogger(__name__)


class _Waiter:
    """One call of ``wait``: the token it took, and whether the alarm is its to keep."""

    def __init__(self, queues: Sequence[str], mail_bell: str) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self.mail_bell = mail_bell  # empty: mail is not its business
        self.tokens: list[bytes] = []  # bells to ring again, should it leave now
        self.alarm: float | None = None  # when to wake up for what is due then
        self.asking = False  # whether it was given the alarm just now, nobody knows yet
        self.failures = 0

    def told(self, due: float | None, *, holds: bool) -> None:
        """Note what the server said; once the alarm is ours it stays so until we leave."""
        self.asking = False
        self.tokens = []  # somebody else was faster, or it was about the alarm
        if holds or self.alarm is not None:
            wake = math.inf if due is None else max(due, _SHORTEST_SLEEP)
            self.alarm = time.monotonic() + wake

    def sleep(self, left: float) -> float:
        """How long to sleep now."""
        longest = min(left, _LONGEST_SLEEP)
        return longest if self.alarm is None else min(longest, self.alarm - time.monotonic())


class Waiting(Frame):
    """The blocking half of the broker."""

    async def wait(self, queues: Sequence[str], timeout: float, *, mail_for: str = "") -> bool:
        """Return when there may be something to fetch; see ``fairlead.broker.protocol``."""
        ends = time.monotonic() + timeout
        session = await self._session()
        waiter = _Waiter(queues, self.keys.mail_bell(mail_for) if mail_for else "")
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

    async def _look(self, session: Session, waiter: _Waiter, left: float) -> bool:
        """Whether something is runnable, and if not, when to look again."""
        sleep = min(max(left, 0.0), _LONGEST_SLEEP)
        # If the answer is yes the wake-up is ours; who is cancelled before it comes cannot know.
        waiter.asking = True
        waiter.tokens += [self.keys.bell_suffix(queue) for queue in waiter.queues]
        args: list[Value] = [self._clock(None), "", sleep, *waiter.queues]
        doubts = session.server.doubts
        found, due, holds = await self._run("ready", args)
        if found == 1:
            return True
        # Was the alarm given to us in a reply that was lost, the next one says it is somebody's.
        perhaps = session.server.doubts != doubts
        waiter.told(float(due) if due else None, holds=holds == 1 or perhaps)
        return False

    async def _listen(self, session: Session, waiter: _Waiter, left: float) -> bool:
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

    def _leave(self, session: Session, waiter: _Waiter) -> None:
        """Put back what somebody else must hear: the token, and who watches the time."""
        if waiter.tokens or waiter.asking or waiter.alarm is not None:
            _ = session.start(self._hand_on(session, waiter))

    async def _hand_on(self, session: Session, waiter: _Waiter) -> None:
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
        """Put the token back that came when nobody waited for it any more."""
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
                return _letters(reply)
            seconds = min(left, _LONGEST_SLEEP)
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
            return _page(reply, self.shard, 1)
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
                return _page(reply, self.shard, limit)
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
    seconds = _Behind(min(left, _LONGEST_SLEEP))
    seconds.place = f"{entry}-0"
    longest = int((float(seconds) + 2.0) * 1000)  # later than we give up, as with all others
    return ("XREAD", "COUNT", 1, "BLOCK", longest, "STREAMS", key), seconds


def _page(reply: Sequence[Any], shard: str, limit: int) -> EventPage:
    now, generation, gap, entry, index, *rest = reply
    name = generation.decode()
    events: list[Event] = []
    for i in range(0, len(rest), 4):
        _add_rows(events, name, shard, rest[i : i + 4], limit)
    last = events[-1].id if events else EventId(name, shard, int(entry), int(index))
    return EventPage(now=float(now), events=events, gap=gap == 1, last=last)


def _add_rows(
    events: list[Event], generation: str, shard: str, stored: Sequence[Any], limit: int
) -> None:
    """Add the rows of one entry, from its first new one on, up to the limit.

    Rows are grouped by all that they have in common; in a group FS and a tenant go before its ids.
    """
    number, at, first, text = stored
    entry, moment, skipped = int(number), float(at), int(first)
    place = -1
    for group in text.decode().split("\x1e"):
        kind, digit, queue, token, attempt, reason, *items = group.split("\x1f")
        found = STATES[int(digit)]
        state = "" if found is None else found.value
        lease, count = int(token), int(attempt)
        tenant = ""
        for item in items:
            if item.startswith("\x1c"):
                tenant = item[1:]
                continue
            place += 1
            if place < skipped:
                continue
            if len(events) >= limit:
                return
            events.append(
                Event(
                    id=EventId(generation, shard, entry, place),
                    at=moment,
                    kind=cast(EventKind, kind),
                    task=item,
                    queue=queue,
                    tenant=tenant,
                    state=state,
                    token=lease,
                    attempt=count,
                    reason=reason,
                )
            )


def _letters(reply: Sequence[bytes]) -> list[Mail]:
    """An incarnation's mail."""
    found: list[Mail] = []
    for text in reply:
        number, kind, id, digit, token = text.decode().split("\x1f")
        found.append(
            Mail(
                number=int(number),
                kind=cast(Literal["finished", "cancel", "lent"], kind),
                id=id,
                state=STATES[int(digit)],
                token=int(token),
            )
        )
    return found
