"""Lines of threads: sync code that enqueues often waits for the broker itself, not for a loop.

A thread gets a line, and with it an incarnation, after a few calls. Its calls are numbered like all
others. Where the line has no plain answer, the call goes on over the portal, under its number and
by the rules of ``broker.repeats``: so it is carried out once, and takes no longer than it may.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from fairlead.broker.requests import Call, Receipt
from fairlead.broker.submissions import Row
from fairlead.broker.thread_line import ThreadLine
from fairlead.model.errors import Ambiguous, BrokerError
from fairlead.runtime.ids import new_id
from fairlead.runtime.native_threads import are_threads_patched
from fairlead.runtime.process_hooks import at_exit

if TYPE_CHECKING:
    from fairlead.client.client import Client

T = TypeVar("T")

_FEW = 3  # calls of a thread that go over the portal: many threads end soon
_MOST = 32  # lines of an app: each is a connection to the server
_CONNECT = 5.0  # seconds
_AGAIN = 5.0  # seconds after which a connection is tried again that could not be opened
_STEP, _STEPS = 0.002, 500  # seconds between two looks at what is under way, and looks at a close
_AT_EXIT = 5.0  # seconds that the end of the process does


class ThreadLines:
    """The lines of one app in one process."""

    def __init__(self, sync: Callable[[Callable[[Client], Awaitable[object]]], object]) -> None:
        """``sync`` carries something out with the portal's client, and waits for it."""
        self._sync = sync
        self._own = threading.local()
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()  # a line ends with its thread
        self._lock = threading.Lock()
        self.is_closed = False
        _all.add(self)

    def submit(self, row: Row, seconds: float) -> Receipt | None:
        """Enqueue a task over the line of this thread; None if it has none: nothing was done."""
        if self.is_closed:
            return None
        line: _Line | None = getattr(self._own, "line", None)
        if line is None:
            calls = self._own.calls = getattr(self._own, "calls", 0) + 1
            if calls <= _FEW:
                return None
            line = self._new()
            if line is None:
                self._own.calls = 0
                return None
            self._own.line = line
        return line.submit(row, seconds)

    def _new(self) -> _Line | None:
        with self._lock:
            if len(self._lines) >= _MOST or are_threads_patched():
                return None
            line = _Line(self)
            self._lines.add(line)
            return line

    def run(self, action: Callable[[Client], Awaitable[T]]) -> T:
        """Carry something out with the portal's client."""
        return self._sync(action)  # type: ignore[return-value]

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        with self._lock:
            return any(line.busy for line in self._lines)

    async def close(self) -> None:
        """Use no line any more, wait a while for calls that are under way, and end the others."""
        self.is_closed = True
        for _ in range(_STEPS):  # calls end within milliseconds, and none should pay for saying so
            if not self.busy:
                break
            await asyncio.sleep(_STEP)
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close()


class _Line:
    """The line of one thread, which is the only one that calls ``submit``."""

    def __init__(self, lines: ThreadLines) -> None:
        self.busy = False
        self._lines = lines
        self._incarnation = new_id()
        self._number = 0
        self._line: ThreadLine | None = None
        self._not_before = 0.0  # when it may be opened again

    def submit(self, row: Row, seconds: float) -> Receipt | None:
        """Enqueue a task; None if there is no connection: nothing was done."""
        until = time.monotonic() + seconds
        line = self._line
        if line is None or not line.is_open:
            line = self._opened(seconds)
            if line is None:
                return None
            seconds = until - time.monotonic()
        self._number += 1
        call = Call(self._incarnation, self._number)
        lost: Ambiguous | None = None
        self.busy = True
        try:
            try:
                receipt = line.enqueue(call, row, seconds)
            except Ambiguous as error:
                lost, receipt = error, None
            if receipt is None:
                left = max(until - time.monotonic(), 0.0)
                receipt = self._lines.run(lambda client: client.submit_again(call, row, left, lost))
            return receipt
        finally:
            self.busy = False
            if self._lines.is_closed:
                self.close()

    def _opened(self, seconds: float) -> ThreadLine | None:
        """A new connection to where the portal's calls go; None if there is none to be had."""
        if time.monotonic() < self._not_before:
            return None
        line = self._lines.run(_thread_line)
        if line is None:
            return None
        try:
            line.open(min(_CONNECT, seconds))
        except BrokerError:
            self._not_before = time.monotonic() + _AGAIN  # the portal says what is wrong
            return None
        self._line = line
        return line

    def close(self) -> None:
        """End the connection, unless a call is under way: that ends it then."""
        if not self.busy and self._line is not None:
            self._line.close()


async def _thread_line(client: Client) -> ThreadLine | None:
    return client.thread_line()


_all: weakref.WeakSet[ThreadLines] = weakref.WeakSet()


def _flush() -> None:
    """Let calls of daemon threads come to their end before the process does."""
    until = time.monotonic() + _AT_EXIT
    while any(lines.busy for lines in list(_all)) and time.monotonic() < until:
        time.sleep(_STEP)


at_exit(_flush)
