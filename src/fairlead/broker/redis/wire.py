"""One connection: redis-py opens it and logs in, from then on bytes go straight to hiredis.

redis-py knows TLS, logins and address families. Its reading of one reply costs more than all the
rest of a call, so once it has logged in, the transport gets another protocol: this one. Calls are
pipelined, replies come in order, and a caller that gives up leaves its place in the line, so that
nobody reads the reply of another.

Time limits are for silence, not for length: as long as bytes of a request or of a reply move, the
connection is good, and the call they belong to goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hiredis
from hiredis import ReplyError
from redis import exceptions
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fairlead.broker.redis.address import Login, Place, Tls
from fairlead.broker.redis.replies import understand
from fairlead.model.errors import Ambiguous, BrokerError, Refused, Unreachable
from fairlead.model.shown import one_line

__all__ = (
    "ReplyError",
    "Value",
    "Wire",
    "connection_options",
    "open_wire",
    "pack",
    "why_not",
)

Value = bytes | str | int | float

_CLIENT_NAME = "fairlead"
_LONGEST = 200  # characters of another library's message that an error repeats
_NOTHING_YET = object()
_COUNT = struct.Struct("i")
_LARGE = 64 * 1024  # bytes of a request that may take a while to be written
_FLOWING = 1.0  # seconds after its last bytes that a reply still counts as coming
_LOOKS = 5  # at how much of a large request is written, in the time that it may be silent
_CLOSEST = 0.01  # seconds between two looks at the clock

# Its own annotation says "a tuple of one".
pack: Callable[[tuple[Value, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]

# CLIENT SETINFO would cost a round trip per connection, and old servers do not know it.
_NO_INFO: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)


class Wire(asyncio.Protocol):
    """A logged-in connection. Not for more than one loop; never reconnects."""

    def __init__(
        self, place: Place, transport: asyncio.WriteTransport, timeout: float | None
    ) -> None:
        """After ``timeout`` seconds of silence while a call waits the connection is given up."""
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
        self._why = "the server closed it"
        self._retiring = False
        self.ended: asyncio.Future[None] = self._loop.create_future()  # its socket is closed
        self._transport = transport
        transport.set_protocol(self)

    def send(self, packed: bytes, now: float, until: float = math.inf) -> asyncio.Future[Any]:
        """Write a command; its reply, which may be a ``ReplyError``, comes through the future.

        Raises ``Unreachable`` when the connection is already known to be lost. A connection that
        is lost later fails the future with ``Ambiguous``, and so does the moment ``until``.
        """
        if self.lost:
            raise Unreachable(f"the connection to {self.place} was lost: {self._why}")
        future = self._loop.create_future()
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
            self._why = one_line(str(exc) or type(exc).__name__, _LONGEST)
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
            self._why = why
            self._end()
            with suppress(RuntimeError):  # the loop was closed before the connection
                self._transport.abort()

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
                    Ambiguous(f"the connection to {self.place} was lost during a call: {self._why}")
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
    connection: AbstractConnection | None = None
    try:
        async with asyncio.timeout(connect_timeout):
            connection = _connection(place, login, tls, db, connect_timeout)
            await connection.connect()  # type: ignore[no-untyped-call]
        if connection._reader is None or connection._reader.at_eof():
            raise Unreachable(f"{place} closed the connection at once")
        return Wire(place, _taken(connection), call_timeout)
    except BaseException as error:
        if connection is not None and connection._writer is not None:
            _taken(connection).abort()
        if isinstance(error, (exceptions.RedisError, OSError, EOFError, ValueError)):
            raise why_not(place, error, connect_timeout) from error
        raise


def _taken(connection: AbstractConnection) -> asyncio.WriteTransport:
    """Take the transport out of redis-py's hands, so that no destructor closes it."""
    writer: Any = connection._writer
    transport: asyncio.WriteTransport = writer.transport
    writer._transport = _Taken()
    connection._reader = connection._writer = None
    return transport


class _Taken:
    """What a stream writer is left with: nothing to close."""

    def is_closing(self) -> bool:
        return True


def connection_options(
    place: Place, login: Login, tls: Tls | None, db: int, timeout: float
) -> dict[str, Any]:
    """Return what redis-py must know to connect and log in, but for its ``retry``."""
    options: dict[str, Any] = {
        "username": login.user,
        "password": login.password,
        "db": db,
        "client_name": _CLIENT_NAME,
        "protocol": 2,  # scripts answer alike on every version; nothing here needs pushes
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry_on_error": [],
        "health_check_interval": 0,
        **_NO_INFO,
    }
    if place.path:
        return {**options, "path": place.path}
    options.update(host=place.host, port=place.port, socket_keepalive=True)
    if tls is not None:
        options.update(
            ssl_ca_certs=tls.ca,
            ssl_certfile=tls.cert,
            ssl_keyfile=tls.key,
            ssl_cert_reqs="required" if tls.verify else "none",
            ssl_check_hostname=tls.verify,
        )
    return options


def _connection(
    place: Place, login: Login, tls: Tls | None, db: int, timeout: float
) -> AbstractConnection:
    options = connection_options(place, login, tls, db, timeout)
    # What may be repeated, and until when, is not its to know.
    options["retry"] = Retry(NoBackoff(), 0)
    if place.path:
        return UnixDomainSocketConnection(**options)
    return Connection(**options) if tls is None else SSLConnection(**options)


def why_not(place: Place, error: Exception, timeout: float) -> BrokerError:
    """What a failed attempt to connect means."""
    if isinstance(error.__cause__, exceptions.RedisError):  # redis-py hides it on unix sockets
        error = error.__cause__
    if isinstance(error, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
        return Refused("auth", f"{place} refused the login; check user and password of the URL")
    if isinstance(error, exceptions.BusyLoadingError):
        return Unreachable(f"{place} is still loading its data")
    if isinstance(error, exceptions.ResponseError):
        return understand(str(error)).error  # type: ignore[return-value]
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return Unreachable(f"could not connect to {place} within {timeout:g} s")
    return Unreachable(f"could not connect to {place}: {one_line(str(error), _LONGEST)}")
