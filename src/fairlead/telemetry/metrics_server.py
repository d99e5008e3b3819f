"""``GET /metrics`` on a port of its own, for a process that serves nothing else.

Small on purpose: one path, one answer for each connection, and limits on what a caller may hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fairlead.model.errors import InvalidInput
from fairlead.telemetry.metrics import Exposition, text_of

log = logging.getLogger("fairlead.metrics")

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NAMES = ("127.0.0.1", "localhost", "[::1]")  # as a header Host has them
_MAX_HEAD = 8 * 1024  # bytes of a request
_PATIENCE = 5.0  # seconds for a request to come, and for its answer to be taken
_MAX_CONNECTIONS = 16


@asynccontextmanager
async def serving_metrics(
    show: Callable[[], Exposition], *, host: str = "127.0.0.1", port: int
) -> AsyncIterator[int]:
    """Answer scrapes while the block lasts; the port, which is chosen by the system for 0.

    On a loopback address only callers that name one are answered: a page in somebody's browser
    could otherwise come under a name of its own.
    """
    text_of("", Exposition())  # the package is missing now, or never
    answers = _Answers(show, local=host in _LOOPBACK)
    try:
        server = await asyncio.start_server(answers.answer, host, port, limit=_MAX_HEAD)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InvalidInput(f"cannot serve metrics on {host} port {port}: {why}") from None
    async with server:
        port = server.sockets[0].getsockname()[1]
        log.info("metrics served", extra={"host": host, "port": port})
        try:
            yield port
        finally:
            server.close()
            answers.close()


class _Answers:
    """The connections of one server."""

    def __init__(self, show: Callable[[], Exposition], *, local: bool) -> None:
        self._show = show
        self._local = local
        self._open: set[asyncio.StreamWriter] = set()

    def close(self) -> None:
        """Wait for none that is still open."""
        for writer in self._open:
            writer.transport.abort()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, answer it and close."""
        if len(self._open) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(_PATIENCE):
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            writer.transport.abort()  # a caller that is slow, gone, or no browser and no Prometheus
        finally:
            self._open.discard(writer)

    def _answer(self, head: bytes) -> bytes:
        first, _, rest = head.decode("latin-1").partition("\r\n")
        method, _, target = first.partition(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in rest.split("\r\n"))
        }
        if self._local and _name(headers.get("host", "")) not in _NAMES:
            return _reply("403 Forbidden", b"name this machine by a loopback address\n")
        if target.split(" ")[0].split("?")[0] != "/metrics":
            return _reply("404 Not Found", b"GET /metrics\n")
        if method not in ("GET", "HEAD"):
            return _reply("405 Method Not Allowed", b"GET /metrics\n", extra="Allow: GET, HEAD\r\n")
        text, kind = text_of(headers.get("accept", ""), self._show())
        return _reply("200 OK", text, kind, head_only=method == "HEAD")


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _reply(
    status: str,
    body: bytes,
    kind: str = "text/plain; charset=utf-8",
    *,
    extra: str = "",
    head_only: bool = False,
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"X-Content-Type-Options: nosniff\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else body)
