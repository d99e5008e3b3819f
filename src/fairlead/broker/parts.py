"""The shards behind a broker, for those who have to know which of them is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from fairlead.broker.requests import SHARD

if TYPE_CHECKING:
    from fairlead.broker import Store


class Parts(NamedTuple):
    """Where tasks go: the stores by name, and which of them takes a queue and level."""

    stores: Mapping[str, Store]
    place: Callable[[str, int], str]


class _Several(Protocol):
    @property
    def stores(self) -> Mapping[str, Store]: ...

    def place(self, queue: str, level: int) -> str: ...


def parts_of(store: Store) -> Parts:
    """Return the parts of a broker; one that is a whole is its only part."""
    if hasattr(store, "stores"):
        several = cast(_Several, store)
        return Parts(several.stores, several.place)
    return Parts({SHARD: store}, lambda *_: SHARD)


def destination_of(store: object) -> str:
    """Return which broker this is, in words that are the same in every process that uses it.

    Addresses, shards and what goes where; no user and no password. Empty if the store does not say.
    One in memory is told from all others.
    """
    found = getattr(store, "destination", None)
    return found if isinstance(found, str) else ""
