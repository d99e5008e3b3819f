"""Where messages live. ``connect`` is the only list of brokers; nothing else asks for a type."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from fairlead.broker.caller import Caller
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.protocol import Broker, Inspector
from fairlead.model.errors import InvalidOption

__all__ = ("Broker", "Caller", "Inspector", "Store", "connect")


class Store(Broker, Inspector, Protocol):
    """A broker that can be looked into as well; all of ours can."""


def connect(url: str) -> Store:
    """The broker that a URL stands for. Nothing is opened before the first call.

    ``memory://`` lives and dies with the process.
    """
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return MemoryBroker()
    raise InvalidOption("url", f"{scheme}://…", "memory:// (the only broker in this release)")
