"""Links that sign a browser in once: each carries a code, which the page exchanges for a token.

The code stands in the fragment of the address, which browsers keep to themselves. What the broker
stores of it is a hash; it is deleted by the exchange, so that a link in somebody's scrollback or
history opens nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlead.api.auth.rate_limits import Buckets
from fairlead.api.auth.token_store import create_token
from fairlead.api.auth.tokens import check_scopes
from fairlead.api.http.body import whole
from fairlead.api.http.input import JSON, check_body, decoder_of
from fairlead.api.http.mount import Application, Connection, Mount, Receive, Send
from fairlead.api.http.problems import MethodNotAllowed, TooManyRequests, Unauthorized
from fairlead.api.http.responses import encode, send_data
from fairlead.api.http.route import Access, Scope
from fairlead.broker.documents import MAX_DOCUMENTS, DocumentChange
from fairlead.model.errors import TooLarge

if TYPE_CHECKING:
    from fairlead.api.auth.tokens import Token
    from fairlead.api.service import Service
    from fairlead.client import Client

PATH = "/sign-in"
_KIND = "sign-in"  # of documents
_CODE = re.compile(r"([0-9a-f]{12})-([A-Za-z0-9_-]{22})\Z")
_LARGEST = 1_024  # bytes of a request
_RATE, _BURST = 1.0, 20.0  # exchanges a second, of one peer
_ALL_RATE, _ALL_BURST = 20.0, 100.0  # and of all of them: each is a read of the broker


class SignInCode(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker keeps of a code: never the code itself."""

    hash: str
    name: str = ""
    scopes: tuple[Scope, ...] = ()
    tenant: str | None = None
    lifetime: float = 86_400.0  # seconds, of the token that it is exchanged for


class _Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str


class _Opened(NamedTuple):
    id: str
    secret: str


async def create_code(
    client: Client,
    *,
    scopes: tuple[str, ...],
    name: str = "",
    tenant: str | None = None,
    lifetime: float = 86_400.0,
    valid_for: float = 3_600.0,
) -> str:
    """Store a code that can be exchanged once, within ``valid_for`` seconds; return its text.

    The token that it is exchanged for has these scopes and this tenant, for ``lifetime`` seconds.
    """
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(16)
    stored = SignInCode(
        hash=_hash(secret),
        name=name,
        scopes=check_scopes(scopes),
        tenant=tenant,
        lifetime=lifetime,
    )
    change = DocumentChange(
        kind=_KIND, name=id, value=msgspec.json.encode(stored), ttl=valid_for, revision=0
    )
    (answer,) = await client.write_documents([change])
    if answer.code != "done":
        raise TooLarge("the number of links", MAX_DOCUMENTS + 1, MAX_DOCUMENTS, "unused links")
    return f"{id}-{secret}"


def link_of(address: str, code: str) -> str:
    """Return the address of the page with a code for it."""
    return f"{address.rstrip('/')}/#sign-in={code}"


async def redeem_code(client: Client, text: str) -> Token | None:
    """Return a new token for a code, which is used up by it; None if it is not valid (any more)."""
    given = _opened(text)
    if given is None:
        return None
    found = (await client.store.documents(_KIND, [given.id])).documents
    if not found:
        return None
    stored = msgspec.json.decode(found[0].value, type=SignInCode)
    if not hmac.compare_digest(stored.hash, _hash(given.secret)):
        return None
    # First the code goes: of two who have it, one gets a token.
    gone = DocumentChange(kind=_KIND, name=given.id, value=None, revision=found[0].revision)
    (answer,) = await client.write_documents([gone])
    if answer.code != "done":
        return None
    return await create_token(
        client,
        name=stored.name,
        scopes=stored.scopes,
        tenant=stored.tenant,
        lifetime=stored.lifetime,
    )


class _SignIn:
    """An ASGI application that exchanges codes for tokens, so many a second."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decode = decoder_of(_Exchange)
        self._peers, self._all = Buckets(), Buckets(most=1)

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Answer a POST with the token; Host and Origin were checked before."""
        if connection.get("method") != "POST":  # a socket has none
            raise MethodNotAllowed("a code is exchanged by POST", headers={"allow": "POST"})
        peer: str = (connection.get("client") or ("", 0))[0]
        late = self._peers.take(peer, _RATE, _BURST) or self._all.take("", _ALL_RATE, _ALL_BURST)
        if late:
            raise TooManyRequests("too many codes", field="code", retry_after=max(late, 1.0))
        check_body(dict(connection["headers"]), (JSON,), _LARGEST)
        body = await whole(receive, _LARGEST, self._service.settings.body_idle)
        token = await redeem_code(self._service.client(), self._decode(body).code)
        if token is None:
            raise Unauthorized("this link was used already, or is too old", field="code")
        caller = Access(name="sign-in", peer=peer, tenant=token.stored.tenant)
        await self._service.note(caller, "token.create", token.id, {"name": token.stored.name})
        await send_data(send, 200, encode({"token": token.text}))


def _opened(text: str) -> _Opened | None:
    found = _CODE.match(text)
    return None if found is None else _Opened(found[1], found[2])


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _make(service: Service) -> Application:
    return _SignIn(service)


#: Asks for no token: it hands one out, to those who have a code.
MOUNTS = (Mount(path=PATH, make=_make, summary="Exchange the code of a link for a token"),)
