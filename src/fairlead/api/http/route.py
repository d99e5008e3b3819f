"""What a route is: what it answers to, what it takes, what it returns, and who may call it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import msgspec

from fairlead.api.http.problems import NotFound, Problem
from fairlead.model.names import DEFAULT_TENANT, check_tenant

if TYPE_CHECKING:
    from fairlead.api.service import Service
    from fairlead.client import Client

#: ``read``: states, counts and settings. ``submit``: new tasks, and the results of one's own.
#: ``manage``: changes of what exists. ``payload``: arguments and results of tasks.
Scope = Literal["read", "submit", "manage", "payload"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

#: Names in lower case, as the server gives them.
Headers = Mapping[bytes, bytes]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and what they may do."""

    token: str = ""  # the id of the token; empty: a caller of this machine, without one
    name: str = ""  # for people
    scopes: frozenset[Scope] = frozenset()
    tenant: str | None = None  # all that such a caller sees or makes belongs to this tenant
    peer: str = ""  # the address that the connection comes from

    def may(self, scope: Scope) -> bool:
        """Whether a scope is among those of the caller."""
        return scope in self.scopes


class Request:
    """What a handler gets."""

    __slots__ = (
        "access",
        "body",
        "client",
        "gone",
        "headers",
        "large",
        "noted",
        "path",
        "query",
        "receive",
        "service",
    )

    def __init__(
        self,
        service: Service,
        access: Access,
        *,
        path: Mapping[str, str],
        query: Any,
        headers: Headers,
    ) -> None:
        self.service = service
        self.client: Client = service.client()
        self.access = access
        self.path = path  # the parts that the route names, decoded
        self.query = query  # an instance of what the route says, or None
        self.headers = headers
        self.body: Any = None  # an instance of what the route says, or None
        self.large = False  # whether the body is so large that it is checked beside the loop
        self.noted = False  # whether a change was made and noted, whatever comes after it
        #: The body bit by bit, if it is of one of the types that the route streams.
        self.receive: Callable[[], AsyncIterator[bytes]] | None = None
        #: Answers when the caller has hung up, once the body was read.
        self.gone: Callable[[], Awaitable[Any]] | None = None

    def tenant(self, asked: str | None) -> str | None:
        """The tenant that this is about: the token's, or the one asked for; None: any.

        Raises ``NotFound`` for a tenant that the token is not for.
        """
        own = self.access.tenant
        if own is None:
            return None if asked is None else check_tenant(asked)
        if asked is not None and asked != own:
            raise NotFound(f"there is no tenant {asked!r}")
        return own

    def owner(self, asked: str | None) -> str:
        """The tenant that something new belongs to."""
        return self.tenant(asked) or DEFAULT_TENANT

    async def note(self, action: str, target: str, **details: Any) -> None:
        """Write a line of the audit trail. Call it after the change."""
        self.noted = True
        await self.service.note(self.access, action, target, details)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer that is more than a value: another status, headers, or a stream."""

    value: Any = None  # encoded as JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    #: In the place of ``value``: pieces of the answer, sent as they come.
    stream: AsyncGenerator[bytes, None] | None = None
    media_type: str = "application/json"


Handler = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path below /api/v1."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # "/queues/{queue}/pause"
    handler: Handler
    scope: Scope
    summary: str  # one sentence
    body: Any = None  # a Struct that forbids unknown fields
    query: type | None = None  # a Struct; the text of each parameter is converted
    #: A Struct. None: what the handler says that it returns; if that is None too, no content.
    answer: Any = None
    status: int = 200
    problems: tuple[type[Problem], ...] = ()  # beyond those that every route has
    #: How many seconds it may take until the broker counts as away; 0: a little more than one call
    #: to it may; None: as many as it likes.
    patience: float | None = 0.0
    when_away: bool = False  # a token that was valid a while ago will do while the broker is away
    #: It goes on while the broker is away, if the app has a fallback: with a token that was valid
    #: before, and for as long as its own steps take.
    spools: bool = False
    max_body: int = 0  # bytes; 0: the usual limit
    #: The handler reads the body itself, with ``request.receive``; for these media types.
    streams: tuple[str, ...] = ()
    also: Mapping[int, str] = field(default_factory=dict)  # other good answers of the same shape
    headers: Mapping[str, str] = field(default_factory=dict)  # that it reads, and what for
    tags: tuple[str, ...] = ()  # headings in the description; without any, the first part of path

    def __post_init__(self) -> None:
        if self.answer is None:
            answer = get_type_hints(self.handler)["return"]
            object.__setattr__(self, "answer", None if answer is NoneType else answer)
