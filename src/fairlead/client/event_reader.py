"""Follows the broker's stream of events page by page, and knows its place in every shard."""

from __future__ import annotations

import asyncio

import msgspec

from fairlead.client.client import Client
from fairlead.client.event_info import event_text, types_of
from fairlead.model.errors import Refused
from fairlead.model.event_places import advance, is_joined, joined, places_of
from fairlead.model.events import Event, EventId
from fairlead.model.names import DEFAULT_QUEUE

__all__ = ("POLL", "EventReader", "Heard", "HeardPage")

POLL = 5.0  # seconds that one call waits for the next event
_LIMIT = 500  # events of one call
_AT_ONCE = 0.01  # seconds: a wait that ends sooner, with nothing, was none
_PAUSE = 0.05  # seconds before the next try after such a one


class Heard(msgspec.Struct, frozen=True):
    """An event, what it is called, and the place behind it."""

    event: Event
    place: EventId
    types: tuple[str, ...]

    def id(self, type: str) -> str:
        """The id of this event under one of its names, as clients get it."""
        return event_text(self.place, type, self.event.id.shard)


class HeardPage(msgspec.Struct, frozen=True, kw_only=True):
    """What one call brought. ``gap``: events before the first of these are missing."""

    now: float  # the broker's time
    heard: list[Heard]
    count: int  # events that came, those among them that were read before
    gap: bool
    place: EventId  # behind all of them
    begin: EventId  # before the first


class EventReader:
    """Reads on from a place, from now, or as a reader whose place the broker keeps.

    After a gap the broker begins with the oldest event that it keeps; what was read before is left
    out, so a promoted server repeats nothing. A shard that is away keeps its place.
    """

    def __init__(
        self,
        client: Client,
        *,
        after: EventId | None = None,
        seen_failed: EventId | None = None,
        reader: str | None = None,
        from_now: bool = False,
    ) -> None:
        """``seen_failed`` is an event behind ``after`` whose ``task.failed`` was read already."""
        self._client = client
        self._reader = reader
        self._next = after  # where the broker reads on
        self._places = {} if after is None else places_of(after)
        self._seen_failed = seen_failed
        self._from_now = from_now and after is None
        # Of a reader that begins now: when, and in which shards. Of those that were away then, only
        # what happened since is read.
        self._since = 0.0
        self._began: frozenset[str] = frozenset()
        self._several = after is not None and is_joined(after)

    @property
    def place(self) -> EventId | None:
        """The place behind all that was read; None before the first call."""
        if not self._places:
            return None
        return joined(self._places) if self._several else next(iter(self._places.values()))

    async def read(self, timeout: float = POLL) -> HeardPage:
        """Read what there is, or wait for the next event; the page may be empty.

        The call confirms what the last one returned, if the reader has a name.
        """
        if self._from_now and self._next is None:
            page = await self._client.events(latest=True)
            self._since = page.now
            self._began = frozenset(() if page.last is None else places_of(page.last))
        else:
            page = await self._client.events(
                after=self._next, reader=self._reader, limit=_LIMIT, timeout=timeout
            )
        last = page.last
        assert last is not None  # noqa: S101 - every broker says where it stands
        self._several = is_joined(last)
        heard: list[Heard] = []
        begin = self.place
        for event in page.events:
            is_old = event.at < self._since and event.id.shard not in self._began
            if advance(self._places, event.id) and not is_old:
                heard.append(Heard(event, self._here(event), self._types(event)))
        for place in places_of(last).values():
            advance(self._places, place)
        self._next = last
        return HeardPage(
            now=page.now,
            heard=heard,
            count=len(page.events),
            gap=page.gap,
            place=self.place or last,
            begin=begin or (_unknown(last) if page.events else last),
        )

    async def confirm(self, place: EventId) -> None:
        """Keep a place for the named reader, without reading on."""
        await self._client.events(after=place, reader=self._reader, limit=1)

    async def follow(self, timeout: float = POLL) -> HeardPage:
        """``read``; raises ``Refused`` if the broker was closed, where it would not wait."""
        clock = asyncio.get_running_loop().time
        began = clock()
        page = await self.read(timeout)
        is_empty = not page.heard and not page.gap  # a page with anything in it must not get lost
        if timeout > _AT_ONCE and is_empty and clock() - began < _AT_ONCE:
            if (await self._client.snapshot(DEFAULT_QUEUE, tenants=False)).shutdown:
                raise Refused("closed", "the broker was closed while waiting for events")
            await asyncio.sleep(_PAUSE)
        return page

    def _here(self, event: Event) -> EventId:
        return joined(self._places) if self._several else event.id

    def _types(self, event: Event) -> tuple[str, ...]:
        types = types_of(event)
        return types[1:] if event.id == self._seen_failed else types


def _unknown(last: EventId) -> EventId:
    """A place before all that is kept: whoever reads on from it is told of a gap."""
    places = {shard: EventId("?", shard, 0, 0) for shard in places_of(last)}
    return joined(places) if is_joined(last) else next(iter(places.values()))
