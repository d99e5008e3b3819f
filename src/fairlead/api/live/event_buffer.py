"""The events of the last while, so that a client that comes back need not ask the broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from fairlead.client.event_stream import Heard
from fairlead.model.event_places import advance, places_of, reached
from fairlead.model.events import EventId

_MOST = 5_000


class EventBuffer:
    """The last events in the order of the stream, without a gap between them."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: deque[Heard] = deque()
        self._base: dict[str, EventId] | None = None  # by shard, the place before the first

    def begin(self, place: EventId) -> None:
        """Forget everything: what comes next stands behind this place."""
        self._kept.clear()
        self._base = places_of(place)

    def add(self, heard: Iterable[Heard]) -> None:
        """Add events; the oldest ones go."""
        if self._base is None:
            return
        self._kept.extend(heard)
        while len(self._kept) > self._most:
            advance(self._base, self._kept.popleft().event.id)

    def behind(self, places: Mapping[str, EventId]) -> list[Heard] | None:
        """The events behind some places; None if the buffer does not reach back so far."""
        base = self._base
        if base is None or not all(reached(places, each) for each in base.values()):
            return None
        return [each for each in self._kept if not reached(places, each.event.id)]
