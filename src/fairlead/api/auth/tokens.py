"""Tokens: made, stored as hashes in the broker, and recognized again."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

import msgspec

from fairlead.api.http.route import SCOPES, Access, Scope
from fairlead.model.errors import InvalidOption
from fairlead.model.names import check_tenant

KIND, USE = "token", "token-use"  # of documents
_TOKEN = re.compile(r"fl_([0-9a-f]{12})_([A-Za-z0-9_-]{43})\Z")
_LONGEST_NAME = 100


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker keeps of a token: never the secret."""

    hash: str  # SHA-256 of the secret, in hex; it is random, so a slow hash would add nothing
    name: str = ""
    scopes: tuple[Scope, ...] = ()
    tenant: str | None = None
    created_at: float = 0.0
    expires_at: float | None = None
    rate: float | None = None  # requests a second, in each process

    def access(self, id: str, peer: str) -> Access:
        """What a caller with this token may do."""
        return Access(
            token=id, name=self.name, scopes=frozenset(self.scopes), tenant=self.tenant, peer=peer
        )


class TokenUse(msgspec.Struct, frozen=True, kw_only=True):
    """When a token was used last, as far as it was noted: at most once a minute."""

    at: float
    peer: str = ""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A new token: the only moment at which its text is known."""

    id: str
    text: str
    stored: Stored


def new_token(
    *,
    name: str,
    scopes: tuple[str, ...],
    tenant: str | None,
    now: float,
    lifetime: float | None = None,
    rate: float | None = None,
) -> Token:
    """Make a token; nothing is stored yet."""
    chosen = check_scopes(scopes)
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidOption("name", name, f"at most {_LONGEST_NAME} printable characters")
    if tenant is not None:
        check_tenant(tenant)
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    stored = Stored(
        hash=_hash(secret),
        name=name,
        scopes=chosen,
        tenant=tenant,
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
        rate=rate,
    )
    return Token(id=id, text=f"fl_{id}_{secret}", stored=stored)


def check_scopes(scopes: tuple[str, ...]) -> tuple[Scope, ...]:
    """Return the scopes in their order; raise InvalidOption for none, or one that is not known."""
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidOption("scopes", scope, f"some of {', '.join(SCOPES)}")
    if not scopes:
        raise InvalidOption("scopes", "", f"at least one of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def parsed(text: str) -> tuple[str, str] | None:
    """The id and the secret of a token's text; None if it is none."""
    found = _TOKEN.match(text)
    return None if found is None else (found[1], found[2])


def matches(stored: Stored, secret: str) -> bool:
    """Whether the secret is the token's; takes as long either way."""
    return hmac.compare_digest(stored.hash, _hash(secret))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
