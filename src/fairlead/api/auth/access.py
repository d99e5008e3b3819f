"""Who is let in: Host and Origin first, then the token, then the scope."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api.http.problems import Forbidden
from fairlead.api.http.route import Access, Scope
from fairlead.api.settings import ApiSettings

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_SITES = (b"same-origin", b"none")  # of Sec-Fetch-Site: our own page, or typed by a person


class OriginCheck:
    """The checks that need no token: which name was asked for, and which page asks."""

    def __init__(self, settings: ApiSettings) -> None:
        self._exact = frozenset(host.lower() for host in settings.hosts)
        self._any_port = frozenset(
            host.removesuffix(":*").lower() for host in settings.hosts if host.endswith(":*")
        )
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)

    def check(self, headers: Mapping[bytes, bytes], *, mutates: bool) -> None:
        """Raise ``Forbidden`` for a host, or a page of an origin, that is not allowed."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._is_known(host):
            raise Forbidden(
                "this name of the server is not allowed",
                field="Host",
                value=host,
                rule="one of the hosts that the server was started with",
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._is_ours(origin.decode("latin-1").lower(), host):
            raise Forbidden(
                "pages of this origin may not call",
                field="Origin",
                value=origin.decode("latin-1"),
                rule="the host itself, or one of the origins that the server was started with",
            )
        site = headers.get(b"sec-fetch-site")
        known = origin is not None and origin.decode("latin-1").lower() in self._origins
        if mutates and site is not None and site not in _SITES and not known:
            raise Forbidden(
                "a page of another site may not change anything",
                field="Sec-Fetch-Site",
                value=site.decode("latin-1"),
                rule="same-origin or none",
            )

    def _is_known(self, host: str) -> bool:
        if host in self._exact:
            return True
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit():
            name = host
        return name in self._any_port

    def _is_ours(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        scheme, found, rest = origin.partition("://")
        return bool(found) and scheme in ("http", "https") and rest == host


def bearer(headers: Mapping[bytes, bytes]) -> str | None:
    """The token of the header Authorization, or None."""
    value = headers.get(b"authorization")
    if value is None or value[:7].lower() != b"bearer ":
        return None
    return value[7:].strip().decode("latin-1")


def require(access: Access, scope: Scope) -> None:
    """Raise ``Forbidden`` unless the caller has the scope."""
    if scope not in access.scopes:
        raise Forbidden(
            f"the token has no scope {scope!r}", field="scope", rule=f"a token with {scope!r}"
        )
