"""Where messages live. ``connect`` is the only list of brokers; nothing else asks for a type.

Begin with ``protocol``, the contract; ``memory``, ``redis`` and ``sharded`` keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fairlead.broker.clock import Clock
from fairlead.broker.inspector import Inspector
from fairlead.broker.namespace import with_namespace
from fairlead.broker.numbered_calls import Caller
from fairlead.broker.parts import destination_of, parts_of
from fairlead.broker.protocol import Broker
from fairlead.broker.repeats import LIMIT
from fairlead.broker.routes import shown_url, with_routes
from fairlead.broker.shards import with_shards
from fairlead.broker.time_limit import call_limit, split_limit
from fairlead.broker.topology import MEMORY, scheme_of, topology_of
from fairlead.embedded.options import SCHEME as EMBEDDED
from fairlead.model.errors import InvalidOption

if TYPE_CHECKING:
    from fairlead.broker.sharded import ShardStore

__all__ = (
    "LIMIT",
    "Broker",
    "Caller",
    "Clock",
    "Inspector",
    "Store",
    "address_of",
    "call_limit",
    "connect",
    "destination_of",
    "parts_of",
    "shown_url",
    "split_limit",
    "with_namespace",
    "with_routes",
    "with_shards",
)


class Store(Broker, Inspector, Protocol):
    """A broker that can be looked into as well; all of ours can."""


def connect(
    url: str,
    *,
    shards: Mapping[str, str] | None = None,
    routes: Mapping[str, str] | None = None,
    is_default: bool = False,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> Store:
    """The broker that a URL stands for. Nothing is opened before the first call.

    ``memory://`` lives and dies with the process. ``redis://``, ``valkey://`` and ``unix://`` are a
    Redis or Valkey server; ``fairlead.broker.redis.address`` says what their URLs look like.
    ``embedded://PATH`` is a Valkey of one's own in that directory; see ``fairlead.embedded``. If
    that ``is_default``, which nobody named, whoever starts it is warned.

    ``shards`` spreads queues over shards of that server or cluster: the shard of each queue by its
    name, shard ``0`` for all others; docs/internals/shards.md says what holds between them. The
    URL may say them itself, see ``fairlead.broker.shards``. ``routes`` leads queues or priorities
    to other servers, see ``fairlead.broker.routes``.

    ``?namespace=NAME`` keeps installations apart that share a server; see
    ``fairlead.broker.namespace``.

    ``timeout`` is how many seconds a call may take that does not say so itself; without it the
    URL's option of this name says so, or it is ten. ``clock`` is one that a test sets; a broker in
    memory only takes one.
    """
    if clock is not None and scheme_of(url) != MEMORY:
        raise InvalidOption("clock", type(clock).__name__, "left out, unless tasks are in memory")
    topology = topology_of(_said(url, shards, routes))

    def opened(shard: str) -> ShardStore:
        server = topology.servers[shard]
        main = topology.servers[topology.default]
        limit = timeout or server.limit or main.limit or LIMIT
        if scheme_of(server.url) == EMBEDDED:
            from fairlead.broker.redis.embedded import EmbeddedBroker

            unnamed = is_default and server.address == main.address  # routes are named
            return EmbeddedBroker(
                server.url,
                shard=shard,
                is_default=unnamed,
                patience=limit,
                namespace=server.namespace,
            )
        # A program whose tasks live in memory need not load a client for servers.
        from fairlead.broker.redis import RedisBroker

        return RedisBroker(server.url, shard=shard, patience=limit, namespace=server.namespace)

    if scheme_of(url) == MEMORY:
        from fairlead.broker.memory import MemoryBroker

        return MemoryBroker(clock=clock)
    if topology.is_single:
        return opened(topology.default)
    from fairlead.broker.sharded import ShardedBroker

    return ShardedBroker(
        {shard: opened(shard) for shard in topology.servers},
        topology.queues,
        default=topology.default,
        levels=topology.levels,
        drained=topology.drained,
        addresses={shard: server.address for shard, server in topology.servers.items()},
    )


def address_of(url: str) -> str:
    """The URL as people may see it: without users, passwords and options, paths in full."""
    return str(topology_of(url))


def _said(url: str, shards: Mapping[str, str] | None, routes: Mapping[str, str] | None) -> str:
    url = url if shards is None else with_shards(url, shards)
    return url if routes is None else with_routes(url, routes)
