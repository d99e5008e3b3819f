"""The way to one server: calls that survive reconnects, and say what may be assumed if they fail.

All calls share one connection and are pipelined on it; each blocking call has a connection of its
own. Whatever goes through ``run`` and ``command`` is idempotent or numbered, so a lost reply is
simply asked for again, by the rules of ``broker.repeats``, until the caller's time is over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fairlead.broker.redis.address import Address
from fairlead.broker.redis.discovery import Ask, Finder, finder_for
from fairlead.broker.redis.functions import Functions
from fairlead.broker.redis.link import Link, OnStray, closed, connected_by, hand_over, remedied
from fairlead.broker.redis.scripts import Script
from fairlead.broker.redis.server_errors import understand
from fairlead.broker.redis.wire import ReplyError, Value, Wire, end_wait, pack
from fairlead.broker.repeats import LIMIT, Limit, OtherConnection, Rounds
from fairlead.model.errors import Ambiguous, BrokerError, Refused, Unreachable

__all__ = ("FirstTry", "OnStray", "SERVER_EXTRA", "Server", "Value")

#: A try that was made: over which connection, and a ``ReplyError``, or an ``Ambiguous``.
FirstTry = tuple[Wire, Any]

_MOST_OWNERS = 1_000  # incarnations whose connection is remembered
_IDLE_BLOCKERS = 4  # connections kept for the next blocking call
SERVER_EXTRA = 2.0  # seconds the server waits longer than we do: ours is the timeout that counts
_GRACE = 0.1  # seconds that a blocking call waits beyond its end for a last-moment reply
_TIDY_TIMEOUT = 1.0  # seconds for the same in the background

_log = logging.getLogger(__name__)

# What a forked child inherited. Kept, because destructors would touch the parent's selector.
_inherited: list[object] = []


class Server:
    """One server, serving one shard. Opens on first use, and again for another loop or process."""

    def __init__(
        self,
        address: Address,
        *,
        key: str | bytes = b"",
        finder: Finder | None = None,
        on_connect: Callable[[Ask], Awaitable[None]] | None = None,
        revive: Callable[[], Awaitable[None]] | None = None,
        connect_timeout: float = 5.0,
        call_timeout: float = 5.0,
        patience: float = LIMIT,
    ) -> None:
        """``key`` is any key of the shard: in a cluster it decides which node serves it.

        ``on_connect`` is given a function that issues commands on the new connection, before
        anybody else may use it. ``revive`` runs before a reconnect that follows a failure.
        A connection that is silent for ``call_timeout`` while a reply is due is given up.
        ``patience`` is how long a call may take that has no time limit of its own; 0 means a single
        attempt, for as long as the connection is not given up.
        """
        self._new_link: Callable[[], Link] = lambda: Link(
            address,
            finder or finder_for(address, key),
            on_connect=on_connect,
            revive=revive,
            connect_timeout=connect_timeout,
            call_timeout=call_timeout,
            opened=self._opened,
        )
        self.doubts = 0  # how many attempts ended without a reply, executed or not
        self._call_timeout = call_timeout
        self._patience = patience
        self._functions = Functions()
        self._closed = False
        self._pid = 0
        self._link: Link | None = None  # with it goes all that belongs to one loop
        self._idle: list[Wire] = []
        self._blocked: set[Wire] = set()
        self.chores: set[asyncio.Task[None]] = set()
        self._owners: dict[str, Wire] = {}  # by incarnation: over which its bound calls go

    # --- calls -------------------------------------------------------------------------------

    async def run(
        self,
        script: Script,
        key: bytes | str,
        args: Sequence[Value],
        *,
        patience: float | None = None,
        until: float | None = None,
        hasty: bool = False,
        owner: str | None = None,
        first: FirstTry | None = None,
    ) -> Any:
        """Run a script on the shard and give its reply, by ``until`` if that is given.

        ``hasty`` is that of ``Call``; ``owner`` is the incarnation of a bound one. ``first`` is a
        try that was made over ``ready``, and got no good reply.

        Raises ``ScriptError`` for the script's own refusals and ``Refused`` where the server
        refused for good; once the time is over ``Ambiguous`` if any attempt may have been
        executed, otherwise ``Unreachable``, or ``Refused`` with a cause that may pass.
        """
        packed = pack(("FCALL", script.function, 1, key, *args))
        return await self._call(
            packed, script, patience, until, hasty=hasty, owner=owner, first=first
        )

    def ready(self) -> Wire | None:
        """Return the connection if a call may be made on it at once: the short way of ``run``.

        Whoever gets no good reply over it hands what came of it to ``run``, as ``first``.
        """
        link = self._link
        if link is None or self._closed or link.loop is not asyncio.get_running_loop():
            return None
        wire = link.wire
        return None if wire is None or wire.lost or self._pid != os.getpid() else wire

    def heard(self) -> None:
        """Note that there was a good reply."""
        if self._link is not None:
            self._link.failures = 0

    async def command(self, *args: Value, patience: float | None = None) -> Any:
        """Issue a plain command, under the same rules as ``run``: it must be safe to repeat."""
        return await self._call(pack(args), None, patience, None)

    async def _call(
        self,
        packed: bytes,
        script: Script | None,
        patience: float | None,
        until: float | None,
        *,
        hasty: bool = False,
        owner: str | None = None,
        first: FirstTry | None = None,
    ) -> Any:
        link = self._enter()
        began = link.loop.time()
        waits = until  # for the reply of one attempt
        if until is None or waits is None:
            seconds = self._patience if patience is None else patience
            until = began + seconds
            waits = until if seconds else math.inf
        wire: Wire | None
        outcome: Any
        wire, outcome = (link.wire, None) if first is None else first
        if first is None and wire is not None and not wire.lost:
            if owner is not None:
                self._bind(owner, wire)
            try:
                outcome = await wire.send(packed, began, waits)
            except Ambiguous as error:
                outcome = error
            else:
                if outcome.__class__ is not ReplyError:
                    link.failures = 0
                    return outcome
        limit = Limit(until, tries=1 if hasty else None)
        return await self._persist(link, packed, script, limit, waits, wire, outcome, owner)

    async def _persist(
        self,
        link: Link,
        packed: bytes,
        script: Script | None,
        limit: Limit,
        waits: float,
        wire: Wire | None,
        outcome: Any,
        owner: str | None,
    ) -> Any:
        """Go on with a call whose first try had no outcome, or not a good one."""
        rounds = Rounds(limit)
        while True:
            try:
                if isinstance(outcome, BrokerError):
                    raise outcome
                if wire is None or outcome is None:
                    wire = await connected_by(link, waits, rounds, hasty=limit.tries is not None)
                    if owner is not None:
                        self._bind(owner, wire)
                    outcome = await wire.send(packed, link.loop.time(), waits)
                if outcome.__class__ is ReplyError:
                    outcome = await remedied(
                        self._functions, link, wire, packed, script, outcome, waits
                    )
            except Exception as raised:  # noqa: BLE001 - what it means is decided there
                error = rounds.meaning(raised)
                self.doubts += isinstance(error, Ambiguous)
                # A lost connection is opened anew with a pause that all callers share.
                shared = None if isinstance(error, Refused) else 0.0
                wait = rounds.failed(error, link.loop.time(), shared)
                if self._closed:
                    rounds.give_up()
                await asyncio.sleep(wait)
            else:
                link.failures = 0
                return outcome
            wire = outcome = None

    def _bind(self, owner: str, wire: Wire) -> None:
        """Note over which connection an incarnation calls; raise if it was another one."""
        known = self._owners.get(owner)
        if known is None:
            self._owners[owner] = wire
            if len(self._owners) > _MOST_OWNERS:
                del self._owners[next(iter(self._owners))]
        elif known is not wire:
            raise OtherConnection(f"there is another connection to {wire.place}")

    # --- blocking calls ----------------------------------------------------------------------

    async def block(
        self,
        *args: Value,
        seconds: float,
        is_whole: bool = False,
        on_stray: OnStray | None = None,
        end: asyncio.Future[None] | None = None,
    ) -> Any:
        """Issue a blocking command; ``None`` when its time ends.

        Its last argument, the timeout, is left out, unless it ``is_whole``. The time is measured
        here, from when the command is sent. When the caller is cancelled, the
        server is told in the background; what it gave away in that very moment goes to
        ``on_stray``. With ``end`` it also ends when that is done, and it returns only when it is
        known what the server gave away.

        Never repeated: raises ``Unreachable``, ``Ambiguous`` or ``Refused`` at once,
        and the caller should pause before the next try.
        """
        link = self._enter()
        packed = pack(args if is_whole else (*args, seconds + SERVER_EXTRA))
        wire = await self._blocker(link)
        over: asyncio.Future[None] = link.loop.create_future()
        future = wire.send(packed, link.loop.time(), wait=over)
        self._blocked.add(wire)
        ends = partial(end_wait, over)
        timer = link.loop.call_later(seconds, ends)
        if end is not None:
            end.add_done_callback(ends)
        try:
            await over
            if not future.done():
                freed = self._chore(self._free(link, wire, future))
                await asyncio.wait((freed,), timeout=_GRACE if end is None else None)
                if not freed.done():
                    freed.add_done_callback(lambda _: self._save(wire, future, on_stray))
                    return None
        except asyncio.CancelledError:
            freed = self._chore(self._free(link, wire, future))
            freed.add_done_callback(lambda _: self._save(wire, future, on_stray))
            raise
        finally:
            timer.cancel()
            if end is not None:
                end.remove_done_callback(ends)
        self._release(wire)
        reply = future.result()
        if reply.__class__ is ReplyError:
            verdict = understand(str(reply))
            if verdict.remedy == "relocate" and link.wire is not None:
                link.relocate(link.wire, verdict.node)
            raise verdict.error
        return reply

    async def _blocker(self, link: Link) -> Wire:
        """A connection to block on, where the main one leads."""
        place = (await link.connected()).place
        while self._idle:
            wire = self._idle.pop()
            if not wire.lost and wire.place == place:
                return wire
            wire.drop()
        wire = await link.open(place, None)
        try:
            async with asyncio.timeout(self._call_timeout):
                wire.client_id = await wire.ask("CLIENT", "ID")
        except BaseException as error:
            wire.drop()
            if isinstance(error, (Ambiguous, TimeoutError)):
                raise Unreachable(f"{place} does not answer on a new connection") from error
            raise
        return wire

    async def _free(self, link: Link, wire: Wire, future: asyncio.Future[Any]) -> None:
        """Make the server answer a blocked call now; drop the connection if that fails."""
        try:
            async with asyncio.timeout(_TIDY_TIMEOUT):
                if not future.done():
                    main = await link.connected()
                    await main.ask("CLIENT", "UNBLOCK", wire.client_id, "TIMEOUT")
                    await asyncio.wait((future,))
        except (BrokerError, TimeoutError):
            wire.drop("it could not be freed from a blocking call")

    def _save(self, wire: Wire, future: asyncio.Future[Any], on_stray: OnStray | None) -> None:
        """Take in the reply of a call that nobody waits for any more."""
        self._release(wire)
        if not future.done() or future.exception() is not None or self._closed:
            return
        reply = future.result()
        if reply is not None and not isinstance(reply, ReplyError) and on_stray is not None:
            _ = self._chore(hand_over(on_stray, reply))

    def _opened(self, main: Wire) -> None:
        for wire in (*self._idle, *self._blocked):
            if wire.place != main.place:  # nobody rings a bell on a server that was left
                wire.drop("the shard moved to another server")

    def _release(self, wire: Wire) -> None:
        """Keep a connection that blocked for the next call, if it is still good."""
        self._blocked.discard(wire)
        if len(self._idle) < _IDLE_BLOCKERS and not (wire.lost or self._closed):
            self._idle.append(wire)
        else:
            wire.drop()

    def _chore(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.chores.add(task)
        task.add_done_callback(self.chores.discard)
        return task

    # --- loops, processes, the end -----------------------------------------------------------

    def _enter(self) -> Link:
        """The link of the running loop, once everything that belongs to another one is gone."""
        link = self._link
        if link is None or link.loop is not asyncio.get_running_loop() or os.getpid() != self._pid:
            self._leave()
            self._pid = os.getpid()
            link = self._link = self._new_link()
        if self._closed:
            raise closed()
        return link

    def _leave(self) -> None:
        """Let go of what belongs to another loop, or to the process we were forked from."""
        link, wires, tasks = self._link, self._wires(), self._tasks()
        self._link, self._idle, self._blocked, self.chores = None, [], set(), set()
        if link is None:
            return
        if os.getpid() != self._pid:
            _inherited.extend((link, *wires, *tasks))
            for wire in wires:
                wire.abandon()
        elif link.loop.is_closed():
            for wire in wires:
                wire.shut()
        else:
            for end in (*(task.cancel for task in tasks), *(wire.drop for wire in wires)):
                link.loop.call_soon_threadsafe(end)

    async def close(self) -> None:
        """End all connections, within about a second; calls under way fail. May be repeated."""
        link = self._link
        if link is None or link.loop is not asyncio.get_running_loop() or os.getpid() != self._pid:
            self._closed = True
            self._leave()
            return
        if self.chores:
            await asyncio.wait(self.chores, timeout=_TIDY_TIMEOUT)
        self._closed = True
        wires, tasks = self._wires(), self._tasks()
        link.close()
        for task in tasks:
            task.cancel()
        for wire in wires:
            wire.drop()
        ends: list[asyncio.Future[Any]] = [*tasks, *(wire.ended for wire in wires)]
        if ends:
            await asyncio.wait(ends, timeout=_GRACE)

    def _wires(self) -> list[Wire]:
        main = self._link.wire if self._link is not None else None
        return [*self._idle, *self._blocked, *([] if main is None else [main])]

    def _tasks(self) -> list[asyncio.Task[Any]]:
        connecting = self._link.connecting if self._link is not None else None
        return [*self.chores, *([] if connecting is None else [connecting])]
