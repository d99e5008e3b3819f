"""Places in the streams of several shards, and the one id that stands for all of them.

A place is the id of the last event that was read in a shard. A broker of one shard has one place,
and its text is that id. A broker of several has one for each, joined into an id of the shard ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.model.events import EventId

_PLACE = re.compile(r"(.+):(\w+):(\d{1,18}):(-?\d{1,18})\Z", re.ASCII)
_SEVERAL = "*"  # no shard is named so


def is_joined(id: EventId) -> bool:
    """Whether an id stands for places in several shards."""
    return id.shard == _SEVERAL


def joined(places: Mapping[str, EventId]) -> EventId:
    """One id for the places of several shards."""
    # An index may be -1: such a place has no text that EventId could take apart again.
    text = "+".join(
        f"{place.generation}:{place.shard}:{place.entry}:{place.index}" for place in places.values()
    )
    return EventId(text, _SEVERAL, 0, 0)


def places_of(id: EventId) -> dict[str, EventId]:
    """By shard, the places that an id stands for. What cannot be read is left out."""
    if not is_joined(id):
        return {id.shard: id}
    found: dict[str, EventId] = {}
    for text in id.generation.split("+"):
        match = _PLACE.match(text)
        if match is not None:
            generation, shard, entry, index = match.groups()
            found[shard] = EventId(generation, shard, int(entry), int(index))
    return found


def reached(places: Mapping[str, EventId], id: EventId) -> bool:
    """Whether a reader at these places has this event, or one behind it, already."""
    place = places.get(id.shard)
    return (
        place is not None
        and place.generation == id.generation
        and (id.entry, id.index) <= (place.entry, place.index)
    )


def advance(places: dict[str, EventId], id: EventId) -> bool:
    """Move the place of the id's shard up to it; False if it was there or beyond already."""
    if reached(places, id):
        return False
    places[id.shard] = id
    return True
