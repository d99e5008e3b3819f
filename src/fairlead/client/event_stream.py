"""Events as they happen, for programs: ``async for event in app.events(): ...``."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from fairlead.broker.repeats import Limit, Rounds, repeated
from fairlead.client.client import Client
from fairlead.client.event_info import (
    GAP,
    EventDetails,
    EventFilter,
    EventInfo,
    event_text,
    parse_event_text,
    types_of,
)
from fairlead.model.errors import BrokerError, InvalidOption, Refused
from fairlead.model.event_places import advance, is_joined, joined, places_of
from fairlead.model.events import Event, EventId
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.runtime.component import Outage

NOW = "now"
OLDEST = "oldest"
POLL = 5.0  # seconds that one call waits for the next event
_LIMIT = 500  # events of one call
_AT_ONCE = 0.01  # seconds: a wait that ends sooner, with nothing, was none
_PAUSE = 0.05  # seconds before the next try after such a one
_CONFIRM = 1.0  # seconds after which a named reader's place is kept, also inside of a page


class EventStream:
    """An async iterator over the events that a filter admits, from a place on and for ever.

    ``after`` is the id of the last event that was seen, ``now`` or ``oldest``. Without it a
    ``reader`` goes on where it was (the first time with the oldest event), and everybody else
    begins now. A reader with a name confirms an event by asking for the next one: what it had not
    finished when its process died comes again.

    While the broker is away it waits, for ``patience`` seconds or (None) for ever, and then reads
    on from its place. An event of the type ``stream.gap`` says that some before it are missing.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        wanted: EventFilter,
        *,
        after: str | None = None,
        reader: str | None = None,
        patience: float | None = None,
        details: EventDetails | None = None,
    ) -> None:
        """``client`` is called with the first event: it belongs to the loop that runs then."""
        place, seen = None, None
        if after is not None and after not in (NOW, OLDEST):
            place, seen = parse_event_text(after)
        if reader is not None and after in (NOW, OLDEST):
            raise InvalidOption("after", after, "left out, or an id, for a reader with a name")
        from_now = after == NOW or (after is None and reader is None)

        def begin() -> tuple[EventReader, EventDetails]:
            mine = client()
            return EventReader(
                mine, after=place, seen_failed=seen, reader=reader, from_now=from_now
            ), details or EventDetails(mine)

        self._begin = begin
        self._wanted = wanted
        self._named = reader is not None
        self._patience = patience
        self._opened: tuple[EventReader, EventDetails] | None = None
        self._page: HeardPage | None = None  # that was read, until its events are ready
        self._ready: deque[EventInfo] = deque()
        self._end = ""  # the place behind all that is ready
        self._handed = ""  # the id of the event that was handed out last, until it is finished
        self._place = ""
        self._confirmed = ""  # the place that the broker keeps for a reader with a name
        self._confirmed_at = 0.0  # by the loop's clock
        self._closed = False
        self._outage = Outage("events")

    @property
    def place(self) -> str:
        """The id behind which the stream reads on when it is opened anew with ``after``.

        All before it was handed out and finished: the next event was asked for, or ``finish`` was
        called. Empty before the stream has begun.
        """
        return self._place

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventInfo:
        self.finish()
        if self._closed:
            raise StopAsyncIteration
        # Between two pages it is the next page that confirms.
        if self._ready and asyncio.get_running_loop().time() - self._confirmed_at >= _CONFIRM:
            await self.confirm()
        while not self._ready:
            await self._more()
        event = self._ready.popleft()
        self._handed = event.id
        return event

    async def start(self) -> None:
        """Take the place to read on from: events after this call are not missed."""
        if not self._end:
            await self._more(timeout=0.0)

    def finish(self) -> None:
        """Take note that the event that was handed out last is finished."""
        if self._handed:
            self._place = self._handed if self._ready else self._end
            self._handed = ""

    async def confirm(self) -> None:
        """Keep the place of a named reader behind what is finished."""
        if self._named and self._place != self._confirmed and self._opened is not None:
            place, _ = parse_event_text(self._place)
            await self._opened[0].confirm(place)
            self._confirmed = self._place
            self._confirmed_at = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """End the stream. What was handed out last counts as finished."""
        if not self._closed:
            self._closed = True
            self.finish()
            await self.confirm()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
        else:  # the last event was not finished
            self._closed = True

    async def _more(self, timeout: float | None = None) -> None:
        if self._opened is None:
            self._opened = self._begin()
        reader, details = self._opened
        limit = math.inf
        if self._patience is not None:
            limit = asyncio.get_running_loop().time() + self._patience

        async def read(_: Rounds) -> HeardPage:
            return await (reader.follow() if timeout is None else reader.read(timeout))

        # Whoever is cancelled, or gives up, on the way finds the page here when it goes on.
        if self._page is None:
            self._page = await repeated(read, Limit(limit), failed=self._failed)
        page = self._page
        self._confirmed_at = asyncio.get_running_loop().time()
        events = await repeated(
            lambda _: described(page.heard, self._wanted, details),
            Limit(limit),
            failed=self._failed,
        )
        self._outage.over()
        self._page = None
        if page.gap:
            events.insert(0, _gap(page))
        self._end = event_text(page.place, "")
        self._ready.extend(events)
        if not events:
            self._place = self._end
        elif not self._place:
            self._place = event_text(page.begin, "")

    def _failed(self, error: BrokerError) -> None:
        if error.passes:
            self._outage.failed(error)


async def described(
    heard: list[Heard], wanted: EventFilter, details: EventDetails
) -> list[EventInfo]:
    """The events that are wanted, with what was looked up for them.

    Raises if names are wanted and cannot be asked for: nobody could say which events are left out.
    """
    for each in heard:
        details.hear(each.event)
    chosen = [
        (each, type) for each in heard for type in each.types if wanted.admits(each.event, type)
    ]
    await details.look_up(each.event for each in heard if wanted.awaits(each.event))
    await details.look_up((each.event for each, _ in chosen), needed=wanted.name is not None)
    infos = [details.info(each, type) for each, type in chosen]
    return [info for info in infos if wanted.name is None or info.task == wanted.name]


def _gap(page: HeardPage) -> EventInfo:
    return EventInfo(id=event_text(page.begin, GAP), type=GAP, at=page.now)


# -- page by page ----------------------------------------------------------------------------------


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
            page = await self._client.store.events(latest=True)
            self._since = page.now
            self._began = frozenset(() if page.last is None else places_of(page.last))
        else:
            page = await self._client.store.events(
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
        await self._client.store.events(after=place, reader=self._reader, limit=1)

    async def follow(self, timeout: float = POLL) -> HeardPage:
        """``read``; raises ``Refused`` if the broker was closed, where it would not wait."""
        clock = asyncio.get_running_loop().time
        began = clock()
        page = await self.read(timeout)
        is_empty = not page.heard and not page.gap  # a page with anything in it must not get lost
        if timeout > _AT_ONCE and is_empty and clock() - began < _AT_ONCE:
            if (await self._client.store.snapshot(DEFAULT_QUEUE, tenants=False)).shutdown:
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
