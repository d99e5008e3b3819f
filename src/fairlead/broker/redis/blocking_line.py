"""A blocking connection for enqueues of one thread: a request, its reply, the next request.

Over TLS there is none: what comes unasked there is no sign of a lost connection.

It equals ``RedisBroker.enqueue`` for one task, as far as that is plain: a reply that is no error.
Everything else, a lost connection above all, is left to that one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any

import hiredis

from fairlead.broker.redis import answers
from fairlead.broker.redis.address import Address, Place
from fairlead.broker.redis.login import check_login, commands, why_not
from fairlead.broker.redis.packed_submissions import PackedSubmissions, beginning
from fairlead.broker.redis.scripts import load
from fairlead.broker.redis.session import Session, not_text
from fairlead.broker.redis.wire import ReplyError, Wire, pack
from fairlead.broker.requests import Call, Receipt
from fairlead.broker.submission_checks import check_submissions
from fairlead.broker.submissions import Row, Submissions
from fairlead.model.errors import Ambiguous

_SILENCE = 5.0  # seconds without a byte after which the connection is given up
_PIECE = 4_096  # bytes read at once: replies to one task are short
_NOTHING_YET = object()


class BlockingLine:
    """A ``ThreadLine`` to one server."""

    is_possible = hasattr(select, "poll")  # not on Windows

    def __init__(self, session: Session, address: Address, beside: Wire) -> None:
        """``beside`` is the connection of the event loop: what this one loses goes on over it."""
        self._session = session
        self._address, self._place, self._beside = address, beside.place, beside
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING_YET)
        self._news: select.poll
        self._script = load("enqueue", session.lua, reads=True)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, seconds: float) -> None:
        address, place = self._address, self._place
        first = commands(address.login, address.db)
        until = time.monotonic() + seconds
        try:
            connection = self._socket = _connected(place, seconds)
            # Unlike one with a time limit, it is not asked each time whether it may be written to.
            connection.setblocking(False)
            self._news = select.poll()
            self._news.register(connection, select.POLLIN)
            self._send(connection, b"".join(pack(command) for command in first), until)
            replies = [self._read(connection, seconds, until) for _ in first]
            check_login(place, first, replies)
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, ValueError, hiredis.ProtocolError)):
                raise why_not(place, error, seconds) from error
            raise

    def enqueue(self, call: Call, row: Row, seconds: float) -> Receipt | None:
        session = self._session
        if session.is_closed or self._is_lost():
            return None
        like, id, body = row
        submissions = Submissions([like], [id], [body])
        check_submissions(submissions)
        script, head = self._script, ("", call.incarnation, call.number)
        try:
            rest = PackedSubmissions(submissions)
            first = beginning(rest.length, script.function, session.keys.prefix, head)
        except UnicodeEncodeError:
            raise not_text() from None
        began = session.steady()
        reply = self._ask(first + rest.tail, seconds)
        if reply.__class__ is ReplyError:
            self.close()  # it may be the wrong server by now
            return None
        if script.writes_time:
            session.wrote = began
        return answers.receipts(reply, submissions.ids)[0]

    def close(self) -> None:
        found, self._socket = self._socket, None
        if found is not None:
            with contextlib.suppress(OSError):
                found.close()

    def _is_lost(self) -> bool:
        """Whether the connection is known to be lost: then there is no doubt, nothing is sent."""
        if self._socket is not None and self._news.poll(0):  # nobody has asked for anything
            self.close()
        return self._socket is None

    def _ask(self, packed: bytes, seconds: float) -> Any:
        connection = self._socket
        assert connection is not None  # noqa: S101 - it was looked at before
        until = time.monotonic() + seconds
        try:
            self._send(connection, packed, until)
            return self._read(connection, seconds, until)
        except BaseException as error:
            self.close()  # what comes later must not be taken for the answer to another call
            if isinstance(error, TimeoutError) and seconds >= _SILENCE:
                self._beside.doubt_soon(_SILENCE)
            if isinstance(error, (OSError, hiredis.ProtocolError)):
                raise Ambiguous(
                    f"the connection to {self._place} was lost during a call: {error}"
                ) from error
            raise

    def _send(self, connection: socket.socket, packed: bytes, until: float) -> None:
        try:
            sent = connection.send(packed)
        except BlockingIOError:
            sent = 0
        if sent < len(packed):  # a large one
            rest = memoryview(packed)[sent:]
            room = select.poll()
            room.register(connection, select.POLLOUT)
            while rest:
                _wait_for(room, until - time.monotonic())
                with contextlib.suppress(BlockingIOError):
                    rest = rest[connection.send(rest) :]

    def _read(self, connection: socket.socket, seconds: float, until: float) -> Any:
        """Read one reply, of which the first bytes have ``seconds``."""
        reader = self._reader
        while (reply := reader.gets()) is _NOTHING_YET:
            _wait_for(self._news, seconds)
            try:
                data = connection.recv(_PIECE)
            except BlockingIOError:  # it was woken for nothing
                data = None
            if data:
                reader.feed(data)
            elif data is not None:
                raise ConnectionResetError("the server closed it")
            seconds = until - time.monotonic()
        return reply

    def __del__(self) -> None:
        self.close()


def _wait_for(news: select.poll, seconds: float) -> None:
    """Let no step take longer than that, nor than a server may be silent."""
    if not news.poll(max(min(seconds, _SILENCE), 0.001) * 1000):
        raise TimeoutError("timed out")


def _connected(place: Place, seconds: float) -> socket.socket:
    """Return a new connection, of which no step may take longer than that."""
    if not place.path:
        found = socket.create_connection((place.host, place.port), seconds)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return found
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(seconds)
        found.connect(place.path)
    except BaseException:
        found.close()
        raise
    return found
