"""The URL of a ledger: what is connected to, and how it is shown without a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from fairlead.embedded.options import DEFAULT_PATH, SCHEME
from fairlead.model.errors import InvalidOption

_RULE = "postgresql://user@host/database, or embedded://PATH for a server of one's own"
_CONNECT_IN = 5  # seconds

# A peer that is gone without a word is noticed within half a minute.
_DEFAULTS = {
    "connect_timeout": str(_CONNECT_IN),
    "application_name": "fairlead",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a ledger is. Showing it shows no password."""

    url: str = ""  # for libpq; empty for an embedded server, which says so when it has started
    path: Path | None = None  # of an embedded server
    is_pooled: bool = False  # behind pgbouncer: nothing belongs to a session

    @property
    def shown(self) -> str:
        """The address without user and password, for messages."""
        if self.path is not None:
            return f"{SCHEME}://{self.path}"
        parts = urlsplit(self.url)
        query = dict(parse_qsl(parts.query))
        host = parts.netloc.rpartition("@")[2] or query.get("host", "")
        return f"{host or 'localhost'}{parts.path}"

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def parse_address(url: str) -> Address:
    """Return the address in a URL. Raises InvalidOption, without the URL, which has a password.

    ``?prepare=off`` is for pgbouncer: no prepared statements, nothing set for a session.
    """
    if not isinstance(url, str):
        raise InvalidOption("ledger", type(url).__name__, f"text: {_RULE}")
    scheme, _, rest = url.partition("://")
    if scheme.lower() == SCHEME:
        return Address(path=Path(rest or DEFAULT_PATH))
    if scheme.lower() not in ("postgresql", "postgres"):
        raise InvalidOption("ledger", f"{scheme[:20]}://...", _RULE)
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    said = [value.lower() for name, value in pairs if name == "prepare"]
    if not said:
        return Address(url=url)
    if said[-1] not in ("on", "off"):
        raise InvalidOption("prepare", said[-1], "on or off")
    query = urlencode([pair for pair in pairs if pair[0] != "prepare"])
    return Address(url=urlunsplit(parts._replace(query=query)), is_pooled=said[-1] == "off")


def psycopg_of() -> Any:
    """Import psycopg, or say how to get it."""
    try:
        import psycopg
    except ImportError as error:
        raise InvalidOption(
            "ledger",
            "postgresql",
            'left out where psycopg is not installed: pip install "fairlead[postgres]"',
        ) from error
    return psycopg


def conninfo(address: Address, *, statement_timeout: float, lock_timeout: float) -> str:
    """Return what libpq connects with: the URL, and ours where it says nothing."""
    psycopg = psycopg_of()
    try:
        said: dict[str, str] = psycopg.conninfo.conninfo_to_dict(address.url)
    except psycopg.ProgrammingError:  # its text repeats the URL
        raise InvalidOption("ledger", address.shown, _RULE) from None
    more = {name: value for name, value in _DEFAULTS.items() if name not in said}
    if "," in str(said.get("host", "")):
        more.setdefault("target_session_attrs", said.get("target_session_attrs", "read-write"))
    if not address.is_pooled:
        limits = {
            "statement_timeout": statement_timeout,
            "lock_timeout": lock_timeout,
            "idle_in_transaction_session_timeout": statement_timeout * 3,
        }
        ours = " ".join(f"-c {name}={round(value * 1000)}" for name, value in limits.items())
        more["options"] = f"{ours} {said.get('options', '')}".strip()
    text: str = psycopg.conninfo.make_conninfo(address.url, **more)
    return text
