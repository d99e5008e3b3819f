"""What a server of the API is told about its surroundings."""

from __future__ import annotations

import re

import msgspec

from fairlead.model.errors import InvalidOption

_ORIGIN = re.compile(r"https?://[^/\s?#@]+/?", re.IGNORECASE)  # as browsers send it
_HOST = re.compile(r"[^/\s?#@]+")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and who is let in. The defaults are closed: tokens, and names of this machine."""

    #: Values of Host that are answered: ``name`` (the port of the scheme), ``name:8000``, or
    #: ``name:*`` for any port.
    hosts: tuple[str, ...] = tuple(f"{name}:*" for name in LOOPBACK)
    #: Pages of these origins may call too, such as ``https://panel.example.org``; those of the
    #: host that was asked always may.
    origins: tuple[str, ...] = ()
    #: Callers of this machine need no token. Never behind a proxy: see the reference.
    open_to_loopback: bool = False
    #: In front of every path, where whoever mounts the API hands it whole paths.
    prefix: str = ""
    token_rate: float | None = None  # requests a second of one token, in each process
    tenant_rate: float | None = None  # and of all tokens of one tenant
    max_body: int = 2 * 1024 * 1024  # bytes of a request
    body_idle: float = 10.0  # seconds without a byte of the body
    patience: float = 1.5  # seconds that a call to the broker may take
    #: Fields of arguments and results that nobody sees: ``password``, ``card.number``, ``*.token``.
    redact: tuple[str, ...] = ()
    #: Metrics name the ten tenants that wait longest; each is then a label, for as long as
    #: Prometheus remembers.
    metrics_tenants: bool = False

    def __post_init__(self) -> None:
        """Refuse what no request could ever match, before somebody looks for the reason."""
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise InvalidOption("origins", origin, "a scheme and a host: https://example.org")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InvalidOption("hosts", host, "a name, without scheme and path: example.org")
