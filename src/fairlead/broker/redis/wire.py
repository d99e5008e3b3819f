"""One connection: bytes go from the transport straight to hiredis.

Calls are pipelined, replies come in order, and a caller that gives up leaves its place in the line,
so that nobody reads the reply of another.

Time limits are for silence, not for length: as long as bytes of a request or of a reply move, the
connection is good, and the call they belong to goes on.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import hiredis
from hiredis import ReplyError as ReplyError

from fairlead.broker.redis.address import Login, Place, Tls
from fairlead.broker.redis.login import check_login, commands, ssl_context, why_not
from fairlead.broker.redis.server_errors import understand
from fairlead.model.errors import Ambiguous, Unreachable
from fairlead.model.safe_repr import one_line

Value = bytes | str | int | float

_LONGEST = 200  # characters of another library's message that an error repeats
_NOTHING_YET = object()
_COUNT = struct.Struct("i")
_LARGE = 64 * 1024  # bytes of a request that may take a while to be written
_FLOWING = 1.0  # seconds after its last bytes that a reply still counts as coming
_LOOKS = 5  # at how much of a large request is written, in the time that it may be silent
_CLOSEST = 0.01  # seconds between two looks at the clock

# Its own annotation says "a tuple of one".
pack: Callable[[tuple[Value, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]


class _Reply(asyncio.Future[Any]):
    """A reply that ends a wait as it comes, and not two turns of the loop later."""

    def __init__(self, wait: asyncio.Future[None]) -> None:
        super().__init__(loop=wait.get_loop())
        self._wait = wait

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        end_wait(self._wait)

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        end_wait(self._wait)


def end_wait(wait: asyncio.Future[None], *_: object) -> None:
    """End it, if nothing else has."""
    if not wait.done():
        wait.set_result(None)


class Wire(asyncio.Protocol):
    """A connection that logs in first. Not for more than one loop; never reconnects."""

    def __init__(self, place: Place, first: Sequence[bytes], timeout: float | None) -> None:
        """Send these commands as soon as there is a connection; ``welcome()`` has the replies.

        After ``timeout`` seconds of silence while a call waits the connection is given up.
        """
        self.place = place
        self.client_id = 0  # known for those that block
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self._timeout = math.inf if timeout is None else timeout
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf  # when the timer goes off
        # By call: its future, when it was sent, when its caller stops to wait, and where in all
        # that was ever sent a large request ends.
        self._waiting: deque[tuple[asyncio.Future[Any], float, float, int]] = deque()
        self._heard = 0.0  # when the last bytes came
        self._sent = self._written = 0  # bytes given to the transport, and written when last looked
        self._reader = hiredis.Reader(notEnoughData=_NOTHING_YET)
        self.why = "the server closed it"  # once it is lost
        self._retiring = False
        self.ended: asyncio.Future[None] = self._loop.create_future()  # its socket is closed
        self._first = first
        self._welcome: list[asyncio.Future[Any]] = []
        self._transport: asyncio.WriteTransport  # once there is a connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        if self.lost:  # whoever wanted it has given up meanwhile
            self._transport.abort()
            return
        now = self._loop.time()
        # At once: a server that takes nobody says so unasked, in place of the first reply.
        self._welcome = [self.send(packed, now) for packed in self._first]

    async def welcome(self) -> list[Any]:
        """Wait for the replies to the first commands; each may be a ``ReplyError``."""
        return await asyncio.gather(*self._welcome)

    def turn_away(self) -> None:
        """Give up a connection that did not log in, or that there is none of yet."""
        for each in self._welcome:
            each.cancel()  # nobody waits for them any more
        self.drop()

    def send(
        self,
        packed: bytes,
        now: float,
        until: float = math.inf,
        wait: asyncio.Future[None] | None = None,
    ) -> asyncio.Future[Any]:
        """Write a command; its reply, which may be a ``ReplyError``, comes through the future.

        It ends ``wait`` as well. Who waits there may be cancelled, and leaves the future as it is.
        Raises ``Unreachable`` when the connection is already known to be lost. A connection that
        is lost later fails the future with ``Ambiguous``, and so does the moment ``until``.
        """
        if self.lost:
            raise Unreachable(f"the connection to {self.place} was lost: {self.why}")
        future = self._loop.create_future() if wait is None else _Reply(wait)
        size = len(packed)
        self._sent += size
        self._waiting.append((future, now, until, self._sent if size > _LARGE else 0))
        self._transport.write(packed)
        if self._timer is None:
            self._look_again(min(now + self._timeout, until))
        elif until < self._looks_at:
            self._look_again(until)
        if size > _LARGE:
            self._written = self._sent - self._unsent()
        return future

    async def ask(self, *args: Value) -> Any:
        """Send a command and give its reply; an error reply is raised as what it means."""
        reply = await self.send(pack(args), self._loop.time())
        if isinstance(reply, ReplyError):
            raise understand(str(reply)).error
        return reply

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        self._heard = self._loop.time()
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not _NOTHING_YET:
                future = self._waiting.popleft()[0]
                if not future.done():  # done: its caller was cancelled
                    future.set_result(reply)
                reply = reader.gets()
            if self._retiring and not self._waiting:
                self.drop()
        except (hiredis.ProtocolError, IndexError):
            self.drop("what came is no reply to any call")

    def eof_received(self) -> None:
        """Half-closed is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.why = one_line(str(exc) or type(exc).__name__, _LONGEST)
        self._end()
        if not self.ended.done():
            self.ended.set_result(None)

    def retire(self) -> None:
        """Give the connection up once the calls under way are answered."""
        self._retiring = True
        if not self._waiting:
            self.drop()

    def drop(self, why: str = "it was closed here") -> None:
        """Give the connection up at once; calls under way fail with ``Ambiguous``."""
        if not self.lost:
            self.why = why
            self._end()
            transport = getattr(self, "_transport", None)
            if transport is not None:
                with suppress(RuntimeError):  # the loop was closed before the connection
                    transport.abort()

    def doubt_soon(self, silence: float) -> None:
        """Give up a connection over which nothing came for so long; from any thread.

        For whoever has waited for so long on another connection to the same place: this one may be
        idle, and the next call over it would have to find out by itself.
        """

        def doubt() -> None:
            if self._loop.time() - self._heard >= silence:
                self.drop(f"another connection to it was silent for {silence:g} s")

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(doubt)

    def abandon(self) -> None:
        """Forget a connection that belongs to the parent of this process; sends nothing.

        The loop's selector is shared with the parent: closing through the transport
        would take the parent's socket out of it. So the descriptor is replaced beneath it.
        """
        self.lost = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, sock.fileno(), inheritable=False)
            os.close(nowhere)

    def shut(self) -> None:
        """End a connection whose loop is closed: nothing can be scheduled for it any more."""
        self.lost = True
        transport: Any = self._transport
        bottom = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
        sock = getattr(bottom, "_sock", None)
        if sock is None:
            return  # uvloop closed the socket with the loop; its number may be another's by now
        with suppress(RuntimeError):
            transport.abort()
        sock.close()  # asyncio would do so in a callback, which never comes
        bottom._sock = None

    def _look_again(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = moment
        self._timer = None if moment == math.inf else self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        """See whose time is over: one timer serves all, and most calls never touch it."""
        self._timer = None
        if not self._waiting:
            return
        now = self._loop.time()
        writing = self._is_writing(now)
        silent_at = max(self._waiting[0][1], self._heard) + self._timeout
        if silent_at <= now:
            self.drop(f"no reply within {self._timeout:g} s")
            return
        flows = now - self._heard < _FLOWING and (writing or self._reader.has_data())
        again = min(silent_at, now + self._timeout / _LOOKS if writing else math.inf)
        for place, (future, _, until, _) in enumerate(self._waiting):
            if until == math.inf or future.done():
                continue
            if until > now:
                again = min(again, until)
            elif place == 0 and flows:
                again = min(again, self._heard + _FLOWING)
            else:  # its place in the line stays: should the reply still come, nobody else reads it
                future.set_exception(
                    Ambiguous(f"{self.place} gave no reply within the time of the call")
                )
        self._look_again(max(again, now + _CLOSEST))

    def _is_writing(self, now: float) -> bool:
        """Whether the oldest request is still on its way out; if it moves, that counts as heard."""
        ends = self._waiting[0][3]
        if self._written >= ends:
            return False
        written = self._sent - self._unsent()
        if written > self._written:
            self._written = written
            self._heard = now
        return written < ends

    def _unsent(self) -> int:
        """Bytes that wait here, or in the kernel for the other side to take them."""
        waiting = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            # Not every system knows; then what the kernel holds counts as written.
            with suppress(ImportError, OSError):
                from fcntl import ioctl
                from termios import TIOCOUTQ

                waiting += _COUNT.unpack(ioctl(sock.fileno(), TIOCOUTQ, bytes(_COUNT.size)))[0]
        return waiting

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for future, *_ in waiting:
            if not future.done():
                future.set_exception(
                    Ambiguous(f"the connection to {self.place} was lost during a call: {self.why}")
                )


async def open_wire(
    place: Place,
    login: Login,
    *,
    tls: Tls | None = None,
    db: int = 0,
    connect_timeout: float,
    call_timeout: float | None,
) -> Wire:
    """Connect and log in. Raises ``Unreachable``, or ``Refused`` where the login was refused."""
    first = commands(login, db)
    wire = Wire(place, [pack(command) for command in first], call_timeout)
    try:
        async with asyncio.timeout(connect_timeout):
            await _connect(wire, place, tls)
            replies = await wire.welcome()
        check_login(place, first, replies)
        if wire.lost:
            raise ConnectionResetError(wire.why)
    except BaseException as error:
        wire.turn_away()
        if isinstance(error, Ambiguous):  # what was sent changes nothing on the server
            raise Unreachable(f"could not connect to {place}: {wire.why}") from error
        if isinstance(error, (OSError, ValueError)):
            raise why_not(place, error, connect_timeout) from error
        raise
    return wire


async def _connect(wire: Wire, place: Place, tls: Tls | None) -> None:
    """Have the loop open a connection for this protocol."""
    loop = asyncio.get_running_loop()
    if place.path:
        await loop.create_unix_connection(lambda: wire, place.path)
        return
    secure = None if tls is None else ssl_context(tls)
    transport, _ = await loop.create_connection(lambda: wire, place.host, place.port, ssl=secure)
    sock = transport.get_extra_info("socket")
    if sock is not None:  # None, says uvloop, if the server has closed it already: welcome() fails
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
