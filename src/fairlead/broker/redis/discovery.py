"""Which server to connect to, asked anew before each connect."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fairlead.broker.redis.address import Address, Login, Place
from fairlead.broker.redis.wire import Wire, open_wire
from fairlead.model.errors import BrokerError, Unreachable

_SLOTS = 16_384
_ASK_TIMEOUT = 1.0  # seconds for one sentinel or node; there are others to ask

Ask = Callable[..., Awaitable[Any]]
"""Issues a command on one certain connection."""


def slot_of(key: bytes) -> int:
    """Return the hash slot of a key in a cluster: that of its part in braces, if there is one."""
    _, brace, rest = key.partition(b"{")
    tag, end, _ = rest.partition(b"}")
    return crc_hqx(tag if brace and end and tag else key, 0) % _SLOTS


class Finder(Protocol):
    """Knows the way to the server that takes a shard's writes."""

    async def find(self) -> Place:
        """Where to connect now. Raises ``Unreachable`` where nobody can say."""
        ...

    async def confirm(self, ask: Ask) -> None:
        """Raise ``Unreachable`` if the server just connected to is not the one to use."""
        ...

    def point(self, place: Place) -> None:
        """Somebody who must know named the place; the next ``find`` may answer with it."""
        ...


class FixedFinder:
    """One address, resolved again at each connect."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def find(self) -> Place:
        return self._place

    async def confirm(self, ask: Ask) -> None:
        """There is no other to prefer."""

    def point(self, place: Place) -> None:
        """Configured is configured: a server of one address is not part of a cluster to us."""


class SentinelFinder:
    """Asks sentinels for the primary, the one that answered last first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sentinels = list(address.places)

    async def find(self) -> Place:
        said = []
        for sentinel in list(self._sentinels):
            try:
                found = await self._asked(sentinel)
            except BrokerError as error:
                said.append(f"{sentinel}: {error}")
                continue
            if found is None:
                said.append(f"{sentinel}: does not know the service")
                continue
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return found
        raise Unreachable(
            f"no sentinel could name the primary of {self._address.service!r} ({'; '.join(said)})"
        )

    async def confirm(self, ask: Ask) -> None:
        role = await ask("ROLE")
        if role[0] != b"master":  # a sentinel that was cut off names the old primary for a while
            raise Unreachable(
                f"the sentinels name a primary of {self._address.service!r} that is a replica"
            )

    def point(self, place: Place) -> None:
        """Only the sentinels decide."""

    async def _asked(self, sentinel: Place) -> Place | None:
        address = self._address
        wire = await _visit(sentinel, address.sentinel_login, address)
        try:
            found = await wire.ask("SENTINEL", "get-master-addr-by-name", address.service)
        finally:
            wire.drop()
        return Place(found[0].decode(), int(found[1])) if found else None


class ClusterFinder:
    """Asks nodes which of them serves the hash slot of a key."""

    def __init__(self, address: Address, key: str | bytes) -> None:
        self._address = address
        self._slot = slot_of(key.encode() if isinstance(key, str) else key)
        self._known: list[Place] = []  # primaries of the last answer; seeds may be long gone
        self._pointed: Place | None = None

    async def find(self) -> Place:
        pointed, self._pointed = self._pointed, None
        if pointed is not None:
            return pointed
        said = []
        for node in dict.fromkeys((*self._known, *self._address.places)):
            try:
                found = await self._asked(node)
            except BrokerError as error:
                said.append(f"{node}: {error}")
                continue
            if found is not None:
                return found
            said.append(f"{node}: nobody serves slot {self._slot}")
        raise Unreachable(f"no node of the cluster could say where to go ({'; '.join(said)})")

    async def confirm(self, ask: Ask) -> None:
        """A node that does not serve the slot says MOVED by itself."""

    def point(self, place: Place) -> None:
        self._pointed = place

    async def _asked(self, node: Place) -> Place | None:
        wire = await _visit(node, self._address.login, self._address)
        try:
            ranges = await wire.ask("CLUSTER", "SLOTS")
        finally:
            wire.drop()
        found = None
        known = []
        for first, last, primary, *_ in ranges:
            place = Place((primary[0] or b"").decode() or node.host, int(primary[1]))
            if place.host == "?":  # a node that does not know its own name: it is the one we asked
                place = Place(node.host, place.port)
            known.append(place)
            if first <= self._slot <= last:
                found = place
        if known:
            self._known = list(dict.fromkeys(known))
        return found


def finder_for(address: Address, key: str | bytes) -> Finder:
    """The finder for an address; ``key`` is any key of the shard that is looked for."""
    if address.kind == "sentinel":
        return SentinelFinder(address)
    if address.kind == "cluster":
        return ClusterFinder(address, key)
    return FixedFinder(address.places[0])


async def _visit(place: Place, login: Login, address: Address) -> Wire:
    """A connection for one question."""
    return await open_wire(
        place, login, tls=address.tls, connect_timeout=_ASK_TIMEOUT, call_timeout=_ASK_TIMEOUT
    )
