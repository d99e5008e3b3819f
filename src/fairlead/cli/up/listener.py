"""The port of the page: the usual one, or one that is free."""

from __future__ import annotations

import errno
import socket

from fairlead.model.errors import InvalidInput

USUAL_PORT = 8787
_BACKLOG = 2_048


def open_listener(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens. Without a port it is the usual one, or any if that is taken.

    It is opened before the process that serves it, so that nobody gets in between and a page that
    reloads while that process is replaced waits instead of failing.
    """
    try:
        return _listen(host, USUAL_PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno in (errno.EADDRINUSE, errno.EACCES):
            return _listen(host, 0)
        raise InvalidInput(f"cannot listen on {host} port {port}: {error}") from None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
