"""Around every verb of the Redis broker: connections, clock, numbers, and what errors mean.

Verbs may be awaited from event loops of several threads: each loop has its own connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.broker import checks
from fairlead.broker.clock import Clock
from fairlead.broker.documents import too_many_trails
from fairlead.broker.leadership import too_many_leaders
from fairlead.broker.namespace import with_namespace
from fairlead.broker.redis.address import Address, parse
from fairlead.broker.redis.codec import PackedSubmissions
from fairlead.broker.redis.connection import FirstTry, Server, Value
from fairlead.broker.redis.finder import Ask
from fairlead.broker.redis.functions import run_on
from fairlead.broker.redis.greeting import Facts, examine, warn_about
from fairlead.broker.redis.keys import Keys
from fairlead.broker.redis.replies import ScriptError
from fairlead.broker.redis.scripts import Script, load
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import ReplyError, pack
from fairlead.broker.repeats import LIMIT
from fairlead.broker.verbs import LAYOUT, LEAST_LAYOUT, MOVING, SHARD, Call
from fairlead.broker.views import Hello
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    InvalidInput,
    InvalidOption,
    OutOfOrder,
    Refused,
)

if TYPE_CHECKING:
    from fairlead.broker.redis.blocking_line import BlockingLine

__all__ = ("Frame",)

_EVENT_BYTES = 16 * 1024 * 1024
_LONGEST_INCARNATION = 255  # bytes; a record has one byte for its length

_log = logging.getLogger(__name__)


class Frame:
    """One shard on one server. Nothing is opened before the first call."""

    def __init__(
        self,
        url: str | Address,
        *,
        shard: str = SHARD,
        namespace: str = "",
        test_clock: bool = False,
        event_bytes: int = _EVENT_BYTES,
        patience: float = LIMIT,
        clock: Clock | None = None,
        revive: Callable[[], Awaitable[None]] | None = None,
        lua: Path | None = None,
    ) -> None:
        """``patience`` and ``revive`` are those of ``connection.Server``.

        ``clock`` and ``lua`` are for tests: one stands for the server's clock as well, the other
        is a folder of scripts instead of ours.
        """
        self.address = parse(url) if isinstance(url, str) else url
        self.shard = shard
        self.namespace = namespace
        self.keys = Keys(shard, namespace)
        self.changes: list[str] = []  # what became of the server since it was first met
        self._test_clock = test_clock
        self._set = clock  # if it is not the server's
        self._steady = (clock or Clock()).steady
        self._wrote: float | None = None  # when the last call was sent that wrote the time
        self._event_bytes = event_bytes
        self._patience = patience
        self._revive = revive
        self._lua = lua
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._lock = threading.Lock()  # around what loops share: the sessions, the two below
        self._generation = ""
        self._facts = Facts()
        self._any_layout = False  # when asked for it: verbs refuse another one by themselves
        self._alarm_held = False  # by a wait that is over; the next exchange passes it on
        self._closed = False

    @property
    def destination(self) -> str:
        """Which broker this is; see ``fairlead.broker.destination_of``."""
        places = tuple(sorted(self.address.places, key=str))
        where = with_namespace(
            str(msgspec.structs.replace(self.address, places=places)), self.namespace
        )
        return where if self.shard == SHARD else f"{where}#{self.shard}"

    def thread_line(self) -> BlockingLine | None:
        """Return a line for a thread to where the calls of the running loop go; None: not now."""
        # Here: async programs need none.
        from fairlead.broker.redis.blocking_line import BlockingLine

        session = self._sessions.get(asyncio.get_running_loop())
        wire = None if session is None else session.server.ready()
        is_odd = self.address.tls is not None or self._test_clock or self._set is not None
        if wire is None or self._closed or is_odd or not BlockingLine.is_possible:
            return None
        return BlockingLine(self, self.address, wire.place)

    # -- what a line of a thread must know -------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether it takes in nothing more."""
        return self._closed

    @property
    def lua(self) -> Path | None:
        """The folder of the scripts, if it is not ours."""
        return self._lua

    def wrote(self, began: float) -> None:
        """Note that a call that was sent at this moment of ``steady`` wrote the time."""
        self._wrote = began

    def steady(self) -> float:
        """A clock that only goes forward."""
        return self._steady()

    # -- calls ---------------------------------------------------------------------------------

    async def _run(
        self,
        verb: str,
        args: Sequence[Value],
        call: Call | None = None,
        *,
        writes: bool = False,
        first: FirstTry | None = None,
    ) -> Any:
        """Run a verb's script; a shard that was emptied is given its name first, once.

        ``writes``: this call of a verb that usually reads changes something. ``first`` is that of
        ``Server.run``.
        """
        session = await self._session()
        script = load(verb, self._lua, reads=not (writes or self._test_clock))
        until, hasty = (None, False) if call is None else (call.until, call.hasty)
        owner = call.incarnation if call is not None and call.bound else None
        session.calls += 1
        began = self._steady()
        try:
            try:
                reply = await session.server.run(
                    script, self.keys.prefix, args, until=until, hasty=hasty, owner=owner,
                    first=first,
                )  # fmt: skip
            except ScriptError as error:
                if error.code != "silence" and (error.code, *error.fields) != ("layout", "0"):
                    raise
                ahead = (await self._greet(until)).ahead
                if error.code == "silence":
                    args = [f"{self._clock(None)}a{ahead!r}", *args[1:]]
                reply = await session.server.run(script, self.keys.prefix, args, until=until)
        except ScriptError as error:
            raise _meaning(error, verb, call) from None
        except UnicodeEncodeError:
            raise _not_text() from None
        finally:
            session.calls -= 1
        if script.writes_time:
            self._wrote = began
        return reply

    async def _numbered(
        self,
        verb: str,
        call: Call,
        now: float | None,
        args: Sequence[Value],
        tail: PackedSubmissions | None = None,
    ) -> Any:
        """Run the script of a verb that takes a number; ``tail`` are the arguments, packed."""
        name = call.incarnation
        if len(name) > _LONGEST_INCARNATION // 4 and len(name.encode()) > _LONGEST_INCARNATION:
            raise InvalidOption("incarnation", name, f"at most {_LONGEST_INCARNATION} bytes long")
        first = (self._clock(now), name, call.number)
        # The short way, for nearly all calls: over a connection that is there, to a good reply.
        session = self._sessions.get(asyncio.get_running_loop())
        until = call.until
        wire = None
        if session is not None and not call.bound and (until is not None or self._patience):
            wire = session.server.ready()
        if session is None or wire is None:
            return await self._run(verb, (*first, *args), call)
        script = load(verb, self._lua, reads=not self._test_clock)
        session.calls += 1
        began, clock = self._steady(), session.loop.time()
        if until is None:
            until = clock + self._patience
        try:
            begin = ("FCALL", script.function, 1, self.keys.prefix, *first)
            packed = pack((*begin, *args)) if tail is None else tail.command(begin)
            reply = await wire.send(packed, clock, until)
        except Ambiguous as error:
            reply = error
        except UnicodeEncodeError:
            raise _not_text() from None
        finally:
            session.calls -= 1
        if reply.__class__ is ReplyError or reply.__class__ is Ambiguous:
            call = msgspec.structs.replace(call, until=until)
            return await self._run(verb, (*first, *args), call, first=(wire, reply))
        session.server.heard()
        if script.writes_time:
            self._wrote = began
        return reply

    async def _own(self, verb: str, now: float | None, *args: Value) -> Any:
        """The same for a verb whose caller has no numbers, so that it can be repeated as well."""
        clock = self._clock(now)
        session = await self._session()
        async with session.line(verb):
            call = session.next(verb)
            return await self._run(verb, [clock, call.incarnation, call.number, *args], call)

    def _clock(self, now: float | None) -> str:
        if self._test_clock:
            return "t" if now is None else f"t{now!r}"
        if now is not None:
            checks.refuse_now(now)
        return "" if self._set is None else f"r{self._set.wall()!r}"

    # -- who the server is ---------------------------------------------------------------------

    async def hello(self) -> Hello:
        """Say who the broker is: time, generation and layout."""
        return await self._greet(None)

    async def _greet(self, until: float | None) -> Hello:
        """The same, within the time of a call that needs it."""
        server, prefix = (await self._session()).server, self.keys.prefix
        return await self._meet(lambda script, args: server.run(script, prefix, args, until=until))

    async def _meet(self, run: Callable[[Script, Sequence[Value]], Awaitable[Any]]) -> Hello:
        """Ask who the shard is. Only one that has no name yet is written to."""
        wrote = self._wrote
        seen = "" if wrote is None else repr(max(self._steady() - wrote, 0.0))
        look: list[Value] = [self._clock(None), "", LAYOUT, LEAST_LAYOUT, self._event_bytes, seen]
        reply = await run(load("hello", reads=True), look)
        if not reply[1]:
            look[1] = os.urandom(8).hex()
            reply = await run(load("hello"), look)
        return self._met(reply)

    def _met(self, reply: Sequence[bytes]) -> Hello:
        """Take in the answer to hello: the time, the generation, the layout."""
        now, generation, layout, least, ahead = (text.decode() for text in reply)
        if (int(layout) < LAYOUT or int(least) > LAYOUT) and not self._any_layout:
            raise _wrong_layout(layout)
        with self._lock:
            known, self._generation = self._generation, generation
            replication = self._facts.replication
        if known not in ("", generation):
            self._changed(
                "the server was emptied, or is another one: its tasks are not those it had before"
            )
        return Hello(
            now=float(now),
            generation=generation,
            replication=replication,
            layout=int(layout),
            ahead=float(ahead),
            shard=self.shard,
        )

    async def _on_connect(self, ask: Ask) -> None:
        facts = await examine(ask)
        await self._meet(lambda script, args: run_on(ask, script, self.keys.prefix, args))
        with self._lock:
            known, self._facts = self._facts, facts
        if facts.run != known.run:
            warn_about(facts)
        if known.replication not in ("", facts.replication):
            self._changed(
                "the server was restarted, or another one took its place: "
                "its last writes before that may be lost"
            )

    def _changed(self, what: str) -> None:
        self.changes.append(what)
        _log.warning("%s (%s)", what, self.address)

    # -- sessions ------------------------------------------------------------------------------

    async def _session(self) -> Session:
        """What belongs to the running loop."""
        session = self._sessions.get(asyncio.get_running_loop())
        if session is None or session.pid != os.getpid():
            return await self._new_session()
        return session

    async def _new_session(self) -> Session:
        session = Session(
            Server(
                self.address,
                key=self.keys.prefix,
                on_connect=self._on_connect,
                revive=self._revive,
                patience=self._patience,
            )
        )
        pid = session.pid
        with self._lock:
            gone = [s for s in self._sessions.values() if s.loop.is_closed() or s.pid != pid]
            for each in gone:
                del self._sessions[each.loop]
            self._sessions[session.loop] = session
        for each in gone:  # of loops that ended, or of the process we were forked from
            await each.server.close()
        if self._closed:
            session.wake()
        return session

    async def close(self) -> None:
        """Take in and lend nothing more, wake everyone who waits, and end all connections.

        What is asked afterwards opens a connection again, until the next ``close``.
        """
        self._closed = True
        with self._lock:
            sessions = list(self._sessions.values())
        here = asyncio.get_running_loop()
        for session in sessions:
            session.wake()
        for session in sessions:
            if session.loop is here and session.pid == os.getpid():
                await session.settle()
            await session.server.close()
        with self._lock:
            for session in sessions:
                if self._sessions.get(session.loop) is session:
                    del self._sessions[session.loop]


def _not_text() -> InvalidInput:
    return InvalidInput("a text of the call has lone surrogates: it is no text")


def _meaning(error: ScriptError, verb: str, call: Call | None) -> Exception:
    """What a script's refusal means to the caller."""
    code, fields = error.code, error.fields
    if call is not None and code == "other":
        return InvalidInput(
            f"exchange {call.number} was {fields[0]}; it cannot be repeated as {verb}"
        )
    if call is not None and code == "outoforder":
        return OutOfOrder(call.incarnation, call.number, int(fields[0]))
    if code == "layout":
        return _wrong_layout(fields[0])
    if code == "readers":
        return checks.too_many_readers()
    if code == "trails":
        return too_many_trails()
    if code == "leaders":
        return too_many_leaders()
    return Refused("script", f"the script {verb} refused with a code that nobody knows: {code}")


def _wrong_layout(layout: str) -> BrokerError:
    if int(layout) == MOVING:
        return Refused(
            "layout",
            "what the server holds is being migrated; wait for `fairlead migrate`, or run it again "
            "if it was interrupted",
        )
    if int(layout) < LAYOUT:
        way = "run `fairlead migrate`, which says what can be done"
    else:
        way = "a later release wrote them: use that one, or another database"
    return Refused(
        "layout",
        f"the server holds tasks in layout {layout}, this release reads layout {LAYOUT}; {way}",
    )
