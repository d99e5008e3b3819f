"""Which shards there are, on which servers, and which tasks go to each: the URL, taken apart.

A shard is named in every key, event id and outbox of its tasks, so its name must not change while
they are there. The shard of the URL itself is ``0``; that of a route is named after its server's
address, or by ``?shard=NAME`` in the URL. Tasks that are routed by priority have a shard of their
own on their server: a fetch asks it before or after the shards of queues.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from fairlead.broker.namespace import split_namespace, with_namespace
from fairlead.broker.requests import SHARD
from fairlead.broker.routes import Route, check_routes, shown_url, split_routes
from fairlead.broker.shards import check_shard, split_shards
from fairlead.broker.time_limit import split_limit
from fairlead.embedded.options import SCHEME as EMBEDDED
from fairlead.embedded.options import parse_embedded
from fairlead.model.errors import InvalidOption
from fairlead.model.message import LEVEL_NAMES

MEMORY = "memory"
SERVERS = frozenset(
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

LEVELS_SUFFIX = "_levels"  # behind the name of a server: the shard of what is routed by priority
_LONGEST = 24  # characters of a shard's name, so that there is room for that
_CUT = 15  # of a name that is made of a longer address
_PORT = 6379
_SHARD_OPTION = "shard="


class Server(msgspec.Struct, frozen=True):
    """Where a shard is."""

    url: str  # as it is opened; may hold a password
    address: str  # as people may see it
    limit: float | None = None  # seconds that the URL gives to a call
    namespace: str = ""  # of the keys; empty: the usual ones


class Topology(msgspec.Struct, frozen=True):
    """All that a URL says."""

    servers: dict[str, Server]  # by shard
    default: str  # the shard of all queues that have no other
    queues: dict[str, str]  # the shard of each queue that is not there
    levels: dict[int, str]  # the shard of each level that is routed
    drained: list[str]  # shards from which all queues are served as well
    routes: list[Route]
    shards: dict[str, str]  # of the first server, as the URL says them

    @property
    def is_single(self) -> bool:
        """Whether there is one shard only."""
        return len(self.servers) == 1

    def __str__(self) -> str:
        """All addresses, without user, password and options."""
        text = self.servers[self.default].address
        if self.shards:
            spread = ", ".join(f"{queue}={shard}" for queue, shard in self.shards.items())
            text += f" (shards: {spread})"
        if self.routes:
            shown = ", ".join(f"{each.key}={_plain(each.url)[1].address}" for each in self.routes)
            text += f" (routes: {shown})"
        return text


def topology_of(url: str) -> Topology:
    """Take a URL apart. Raises ``InvalidOption``, which names no part that may hold a secret."""
    url, said = split_routes(url)
    routes = check_routes(said)
    limited, limit = split_limit(url)
    bare, shards = split_shards(limited)
    name, first = _plain(bare)
    default = name or SHARD
    if scheme_of(url) == MEMORY:
        if shards:
            raise InvalidOption("shards", shards, "left out, unless the tasks live on a server")
        if routes:
            keys = [route.key for route in routes]
            raise InvalidOption("routes", keys, "left out, unless the tasks live on a server")
    servers = dict.fromkeys((default, *shards.values()), first)
    servers = {each: msgspec.structs.replace(first, limit=limit) for each in servers}
    found = _Found(servers, default, dict(shards), bases={first.address: default})
    for route in routes:  # an installation has one name, unless a route says another
        here = with_namespace(route.url, first.namespace)
        found.add(msgspec.structs.replace(route, url=here))
    return Topology(
        servers=found.servers,
        default=default,
        queues=found.queues,
        levels=found.levels,
        drained=found.drained,
        routes=routes,
        shards=shards,
    )


def with_shard(address: str, shard: str) -> str:
    """Return the URL of one shard of a server, to which whoever uses it adds the password."""
    return f"{address}{'&' if '?' in address else '?'}{_SHARD_OPTION}{shard}"


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case."""
    return url.partition("://")[0].lower()


class _Found:
    """What was read of the routes so far."""

    def __init__(
        self,
        servers: dict[str, Server],
        default: str,
        queues: dict[str, str],
        *,
        bases: dict[str, str],
    ) -> None:
        self.servers = servers
        self.queues = queues
        self.levels: dict[int, str] = {}
        self.drained: list[str] = []
        self._bases = bases  # by address: the name of the first server, which is not made of it
        self._names = {default: servers[default].address}  # names that are given, by whom

    def add(self, route: Route) -> None:
        """Find the shard of a route, on its server."""
        name, server = _routed(route)
        base = name or self._bases.get(server.address) or _named_after(route, server)
        given = self._names.setdefault(base, server.address)
        if given != server.address:
            raise InvalidOption(
                f"route {route.key}",
                server.address,
                f"a server whose shard is not named {base} as that of {given}: name it by "
                "?shard=NAME in its URL",
            )
        if route.kind == "queue":
            if route.name in self.queues:
                raise InvalidOption(
                    "route", route.key, "left out, or the queue left out of the shards"
                )
            self.queues[route.name] = base
            self._open(route, base, server)
        elif route.kind == "priority":
            self.levels[LEVEL_NAMES.index(route.name)] = base + LEVELS_SUFFIX
            self._open(route, base + LEVELS_SUFFIX, server)
        else:
            for shard in (base, base + LEVELS_SUFFIX):
                self.drained.append(shard)
                self._open(route, shard, server)

    def _open(self, route: Route, shard: str, server: Server) -> None:
        known = next(
            (each for each in self.servers.values() if each.address == server.address), None
        )
        if known is not None and not _is_same(known.url, server.url):
            raise InvalidOption(
                f"route {route.key}",
                server.address,
                "written with the same user, password and options wherever it stands",
            )
        there = self.servers.setdefault(shard, known or server)
        if there.address != server.address:
            raise InvalidOption(
                f"route {route.key}",
                server.address,
                f"a server whose shard is not named {shard} as another one: name it by "
                "?shard=NAME in its URL",
            )


def _is_same(one: str, other: str) -> bool:
    """Whether two URLs open the same server in the same way."""
    if scheme_of(one) not in SERVERS:
        return one == other
    from fairlead.broker.redis.address import parse

    return parse(one) == parse(other)


def _routed(route: Route) -> tuple[str | None, Server]:
    """Return the name that a route's URL gives to its shard, and its server."""
    what = f"route {route.key}"
    for name, split in (("routes", split_routes), ("shards", split_shards)):
        if split(route.url)[1]:
            raise InvalidOption(what, shown_url(route.url), f"a URL without {name}")
    if scheme_of(route.url) not in SERVERS | {EMBEDDED}:
        names = ", ".join(f"{each}://" for each in (EMBEDDED, *sorted(SERVERS)))
        raise InvalidOption(what, f"{scheme_of(route.url)}://…", f"one of {names}")
    return _plain(route.url)


def _plain(url: str) -> tuple[str | None, Server]:
    """Return the name that a URL gives to its shard, and the server without that."""
    url, limit = split_limit(url)
    url, namespace = split_namespace(url)
    head, _, query = url.partition("?")
    options = query.split("&") if query else []
    said = [each.removeprefix(_SHARD_OPTION) for each in options if each.startswith(_SHARD_OPTION)]
    rest = "&".join(each for each in options if not each.startswith(_SHARD_OPTION))
    name = None
    if said:
        name = check_shard(said[0])
        if len(said) > 1 or (len(name) > _LONGEST and not name.endswith(LEVELS_SUFFIX)):
            raise InvalidOption("shard", name, f"given once, with at most {_LONGEST} characters")
    bare = f"{head}?{rest}" if rest else head
    return name, Server(bare, with_namespace(_address(bare), namespace), limit, namespace)


def _address(url: str) -> str:
    """Return a URL as people may see it: without user, password and options, paths in full."""
    scheme = scheme_of(url)
    if scheme in SERVERS:
        from fairlead.broker.redis.address import parse

        return str(parse(url))
    if scheme == EMBEDDED:
        return f"{EMBEDDED}://{parse_embedded(url)[0].absolute()}"
    if scheme == MEMORY:
        return f"{MEMORY}://"
    names = ", ".join(f"{name}://" for name in (MEMORY, EMBEDDED, *sorted(SERVERS)))
    raise InvalidOption("url", f"{scheme}://…", f"one of {names}")


def _named_after(route: Route, server: Server) -> str:
    """Return the name of a shard for an address, the same in every process and every order."""
    if scheme_of(server.url) == EMBEDDED:
        text = str(parse_embedded(server.url)[0])
    else:
        from fairlead.broker.redis.address import parse

        found = parse(server.url)
        if found.kind == "cluster":
            # Its nodes come and go, and whichever are named, the shard has to be the same.
            raise InvalidOption(
                f"route {route.key}", server.address, "a cluster with ?shard=NAME in its URL"
            )
        place = found.places[0]
        port = f" {place.port}" if place.port not in (0, _PORT) else ""
        text = found.service or place.path or f"{place.host}{port}"
        text += f" {found.db}" if found.db else ""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    if len(name) > _LONGEST:
        name = f"{name[:_CUT]}_{sha256(text.encode()).hexdigest()[:8]}"
    return name or SHARD
