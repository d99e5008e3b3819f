"""How far ledger and broker are apart: what is not sent yet, and what is not recorded yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.client.client import Client
from fairlead.ledger.rows import Place
from fairlead.model.errors import BrokerError
from fairlead.model.event_places import places_of, reached
from fairlead.model.events import EventId

if TYPE_CHECKING:
    from fairlead.ledger.ledger import Ledger


class LedgerLag(msgspec.Struct, frozen=True, kw_only=True):
    """What waits between the two."""

    due: int  # tasks that are due and not sent yet, counted to 10,000
    oldest: float  # seconds since the first of them was due; 0 if there is none
    behind: float | None  # seconds since the last event that was recorded; None: nobody can say


async def read_lag(client: Client, ledger: Ledger | None) -> LedgerLag | None:
    """Return how far they are apart; None without a ledger. Nobody else need run for that."""
    if ledger is None:
        return None
    lag = await ledger.lag()
    places = await ledger.places()
    try:
        latest = await client.store.events(latest=True)
    except BrokerError:
        behind = None
    else:
        ends = {} if latest.last is None else places_of(latest.last)
        behind = max((_behind(places, end, latest.now) for end in ends.values()), default=0.0)
    return LedgerLag(due=lag.due, oldest=lag.oldest_seconds or 0.0, behind=behind)


def _behind(places: dict[str, Place], end: EventId, now: float) -> float:
    """Seconds that a shard is behind. The number of an entry is a moment, in microseconds."""
    place = places.get(end.shard)
    if end.entry == 0 or (place is not None and reached({end.shard: _id(place)}, end)):
        return 0.0
    since = end.entry if place is None or place.generation != end.generation else place.entry
    return max(now - since / 1_000_000, 0.0)


def _id(place: Place) -> EventId:
    return EventId(place.generation, place.shard, place.entry, place.index)
