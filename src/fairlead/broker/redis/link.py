"""The main connection to a server, opened anew when it is lost."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.broker.redis.address import Address, Place
from fairlead.broker.redis.discovery import Ask, Finder
from fairlead.broker.redis.functions import Functions
from fairlead.broker.redis.scripts import Script, located
from fairlead.broker.redis.server_errors import understand
from fairlead.broker.redis.wire import ReplyError, Wire, open_wire
from fairlead.broker.repeats import Rounds, pause
from fairlead.model.errors import Ambiguous, BrokerError, Refused, Unreachable

OnStray = Callable[[Any], Awaitable[None] | None]

_log = logging.getLogger("fairlead.broker.redis.connection")


class Link:
    """One connection that all calls share. Belongs to the loop that ran when it was made."""

    def __init__(
        self,
        address: Address,
        finder: Finder,
        *,
        on_connect: Callable[[Ask], Awaitable[None]] | None,
        revive: Callable[[], Awaitable[None]] | None,
        connect_timeout: float,
        call_timeout: float,
        opened: Callable[[Wire], None],
    ) -> None:
        self.wire: Wire | None = None  # the last one opened; it may be lost
        self.failures = 0  # in a row, since the last good reply
        self.trouble: BrokerError | None = None  # why it could not be opened, the last time
        self.loop = asyncio.get_running_loop()
        self.connecting: asyncio.Task[Wire] | None = None
        self._address = address
        self._finder = finder
        self._on_connect = on_connect
        self._revive = revive
        self._opened = opened
        self._connect_timeout = connect_timeout
        self._call_timeout = call_timeout
        self._not_before = 0.0  # the loop's time of the next attempt
        self._closed = False

    async def connected(self, *, hasty: bool = False) -> Wire:
        """The connection. Who needs it at the same time shares one attempt to open it.

        A ``hasty`` caller does not wait for the pause before it.
        """
        wire = self.wire
        if wire is not None:
            if not wire.lost:
                return wire
            self.wire = None
            self._failed()
        if self._closed:
            raise closed()
        task = self.connecting
        if task is None:
            if hasty:
                self._not_before = 0.0
            task = self.connecting = self.loop.create_task(self._connect())
            task.add_done_callback(_heard)  # also if all who wait for it are out of time
        await asyncio.wait((task,))
        if task.cancelled():
            raise closed()
        return task.result()

    async def open(self, place: Place, call_timeout: float | None) -> Wire:
        """Another connection to the same kind of server."""
        address = self._address
        return await open_wire(
            place,
            address.login,
            tls=address.tls,
            db=address.db,
            connect_timeout=self._connect_timeout,
            call_timeout=call_timeout,
        )

    def relocate(self, wire: Wire, node: str) -> None:
        """Leave a server that does not serve the shard; ``node`` is the one it named, if any.

        Other calls under way are told so by their own replies.
        """
        host, _, port = node.rpartition(":")
        if port.isdecimal():
            host = wire.place.host if host in ("", "?") else host.strip("[]")
            self._finder.point(Place(host, int(port)))
        if wire is self.wire:
            self.wire = None
            self._failed()
        wire.retire()

    def close(self) -> None:
        self._closed = True
        if self.connecting is not None:
            self.connecting.cancel()
        if self.wire is not None:
            self.wire.drop()

    async def _connect(self) -> Wire:
        try:
            await asyncio.sleep(max(0.0, self._not_before - self.loop.time()))
            if self.failures and self._revive is not None:
                await self._revive()
            wire = await self.open(await self._finder.find(), self._call_timeout)
            try:
                await self._finder.confirm(wire.ask)
                if self._on_connect is not None:
                    await self._on_connect(wire.ask)
            except BaseException:
                wire.drop()
                raise
        except Ambiguous as error:  # about a question of ours, not about the caller's call
            self._failed()
            self.trouble = Unreachable(str(error))
            raise self.trouble from error
        except BrokerError as error:
            self._failed()
            self.trouble = error
            raise
        finally:
            self.connecting = None
        self.wire, self.trouble = wire, None
        self._opened(wire)
        return wire

    def _failed(self) -> None:
        self.failures += 1
        self._not_before = self.loop.time() + pause(self.failures)


def _heard(task: asyncio.Task[Wire]) -> None:
    if not task.cancelled():
        task.exception()


async def connected_by(link: Link, until: float, rounds: Rounds, *, hasty: bool) -> Wire:
    """The connection, if there is one in time."""
    if until == math.inf:
        return await link.connected(hasty=hasty)
    try:
        async with asyncio.timeout_at(until):
            return await link.connected(hasty=hasty)
    except TimeoutError:
        why = link.trouble or (rounds.last if rounds.count else None)
        raise Unreachable(str(why or "there was no connection in time")) from why


async def remedied(
    functions: Functions,
    link: Link,
    wire: Wire,
    packed: bytes,
    script: Script | None,
    reply: ReplyError,
    waits: float,
) -> Any:
    """The reply after what the server asked for was done; raises the error to go on with."""
    verdict = understand(str(reply))
    if verdict.remedy == "reload" and script is not None:
        now = link.loop.time
        again = await functions.call_unknown(
            lambda request: wire.send(request, now(), waits), packed, script, now()
        )
        if again.__class__ is not ReplyError:
            return again
        reply = again
        verdict = understand(str(reply))
    if verdict.remedy == "relocate":
        link.relocate(wire, verdict.node)
    if (
        script is not None
        and isinstance(verdict.error, Refused)
        and verdict.error.cause == "server"
    ):
        raise understand(await asyncio.to_thread(located, script, str(reply))).error
    raise verdict.error


def closed() -> Unreachable:
    """What is left to say once somebody here has closed the connection; another try ends alike."""
    error = Unreachable("the connection was closed with close()")
    error.passes = False
    return error


async def hand_over(on_stray: OnStray, reply: Any) -> None:
    """Pass on a reply that nobody waits for any more."""
    try:
        taken = on_stray(reply)
        if inspect.isawaitable(taken):
            await taken
    except Exception as error:  # noqa: BLE001 - a chore has nobody to raise to
        _log.warning("a late reply was lost", extra={"error": type(error).__name__})
