"""HTTP as uvicorn speaks it, with limits for the head of a request that it does not have itself."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 32 * 1024  # bytes of the request line and the headers
MAX_HEADERS = 100
MAX_LATE = 1024 * 1024  # bytes of a body that are read after its answer, for nothing
HEAD_TIME = 10.0  # seconds from the first byte, or from the connection, to the end of the head

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class HeadLimits(HttpToolsProtocol):
    """Ends connections whose heads are too long or do not end, or whose bodies nobody wants."""

    head_time = HEAD_TIME

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._size = 0  # of the head, as far as it came in earlier chunks
        self._chunk = 0  # of the chunk that is being read
        self._late = 0  # bytes of a body that came after its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_time, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._disarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head, self._size, self._late = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._in_head = False
        if self._timer is not None:
            self._disarm()
        if len(self.headers) > MAX_HEADERS or self._is_long():
            self._refuse()
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body; what comes after the answer is not taken for ever."""
        super().on_body(body)
        if self.cycle.response_complete:
            if not self._late:
                self._disarm()
                self._timer = self.loop.call_later(self.head_time, self._give_up)
            self._late += len(body)
            if self._late > MAX_LATE:
                self._give_up()

    def on_message_complete(self) -> None:
        """The body is over."""
        if self._late:
            self._disarm()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Pass on what comes, unless a head is too long."""
        self._chunk = len(data)
        super().data_received(data)
        if self._in_head:
            self._size += len(data)
            if self._size > MAX_HEAD:
                self._refuse()
            elif self._timer is None:
                self._timer = self.loop.call_later(self.head_time, self._give_up)

    def send_400_response(self, msg: str) -> None:
        """Answer for what is no HTTP, unless there was an answer already."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _is_long(self) -> bool:
        if self._size + self._chunk <= MAX_HEAD:  # what came is not, so the head is not
            return False
        return (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD
        )

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _give_up(self) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self.transport.close()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
