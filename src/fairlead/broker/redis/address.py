"""Where a broker's server is to be found: the URL, taken apart.

    redis://[user[:password]@]host[:port][/db]              valkey:// is the same
    rediss://…?ca=FILE&cert=FILE&key=FILE&verify=0|1        with TLS; valkeys:// is the same
    unix://[user[:password]@]/path/to.sock[?db=n]
    redis+sentinel://[user[:password]@]h1[:p],h2[:p]/service[/db][?sentinel_user=…]
        [&sentinel_password=…]                              rediss+sentinel:// with TLS
    redis+cluster://[user[:password]@]h1[:p],h2[:p]         rediss+cluster:// with TLS

No password is ever shown: not by ``repr``, and not by the error about a URL that is wrong.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from fairlead.model.errors import InvalidOption

_SCHEMES: dict[str, tuple[Literal["fixed", "unix", "sentinel", "cluster"], bool]] = {
    "redis": ("fixed", False),
    "valkey": ("fixed", False),
    "rediss": ("fixed", True),
    "valkeys": ("fixed", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_PORT = 6379
_SENTINEL_PORT = 26379
_MOST_PORT = 65535

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:/@\s]+))(?::(?P<port>\d+))?\Z")


class Place(msgspec.Struct, frozen=True):
    """One server process: a host and a port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(msgspec.Struct, frozen=True):
    """Who we say we are. Never shown."""

    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, password={'***' if self.password else None})"


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """How a server proves who it is, and we ourselves if it asks."""

    ca: str | None = None  # default: what the system trusts
    cert: str | None = None
    key: str | None = None
    verify: bool = True


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A URL taken apart."""

    kind: Literal["fixed", "unix", "sentinel", "cluster"]
    places: tuple[Place, ...]  # the server itself, or whom to ask for it
    login: Login = Login()
    db: int = 0
    tls: Tls | None = None
    service: str = ""  # of the primary, as the sentinels call it
    sentinel_login: Login = Login()

    def __str__(self) -> str:
        """The URL without its secrets."""
        hosts = ",".join(str(place) for place in self.places)
        if self.kind == "unix":
            return f"unix://{hosts}{f'?db={self.db}' if self.db else ''}"
        scheme = ("rediss" if self.tls else "redis") + (
            f"+{self.kind}" if self.kind in ("sentinel", "cluster") else ""
        )
        service = f"/{self.service}" if self.service else ""
        return f"{scheme}://{hosts}{service}{f'/{self.db}' if self.db else ''}"


def parse(url: str) -> Address:
    """Take a URL apart. Raises ``InvalidOption``, which names no part that may hold a secret."""
    scheme, colon, rest = url.partition("://")
    known = _SCHEMES.get(scheme.lower())
    if not colon or known is None:
        raise _wrong(url, f"a URL that starts with one of {', '.join(f'{s}://' for s in _SCHEMES)}")
    kind, secure = known
    place, _, query = rest.partition("?")
    options = _options(url, query)
    credentials, _, place = place.rpartition("@")
    head, slash, path = place.partition("/")
    login = _login(credentials)
    tls = _tls(url, options) if secure else None
    if kind == "unix":
        address = _unix(url, unquote(slash + path), head, login, options)
    elif kind == "sentinel":
        address = _sentinel(url, head, path, login, tls, options)
    elif kind == "cluster":
        if path not in ("", "0"):
            raise _wrong(url, "a URL without a database: a cluster has only database 0")
        places = _places(url, head, _PORT)
        address = Address(kind=kind, places=places, login=login, tls=tls)
    else:
        places = _places(url, head, _PORT)
        if len(places) > 1:
            raise _wrong(url, "a URL of one server; use redis+sentinel:// or redis+cluster://")
        address = Address(kind=kind, places=places, login=login, tls=tls, db=_db(url, path))
    if options:
        unknown = ", ".join(sorted(name for name in options if name.isidentifier()))
        raise _wrong(url, f"a URL without unknown options (found: {unknown or 'a nameless one'})")
    return address


def _unix(url: str, path: str, head: str, login: Login, options: dict[str, str]) -> Address:
    if head or path in ("", "/"):
        raise _wrong(url, "a URL with the absolute path of a socket, as in unix:///run/valkey.sock")
    db = _db(url, options.pop("db", ""))
    return Address(kind="unix", places=(Place(path=path),), login=login, db=db)


def _sentinel(
    url: str, head: str, path: str, login: Login, tls: Tls | None, options: dict[str, str]
) -> Address:
    service, _, db = path.partition("/")
    if not service:
        raise _wrong(url, "a URL that names the service, as in redis+sentinel://h1,h2,h3/mymaster")
    user = options.pop("sentinel_user", None)
    return Address(
        kind="sentinel",
        places=_places(url, head, _SENTINEL_PORT),
        login=login,
        tls=tls,
        db=_db(url, db),
        service=unquote(service),
        sentinel_login=Login(user, options.pop("sentinel_password", None)),
    )


def _options(url: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise _wrong(url, "a URL that gives each option once")
    return options


def _login(credentials: str) -> Login:
    user, _, password = credentials.partition(":")
    return Login(unquote(user) or None, unquote(password) or None)


def _tls(url: str, options: dict[str, str]) -> Tls:
    verify = options.pop("verify", "1")
    if verify not in ("0", "1"):
        raise _wrong(url, "a URL with verify=0 or verify=1")
    cert, key = options.pop("cert", None), options.pop("key", None)
    if key is not None and cert is None:
        raise _wrong(url, "a URL that gives cert= along with key=")
    return Tls(ca=options.pop("ca", None), cert=cert, key=key, verify=verify == "1")


def _places(url: str, text: str, port: int) -> tuple[Place, ...]:
    places = []
    for item in text.split(","):
        match = _HOST.match(item)
        if match is None:
            raise _wrong(
                url,
                "a URL whose hosts look like host, host:port or [address]:port "
                "(write special characters of a password as %XX)",
            )
        number = int(match["port"] or port)
        if not 1 <= number <= _MOST_PORT:
            raise _wrong(url, f"a URL whose ports are from 1 to {_MOST_PORT}")
        places.append(Place(match["six"] or unquote(match["name"]), number))
    return tuple(places)


def _db(url: str, text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise _wrong(url, "a URL whose database is a number, as in redis://localhost/0")
    return int(text)


def _wrong(url: str, rule: str) -> InvalidOption:
    """The error about a URL, of which only the scheme is repeated once it may hold a secret."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        shown = "…"
    elif "@" in url or "?" in url:
        shown = f"{scheme}://…"
    else:
        shown = url
    return InvalidOption("url", shown, rule)
