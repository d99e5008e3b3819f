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
from fairlead.broker.records import Hello
from fairlead.broker.redis.address import Address, parse
from fairlead.broker.redis.connection import FirstTry, Server, Value
from fairlead.broker.redis.discovery import Ask
from fairlead.broker.redis.functions import run_on
from fairlead.broker.redis.handshake import Facts, examine, warn_about
from fairlead.broker.redis.keys import Keys
from fairlead.broker.redis.loop_session import LoopSession
from fairlead.broker.redis.packed_submissions import PackedSubmissions, beginning
from fairlead.broker.redis.scripts import Script, load
from fairlead.broker.redis.server_errors import ScriptError
from fairlead.broker.redis.wire import ReplyError, pack
from fairlead.broker.repeats import LIMIT
from fairlead.broker.requests import LAYOUT, LEAST_LAYOUT, MOVING, SHARD, Call
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
    from fairlead.broker.redis.hand_off import Taker

_EVENT_BYTES = 16 * 1024 * 1024
_LONGEST_INCARNATION = 255  # bytes; a record has one byte for its length

_log = logging.getLogger(__name__)


class Session:
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
        self.test_clock = test_clock
        self._set = clock  # if it is not the server's
        self.steady = (clock or Clock()).steady
        self.wrote: float | None = None  # when the last call was sent that wrote the time
        self._event_bytes = event_bytes
        self.patience = patience
        self._revive = revive
        self.lua = lua
        self._sessions: dict[asyncio.AbstractEventLoop, LoopSession] = {}
        self._lock = threading.Lock()  # around what loops share: the sessions, the two below
        self.generation = ""
        self._facts = Facts()
        self.any_layout = False  # when asked for it: verbs refuse another one by themselves
        self.alarm_held = False  # by a wait that is over; the next exchange passes it on
        self.takers: dict[str, Taker] = {}  # who may be handed a task, by incarnation
        self.is_closed = False

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
        is_odd = self.address.tls is not None or self.test_clock or self._set is not None
        if wire is None or self.is_closed or is_odd or not BlockingLine.is_possible:
            return None
        return BlockingLine(self, self.address, wire)

    # -- calls ---------------------------------------------------------------------------------

    async def run(
        self,
        verb: str,
        args: Sequence[Value],
        call: Call | None = None,
        *,
        head: tuple[str, str, int] | tuple[()] = (),
        tail: PackedSubmissions | None = None,
        writes: bool = False,
    ) -> Any:
        """Run a verb's script with ``head`` and ``args``, and return its reply.

        ``tail`` stands for ``args`` where they are packed. ``writes``: this call of a verb that
        usually reads changes something.
        """
        script = load(verb, self.lua, reads=not (writes or self.test_clock))
        until = None if call is None else call.until
        # The short way, for nearly all calls: over a connection that is there, to a good reply.
        session = self._sessions.get(asyncio.get_running_loop())
        is_bound = call is not None and call.bound
        wire = None
        if session is not None and not is_bound and (until is not None or self.patience):
            wire = session.server.ready()
        if session is None or wire is None:
            args = args if tail is None else tail.args
            return await self._run_on(verb, script, (*head, *args), call, until)
        session.calls += 1
        began, clock = self.steady(), session.loop.time()
        if until is None:
            until = clock + self.patience
        try:
            if tail is None or not head:
                packed = pack(("FCALL", script.function, 1, self.keys.prefix, *head, *args))
            else:
                first = beginning(tail.length, script.function, self.keys.prefix, head)
                packed = first + tail.tail
            reply = await wire.send(packed, clock, until)
        except Ambiguous as error:
            reply = error
        except UnicodeEncodeError:
            raise not_text() from None
        finally:
            session.calls -= 1
        if reply.__class__ is ReplyError or reply.__class__ is Ambiguous:
            args = args if tail is None else tail.args
            return await self._run_on(verb, script, (*head, *args), call, until, (wire, reply))
        session.server.heard()
        if script.writes_time:
            self.wrote = began
        return reply

    async def _run_on(
        self,
        verb: str,
        script: Script,
        args: Sequence[Value],
        call: Call | None,
        until: float | None,
        first: FirstTry | None = None,
    ) -> Any:
        """Go on with a call that has no connection, or after a try that got no good reply.

        A shard that was emptied is given its name first, once.
        """
        session = await self.here()
        hasty = call is not None and call.hasty
        owner = call.incarnation if call is not None and call.bound else None
        session.calls += 1
        began = self.steady()
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
                    args = [f"{self.clock(None)}a{ahead!r}", *args[1:]]
                reply = await session.server.run(script, self.keys.prefix, args, until=until)
        except ScriptError as error:
            raise _meaning(error, verb, call) from None
        except UnicodeEncodeError:
            raise not_text() from None
        finally:
            session.calls -= 1
        if script.writes_time:
            self.wrote = began
        return reply

    def numbered(
        self,
        verb: str,
        call: Call,
        now: float | None,
        args: Sequence[Value] = (),
        tail: PackedSubmissions | None = None,
    ) -> Awaitable[Any]:
        """Run the script of a verb that takes a number; ``tail`` stands for packed arguments."""
        name = call.incarnation
        if len(name) > _LONGEST_INCARNATION // 4 and len(name.encode()) > _LONGEST_INCARNATION:
            raise InvalidOption("incarnation", name, f"at most {_LONGEST_INCARNATION} bytes long")
        head = (self.clock(now), name, call.number)
        return self.run(verb, args, call, head=head, tail=tail)

    async def own(
        self, verb: str, now: float | None, *args: Value, until: float | None = None
    ) -> Any:
        """The same for a verb whose caller has no numbers, so that it can be repeated as well."""
        clock = self.clock(now)
        session = await self.here()
        async with session.line(verb):
            call = session.next(verb, until)
            return await self.run(verb, [clock, call.incarnation, call.number, *args], call)

    def clock(self, now: float | None) -> str:
        if self.test_clock:
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
        server, prefix = (await self.here()).server, self.keys.prefix
        return await self._meet(lambda script, args: server.run(script, prefix, args, until=until))

    async def _meet(self, run: Callable[[Script, Sequence[Value]], Awaitable[Any]]) -> Hello:
        """Ask who the shard is. Only one that has no name yet is written to."""
        wrote = self.wrote
        seen = "" if wrote is None else repr(max(self.steady() - wrote, 0.0))
        look: list[Value] = [self.clock(None), "", LAYOUT, LEAST_LAYOUT, self._event_bytes, seen]
        reply = await run(load("hello", reads=True), look)
        if not reply[1]:
            look[1] = os.urandom(8).hex()
            reply = await run(load("hello"), look)
        return self._met(reply)

    def _met(self, reply: Sequence[bytes]) -> Hello:
        """Take in the answer to hello: the time, the generation, the layout."""
        now, generation, layout, least, ahead = (text.decode() for text in reply)
        if (int(layout) < LAYOUT or int(least) > LAYOUT) and not self.any_layout:
            raise _wrong_layout(layout)
        with self._lock:
            known, self.generation = self.generation, generation
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

    async def here(self) -> LoopSession:
        """What belongs to the running loop."""
        session = self._sessions.get(asyncio.get_running_loop())
        if session is None or session.pid != os.getpid():
            return await self.open_here()
        return session

    async def open_here(self) -> LoopSession:
        session = LoopSession(
            Server(
                self.address,
                key=self.keys.prefix,
                on_connect=self._on_connect,
                revive=self._revive,
                patience=self.patience,
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
        if self.is_closed:
            session.wake()
        return session

    async def close(self) -> None:
        """Take in and lend nothing more, wake everyone who waits, and end all connections.

        What is asked afterwards opens a connection again, until the next ``close``.
        """
        self.is_closed = True
        with self._lock:
            sessions = list(self._sessions.values())
        here = asyncio.get_running_loop()
        for session in sessions:
            session.wake()
        for session in sessions:
            if session.loop is here and session.pid == os.getpid():
                await session.settle()
            await session.end()
        with self._lock:
            for session in sessions:
                if self._sessions.get(session.loop) is session:
                    del self._sessions[session.loop]


def not_text() -> InvalidInput:
    """Return the error of a text that cannot be sent."""
    return InvalidInput("a text of the call has lone surrogates: it is no text")


def _meaning(error: ScriptError, verb: str, call: Call | None) -> Exception:
    """What a script's refusal means to the caller."""
    code, fields = error.code, error.fields
    if call is not None and code == "other":
        before, now = fields
        return checks.other_verb(call.number, before, now)
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
