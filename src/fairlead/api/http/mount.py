"""What is not in the table of routes: sockets, streams of events, metrics, the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.api.http.route import Scope

if TYPE_CHECKING:
    from fairlead.api.service import Service

Connection = MutableMapping[str, Any]  # what ASGI calls a scope
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Connection, Receive, Send], Awaitable[None]]

ACCESS = "fairlead.access"  # where a connection carries the Access of its caller


@dataclass(frozen=True, kw_only=True)
class Mount:
    """An ASGI application at a path of its own. Host and Origin are checked before it is called.

    With a ``scope`` the token is checked too, and ``connection[ACCESS]`` is the caller. Without
    one the application is for everybody, or calls ``await service.authorize(connection, token)``
    itself, with the token of a first frame for example.
    """

    path: str  # "/ws"; "/static/" with a slash at its end stands for all below it
    make: Callable[[Service], Application]  # called once for each server
    scope: Scope | None = None
    summary: str = ""
