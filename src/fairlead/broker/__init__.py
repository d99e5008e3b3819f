"""Where messages live. ``connect`` is the only list of brokers; nothing else asks for a type."""

from __future__ import annotations

from typing import Protocol

from fairlead.broker.caller import Caller
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.protocol import Broker, Inspector
from fairlead.model.errors import InvalidOption

__all__ = ("Broker", "Caller", "Inspector", "Store", "connect")

_SERVERS = frozenset(
    {
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "unix",
        "redis+sentinel",
        "rediss+sentinel",
        "redis+cluster",
        "rediss+cluster",
    }
)


class Store(Broker, Inspector, Protocol):
    """A broker that can be looked into as well; all of ours can."""


def connect(url: str) -> Store:
    """The broker that a URL stands for. Nothing is opened before the first call.

    ``memory://`` lives and dies with the process. ``redis://``, ``valkey://`` and ``unix://`` are a
    Redis or Valkey server; ``fairlead.broker.redis.address`` says what their URLs look like.
    """
    scheme = url.partition("://")[0].lower()
    if scheme == "memory":
        return MemoryBroker()
    if scheme in _SERVERS:
        # A program whose tasks live in memory need not load a client for servers.
        from fairlead.broker.redis import RedisBroker

        return RedisBroker(url)
    names = ", ".join(f"{name}://" for name in ("memory", *sorted(_SERVERS)))
    raise InvalidOption("url", f"{scheme}://…", f"one of {names}")
