"""Where tokens are kept: documents of the broker, which all servers of the API read."""

from __future__ import annotations

import msgspec

from fairlead.api.auth.tokens import KIND, USE, Stored, Token, TokenUse, new_token
from fairlead.broker.documents import MAX_DOCUMENTS, Document, DocumentChange
from fairlead.client import Client
from fairlead.model.errors import FairleadError, TooLarge

_AFTER = 7 * 86_400.0  # seconds that a token is listed after it has expired
_PAGE = 500

_decode = msgspec.json.Decoder(Stored).decode
_decode_use = msgspec.json.Decoder(TokenUse).decode


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token as people see it: never its secret, nor the hash of it."""

    id: str
    name: str
    scopes: tuple[str, ...]
    tenant: str | None
    created_at: float
    expires_at: float | None
    expired: bool
    rate: float | None
    used_at: float | None  # as far as it was noted: at most once a minute
    used_by: str = ""  # the address


async def create_token(
    client: Client,
    *,
    name: str = "",
    scopes: tuple[str, ...],
    tenant: str | None = None,
    lifetime: float | None = None,
    rate: float | None = None,
) -> Token:
    """Make a token and store it. Its text is known now, and never again."""
    now = await client.now()
    token = new_token(
        name=name, scopes=scopes, tenant=tenant, now=now, lifetime=lifetime, rate=rate
    )
    value = msgspec.json.encode(token.stored)
    ttl = None if lifetime is None else lifetime + _AFTER
    change = DocumentChange(kind=KIND, name=token.id, value=value, ttl=ttl, revision=0)
    (answer,) = await client.write_documents([change])
    if answer.code == "full":
        raise TooLarge("the number of tokens", MAX_DOCUMENTS + 1, MAX_DOCUMENTS, "tokens")
    if answer.code == "stale":
        raise FairleadError("the id of the new token is taken; try again")
    return token


async def list_tokens(client: Client) -> list[TokenView]:
    """All tokens, by id."""
    views: list[TokenView] = []
    cursor: str | None = None
    while True:
        page = await client.store.documents(KIND, cursor=cursor, limit=_PAGE)
        names = [document.name for document in page.documents]
        found = (await client.store.documents(USE, names)).documents if names else []
        used = {document.name: document for document in found}
        views += [_view(each, used.get(each.name), page.now) for each in page.documents]
        cursor = page.cursor
        if cursor is None:
            return views


async def revoke_token(client: Client, id: str) -> bool:
    """Delete a token: servers refuse it within two seconds. False if there is none."""
    if not (await client.store.documents(KIND, [id])).documents:
        return False
    gone = [DocumentChange(kind=kind, name=id, value=None) for kind in (KIND, USE)]
    await client.write_documents(gone)
    return True


def _view(document: Document, use: Document | None, now: float) -> TokenView:
    stored = _decode(document.value)
    last = None if use is None else _decode_use(use.value)
    return TokenView(
        id=document.name,
        name=stored.name,
        scopes=stored.scopes,
        tenant=stored.tenant,
        created_at=stored.created_at,
        expires_at=stored.expires_at,
        expired=stored.expires_at is not None and now >= stored.expires_at,
        rate=stored.rate,
        used_at=None if last is None else last.at,
        used_by="" if last is None else last.peer,
    )
