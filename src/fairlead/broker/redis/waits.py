"""wait, collect, events: the verbs that sleep until the server has something to tell."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, cast

from fairlead.broker import checks
from fairlead.broker.records import EventPage
from fairlead.broker.redis import answers
from fairlead.broker.redis.connection import SERVER_EXTRA, Value
from fairlead.broker.redis.loop_session import LoopSession
from fairlead.broker.redis.scripts import load
from fairlead.broker.redis.session import Session
from fairlead.broker.repeats import pause
from fairlead.broker.requests import Mail
from fairlead.model.errors import BrokerError
from fairlead.model.events import EventId

LONGEST_SLEEP = 5.0  # seconds; a bell that was lost with a server is missed for so long at most
_SHORTEST_SLEEP = 0.001  # seconds until the alarm: a clock a bit behind is not asked in a spin

_log = logging.getLogger(__name__)


async def wait(
    session: Session, queues: Sequence[str], timeout: float, *, mail_for: str = ""
) -> bool:
    """Return when there may be something to fetch; see ``fairlead.broker.protocol``."""
    ends = time.monotonic() + timeout
    waiter = Waiter(session, await session.here(), queues, mail_for)
    found = gone = False
    try:
        while not session.is_closed:
            found = await waiter.look(ends - time.monotonic())
            left = ends - time.monotonic()
            if found or left <= 0.0:
                break
            found = await waiter.listen(left)
            if found:  # the token says so; what is left of the work wakes the next one
                break
        return found and not session.is_closed
    except GeneratorExit:  # thrown away with its loop: there is nothing to do it on
        gone = True
        raise
    finally:
        if not (found or gone):
            waiter.leave()
        elif waiter.alarm is not None:
            session.alarm_held = True


class Waiter:
    """One call of ``wait``: the token it took, and whether the alarm is its to keep."""

    def __init__(
        self, session: Session, here: LoopSession, queues: Sequence[str], mail_for: str
    ) -> None:
        self.session, self.here = session, here
        self.queues = tuple(dict.fromkeys(queues))
        keys = session.keys
        self.bells = [*map(keys.bell_of, self.queues), keys.bell]
        self.mail_bell = keys.mail_bell(mail_for) if mail_for else ""  # empty: none of its business
        if mail_for:
            self.bells.append(self.mail_bell)
        self.tokens: list[bytes] = []  # bells to ring again, should it leave now
        self.alarm: float | None = None  # when to wake up for what is due then
        self.asking = False  # whether it was given the alarm just now, nobody knows yet
        self.failures = 0

    async def look(self, left: float) -> bool:
        """Return whether something is runnable, and if not, note when to look again."""
        sleep = min(max(left, 0.0), LONGEST_SLEEP)
        # If the answer is yes the wake-up is ours; who is cancelled before it comes cannot know.
        self.asking = True
        self.tokens += map(self.session.keys.bell_suffix, self.queues)
        server = self.here.server
        doubts = server.doubts
        found, due, holds = await self.ask(sleep)
        if found == 1:
            return True
        # Was the alarm given to us in a reply that was lost, the next one says it is somebody's.
        self.told(float(due) if due else None, holds=holds == 1 or server.doubts != doubts)
        return False

    async def ask(self, sleep: float) -> Any:
        """Ask the server what there is."""
        session = self.session
        return await session.run("can_fetch", [session.clock(None), "", sleep, *self.queues])

    def told(self, due: float | None, *, holds: bool) -> None:
        """Note what the server said; once the alarm is ours it stays so until we leave."""
        self.asking = False
        self.tokens = []  # somebody else was faster, or it was about the alarm
        if holds or self.alarm is not None:
            wake = math.inf if due is None else max(due, _SHORTEST_SLEEP)
            self.alarm = time.monotonic() + wake

    def sleep(self, left: float) -> float:
        """Return how long to sleep now."""
        longest = min(left, LONGEST_SLEEP)
        return longest if self.alarm is None else min(longest, self.alarm - time.monotonic())

    async def listen(self, left: float) -> bool:
        """Sleep until a bell rings, it is time, or the broker is closed; whether work was told."""
        session = self.session
        seconds = self.sleep(left)
        if seconds <= 0.0 or session.is_closed:
            return False
        try:
            rung = await self.here.block("BLPOP", *self.bells, seconds=seconds, on_stray=self.stray)
        except BrokerError as error:
            if not error.passes:
                raise
            # Perhaps a token went with the connection: look again, without hurrying.
            self.failures += 1
            await asyncio.sleep(min(pause(self.failures), left))
            return False
        self.failures = 0
        if rung and rung[0] == self.mail_bell.encode():
            await self.stray(rung)  # it is for whoever collects it
            return True
        if rung and rung[0] != session.keys.bell.encode():
            return True
        self.tokens = [session.keys.suffix(rung[0])] if rung else []
        return False

    async def stray(self, reply: Any) -> None:
        """Put the token back that came when nobody waited for it any more."""
        await ring_back(self.session, reply)

    def leave(self) -> None:
        """Put back what somebody else must hear: the token, and who watches the time."""
        if self.here.is_over:
            return  # it takes a call to a broker that was closed: others look by themselves later
        if self.tokens or self.asking or self.alarm is not None:
            _ = self.here.start(self._hand_on())

    async def _hand_on(self) -> None:
        session = self.session
        bells: list[Value] = list(self.tokens)
        try:
            if self.asking or self.alarm is not None:
                # Lay the alarm down: one that ends now is nobody's. And ask again what the answer
                # would have been: a bell that is rung in vain wakes somebody in vain.
                queues = self.queues if self.asking else ()
                found, _, _ = await session.run(
                    "can_fetch", [session.clock(None), "", 0.0, *queues]
                )
                if self.asking and found == 0:
                    bells = []
                bells.append(session.keys.suffix(session.keys.bell.encode()))
            await self.here.server.run(load("wake"), session.keys.prefix, bells)
        except BrokerError as error:
            _log.warning("a wake-up could not be passed on", extra={"error": type(error).__name__})


async def ring_back(session: Session, reply: Any) -> None:
    """Put the token back that came when nobody waited for it any more.

    A task that was handed over then is known to nobody: a beat takes it back.
    """
    if reply[0].startswith(session.keys.handed("").encode()):
        return
    here = await session.here()
    await here.server.run(load("wake"), session.keys.prefix, [session.keys.suffix(reply[0])])


# -- mail ----------------------------------------------------------------------------------


async def collect(session: Session, incarnation: str, after: int, timeout: float) -> list[Mail]:
    """The incarnation's mail with numbers above ``after``."""
    ends = time.monotonic() + timeout
    here = await session.here()
    bell = session.keys.mail_bell(incarnation)
    while True:
        reply = await session.run("collect", [session.clock(None), incarnation, after])
        left = ends - time.monotonic()
        if reply or left <= 0.0 or session.is_closed:
            return answers.letters(reply)
        seconds = min(left, LONGEST_SLEEP)
        stray = partial(ring_back, session)
        await _rest(here.block("BLPOP", bell, seconds=seconds, on_stray=stray), seconds)


async def _rest(rest: Awaitable[Any], seconds: float) -> None:
    """Sleep until there may be more to read."""
    try:
        await rest
    except BrokerError as error:
        if not error.passes:
            raise
        await asyncio.sleep(min(pause(1), seconds))


# -- events --------------------------------------------------------------------------------


async def events(
    session: Session,
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
        reply = await session.run("events", [session.clock(None), "", "$", "", "0", 1])
        return answers.event_page(reply, session.shard, 1)
    ends = time.monotonic() + timeout
    here = await session.here()
    while True:
        page = await _read(session, after, reader, limit)
        left = ends - time.monotonic()
        if page.events or page.gap or left <= 0.0 or session.is_closed:
            return page
        place = f"{cast(EventId, page.last).entry}-0"
        seconds = min(left, LONGEST_SLEEP)
        longest = int((seconds + SERVER_EXTRA) * 1000)
        read = ("XREAD", "COUNT", 1, "BLOCK", longest, "STREAMS", session.keys.events, place)
        await _rest(here.block(*read, seconds=seconds, is_whole=True), seconds)


async def _read(
    session: Session, after: EventId | None, reader: str | None, limit: int
) -> EventPage:
    while True:
        if after is not None and not session.generation:
            await session.hello()
        generation = session.generation
        args: list[Value] = [session.clock(None), reader or "", "", "", "0", limit]
        if after is not None:
            foreign = (after.generation, after.shard) != (generation, session.shard)
            args[2:5] = after.entry, after.index, "1" if foreign else "0"
        reply = await session.run("events", args, writes=reader is not None)
        if after is None or reply[1].decode() == generation:
            return answers.event_page(reply, session.shard, limit)
        await session.hello()  # the server was emptied meanwhile
