"""Runs a server of the API in this process, until a signal says to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from fairlead.api.http.header_limits import HeadLimits
from fairlead.api.http.server import Server
from fairlead.model.errors import InvalidInput

_KEEP_ALIVE = 75  # seconds that a connection may be idle between two requests
_BACKLOG = 2_048
_UNREAD = 60_000  # milliseconds that what was written may wait for a client to take it
_UNSENT = 128 * 1024  # bytes that may wait in the kernel to be sent
_MAX_FRAME = 64 * 1024  # bytes that a socket may send to us at once


def listen(host: str, port: int) -> socket.socket:
    """Bind a port; 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        _limit_unread(listener)
        return listener
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"cannot listen on {host} port {port}: {error}") from None


def _limit_unread(listener: socket.socket) -> None:
    """Bound what the system keeps for clients that do not read, and for how long.

    The connections that are accepted have the same options. Without them a client that stopped
    reading a stream has megabytes of it in the kernel, and goes on to have them after it was
    closed here.
    """
    for option, value in (("TCP_USER_TIMEOUT", _UNREAD), ("TCP_NOTSENT_LOWAT", _UNSENT)):
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def address(listener: socket.socket) -> str:
    """Where a listener is, as the beginning of a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    server: Server,
    listener: socket.socket,
    *,
    grace: float,
    delay: float,
    started: Callable[[], None] | None = None,
) -> None:
    """Answer requests until TERM or INT, then drain.

    First /readyz fails, long polls are answered and sockets closed; ``delay`` seconds later the
    listener closes, and what is left has ``grace`` seconds to end.
    """
    config = uvicorn.Config(
        server,
        http=HeadLimits,
        ws="websockets-sansio",
        loop="none",  # it runs already
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever says so in a header does not come from this machine by it
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
        ws_max_size=_MAX_FRAME,
        ws_per_message_deflate=False,  # each socket would compress each event, for itself
        backlog=_BACKLOG,
    )
    # Its warnings are about what strangers send, and they could fill the log with them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    runner = _Runner(config, server, delay)
    if started is not None:
        started()
    await runner.serve(sockets=[listener])


class _Runner(uvicorn.Server):
    """Drains before it stops, and ends with code 0 after a signal."""

    def __init__(self, config: uvicorn.Config, server: Server, delay: float) -> None:
        super().__init__(config)
        self._server = server
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for TERM and INT; the second one does not wait for what is under way."""
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._server.drain()
        self._loop.call_later(self._delay, self._stop)

    def _stop(self) -> None:
        self.should_exit = True
