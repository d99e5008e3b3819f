"""What a new connection says first, what the answers mean, and why there is no connection."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

from hiredis import ReplyError

from fairlead.broker.redis.address import Login, Place, Tls
from fairlead.broker.redis.server_errors import understand
from fairlead.model.errors import BrokerError, Refused, Unreachable
from fairlead.model.safe_repr import one_line

_CLIENT_NAME = "fairlead"
_LONGEST = 200  # characters of another library's message that an error repeats
_FULL = "ERR max number of clients"  # said to whoever connects, whatever it asks


def commands(login: Login, db: int) -> list[tuple[str | int, ...]]:
    """Return what to send before anything else; each is answered with OK."""
    try:
        f"{login.user}{login.password}".encode()
    except UnicodeEncodeError:  # whose own text would show a part of it
        raise Refused("auth", "user or password of the URL have lone surrogates") from None
    found: list[tuple[str | int, ...]] = []
    if login.user:
        found.append(("AUTH", login.user, login.password or ""))
    elif login.password:
        found.append(("AUTH", login.password))
    found.append(("CLIENT", "SETNAME", _CLIENT_NAME))
    if db:
        found.append(("SELECT", db))
    return found


def check_login(place: Place, asked: Iterable[tuple[Any, ...]], replies: Iterable[Any]) -> None:
    """Raise ``Refused`` or ``Unreachable`` if one of the commands was answered with an error."""
    for command, reply in zip(asked, replies, strict=True):
        if not isinstance(reply, ReplyError):
            continue
        text = str(reply)
        code = text.partition(" ")[0]
        if text.startswith(_FULL):
            raise Unreachable(f"could not connect to {place}: {one_line(text, _LONGEST)}")
        if code in ("NOAUTH", "WRONGPASS", "NOPERM") or (command[0], code) == ("AUTH", "ERR"):
            raise Refused("auth", f"{place} refused the login; check user and password of the URL")
        if code == "LOADING":
            raise Unreachable(f"{place} is still loading its data")
        raise understand(text).error


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Return how to speak TLS. Raises ``OSError`` if a file of it cannot be read."""
    context = ssl.create_default_context(cafile=tls.ca)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context


def why_not(place: Place, error: Exception, timeout: float) -> BrokerError:
    """Return what a failed attempt to connect means."""
    if isinstance(error, TimeoutError):
        return Unreachable(f"could not connect to {place} within {timeout:g} s")
    text = one_line(str(error) or type(error).__name__, _LONGEST)
    return Unreachable(f"could not connect to {place}: {text}")
