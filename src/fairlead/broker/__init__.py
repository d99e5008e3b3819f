"""Where messages live. ``connect`` is the only list of brokers; nothing else asks for a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from fairlead.broker.caller import Caller
from fairlead.broker.inspector import Inspector
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.protocol import Broker
from fairlead.broker.repeats import LIMIT
from fairlead.broker.shards import split_shards, with_shards
from fairlead.broker.time_limit import call_limit, split_limit
from fairlead.broker.verbs import SHARD
from fairlead.embedded import SCHEME as _EMBEDDED
from fairlead.embedded import parse_embedded
from fairlead.model.errors import InvalidOption

if TYPE_CHECKING:
    from fairlead.broker.sharded import Post

__all__ = (
    "LIMIT",
    "Broker",
    "Caller",
    "Inspector",
    "Store",
    "address_of",
    "call_limit",
    "connect",
    "split_limit",
    "with_shards",
)

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


def connect(
    url: str,
    *,
    shards: Mapping[str, str] | None = None,
    is_default: bool = False,
    timeout: float | None = None,
) -> Store:
    """The broker that a URL stands for. Nothing is opened before the first call.

    ``memory://`` lives and dies with the process. ``redis://``, ``valkey://`` and ``unix://`` are a
    Redis or Valkey server; ``fairlead.broker.redis.address`` says what their URLs look like.
    ``embedded://PATH`` is a Valkey of one's own in that directory; see ``fairlead.embedded``. If
    that ``is_default``, which nobody named, whoever starts it is warned.

    ``shards`` spreads queues over shards of that server or cluster: the shard of each queue by its
    name, shard ``0`` for all others; ``fairlead.broker.sharded`` says what holds between them. The
    URL may say them itself, see ``fairlead.broker.shards``.

    ``timeout`` is how many seconds a call may take that does not say so itself; without it the
    URL's option of this name says so, or it is ten.
    """
    url, said = split_limit(url)
    limit = timeout or said or LIMIT
    url, routes = split_shards(url if shards is None else with_shards(url, shards))
    scheme = _scheme(url)
    if scheme == "memory":
        if routes:
            raise InvalidOption("shards", routes, "left out, unless the tasks live on a server")
        return MemoryBroker()
    if scheme in _SERVERS:
        # A program whose tasks live in memory need not load a client for servers.
        from fairlead.broker.redis import RedisBroker

        return _sharded(lambda shard: RedisBroker(url, shard=shard, patience=limit), routes)
    if scheme == _EMBEDDED:
        from fairlead.broker.redis.embedded import EmbeddedBroker

        return _sharded(
            lambda shard: EmbeddedBroker(url, shard=shard, is_default=is_default, patience=limit),
            routes,
        )
    names = ", ".join(f"{name}://" for name in ("memory", _EMBEDDED, *sorted(_SERVERS)))
    raise InvalidOption("url", f"{scheme}://…", f"one of {names}")


def address_of(url: str) -> str:
    """The URL as people may see it: without user, password and options, paths in full."""
    url, routes = split_shards(split_limit(url)[0])
    scheme = _scheme(url)
    if scheme in _SERVERS:
        from fairlead.broker.redis.address import parse

        shown = str(parse(url))
    elif scheme == _EMBEDDED:
        shown = f"{_EMBEDDED}://{parse_embedded(url)[0].absolute()}"
    else:
        shown = f"{scheme}://"
    spread = ", ".join(f"{queue}={shard}" for queue, shard in routes.items())
    return f"{shown} (shards: {spread})" if spread else shown


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _sharded(opened: Callable[[str], Post], routes: Mapping[str, str]) -> Store:
    if not routes:
        return opened(SHARD)
    from fairlead.broker.sharded import ShardedBroker

    names = dict.fromkeys((SHARD, *routes.values()))
    return ShardedBroker({name: opened(name) for name in names}, routes)
