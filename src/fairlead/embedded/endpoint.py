"""Where an embedded server is to be found."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect. Showing it shows neither the password nor the URL that contains it."""

    socket: str
    password: str
    pid: int
    owner: bool  # whether it is this opener's; the others are guests

    @property
    def url(self) -> str:
        """For ``redis.Redis.from_url`` and its like. Contains the password: not for a log."""
        return f"unix://:{quote(self.password, safe='')}@{quote(self.socket)}"

    def __repr__(self) -> str:
        return f"Endpoint(socket={self.socket!r}, pid={self.pid}, owner={self.owner})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("socket", self.socket), ("pid", self.pid), ("owner", self.owner)]
