"""Where messages live. ``connect`` is the only list of brokers; nothing else asks for a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from fairlead.broker.caller import Caller
from fairlead.broker.inspector import Inspector
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.protocol import Broker
from fairlead.broker.verbs import SHARD
from fairlead.embedded import SCHEME as _EMBEDDED
from fairlead.model.errors import InvalidOption

if TYPE_CHECKING:
    from fairlead.broker.sharded import Post

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


def connect(url: str, *, shards: Mapping[str, str] | None = None) -> Store:
    """The broker that a URL stands for. Nothing is opened before the first call.

    ``memory://`` lives and dies with the process. ``redis://``, ``valkey://`` and ``unix://`` are a
    Redis or Valkey server; ``fairlead.broker.redis.address`` says what their URLs look like.
    ``embedded://PATH`` is a Valkey of one's own in that directory; see ``fairlead.embedded``.

    ``shards`` spreads queues over shards of that server or cluster: the shard of each queue by its
    name, shard ``0`` for all others; ``fairlead.broker.sharded`` says what holds between them.
    """
    scheme = url.partition("://")[0].lower()
    if shards and scheme not in _SERVERS:
        raise InvalidOption("shards", dict(shards), "left out, unless the tasks live on a server")
    if scheme == "memory":
        return MemoryBroker()
    if scheme in _SERVERS:
        # A program whose tasks live in memory need not load a client for servers.
        from fairlead.broker.redis import RedisBroker

        if shards:
            return _sharded(lambda shard: RedisBroker(url, shard=shard), shards)
        return RedisBroker(url)
    if scheme == _EMBEDDED:
        from fairlead.broker.redis.embedded import EmbeddedBroker

        return EmbeddedBroker(url)
    names = ", ".join(f"{name}://" for name in ("memory", _EMBEDDED, *sorted(_SERVERS)))
    raise InvalidOption("url", f"{scheme}://…", f"one of {names}")


def _sharded(opened: Callable[[str], Post], routes: Mapping[str, str]) -> Store:
    from fairlead.broker.sharded import ShardedBroker, check_shard

    names = dict.fromkeys((SHARD, *routes.values()))
    return ShardedBroker({check_shard(name): opened(name) for name in names}, routes)
