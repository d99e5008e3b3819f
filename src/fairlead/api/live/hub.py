"""Reads the broker's stream once for all clients of this process, and only while there are any."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence

from fairlead.api.live.encoded_events import EncodedEvent, EventBatch, encoded, encoded_data
from fairlead.api.live.event_buffer import EventBuffer
from fairlead.api.live.gauges import Gauges
from fairlead.api.live.subscription import Ended, Reason, Subscription
from fairlead.broker.repeats import Limit, Rounds, repeated
from fairlead.client import Client
from fairlead.client.event_info import GAP, EventDetails, EventFilter, event_text, parse_event_text
from fairlead.client.event_stream import EventReader, Heard, HeardPage
from fairlead.model.errors import BrokerError, Unreachable
from fairlead.model.event_places import places_of, reached
from fairlead.model.events import EventId
from fairlead.runtime.component import Outage

_log = logging.getLogger("fairlead.api")

_PATIENCE = 1.5  # seconds for the first read
_FOLLOW = 1.0  # seconds that it waits for clients at most, after each page
_GLANCE = 0.01  # seconds between two looks at how far they are
_LINGER = 10.0  # seconds that it goes on when the last client has left: most come back at once
_CATCHING = 4  # clients that read the past from the broker at a time
_AT_ONCE = 500  # events of the past that are looked up together
_BATCH = 100  # events in one batch: what a slow client holds beside its queue is one of these

Filters = frozenset[EventFilter]
Admitted = tuple[Heard, str, set[str | None] | None]  # an event, its type, names of tasks
#: By event, type, and whether it may name its worker.
Made = dict[tuple[int, str, bool], EncodedEvent]


class Hub:
    """The clients of one process, by what they want."""

    def __init__(
        self,
        client: Callable[[], Client],
        *,
        is_drained: Callable[[], bool] = lambda: False,
        linger: float = _LINGER,
    ) -> None:
        """``client`` is called on the loop that serves the clients."""
        self._client = client
        self._is_drained = is_drained
        self._linger = linger
        self._groups: dict[Filters, set[Subscription]] = {}
        self._begin = asyncio.Lock()
        self._catching = asyncio.Semaphore(_CATCHING)
        self._buffer = EventBuffer()
        self._place: EventId | None = None  # behind all that was handed on
        self._details: EventDetails | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._gauges = Gauges(client, self._groups)

    @property
    def clients(self) -> int:
        """How many there are."""
        return sum(map(len, self._groups.values()))

    @property
    def is_reading(self) -> bool:
        """Whether the broker is being read."""
        return self._task is not None

    # -- clients --------------------------------------------------------------------------------

    async def join(self, filters: Filters, after: str | None = None) -> Subscription:
        """Add a client: it gets what happens from now on, or behind the id ``after``.

        The caller goes on with ``feed``. Raises ``BrokerError`` if the place to begin with cannot
        be read in time.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                place = await self._reading()
        except TimeoutError:
            raise Unreachable("the broker did not answer in time") from None
        subscription = Subscription(filters, after or event_text(place, ""), place)
        self._add(subscription)
        return subscription

    async def feed(self, subscription: Subscription, after: str | None = None) -> None:
        """Hand over a snapshot and what lies behind ``after``, then let the present follow.

        Runs beside whoever takes from the subscription, because it waits for room. What goes wrong
        ends the subscription, which says so.
        """
        try:
            id = subscription.resume if after is None else ""  # not a place to read on from yet
            for tenant, queue in {(each.tenant, each.queue) for each in subscription.filters}:
                item = await self._gauges.snapshot(tenant, queue, id)
                await subscription.push(EventBatch([item]))
            if after is not None and subscription.joined is not None:
                # Up to where it joined, not to where the hub is by now: the rest is held for it.
                await self._hand_over(subscription, after, places_of(subscription.joined))
            subscription.go_live()
        except Ended:
            return
        except BrokerError:
            subscription.end("closed")

    def change(self, subscription: Subscription, filters: Filters) -> None:
        """Let a client have other events from now on."""
        self._remove(subscription)
        subscription.filters = filters
        self._add(subscription)

    def leave(self, subscription: Subscription) -> None:
        """A client is gone."""
        subscription.end("closed")
        self._remove(subscription)
        if not self._groups and self._task is not None and self._leaving is None:
            loop = asyncio.get_running_loop()
            seconds = 0.0 if self._is_drained() else self._linger
            self._leaving = loop.call_later(seconds, self._stop_if_idle)

    def end_all(self, reason: Reason) -> None:
        """Tell all clients that it is over, here."""
        for subscription in self._all():
            subscription.end(reason)

    async def close(self) -> None:
        """End all clients and stop reading."""
        self.end_all("drained")
        task = self._stop()
        if task is not None:
            await asyncio.wait([task])
        await self._gauges.stop()

    def _all(self) -> list[Subscription]:
        return [each for group in self._groups.values() for each in group]

    def _add(self, subscription: Subscription) -> None:
        self._groups.setdefault(subscription.filters, set()).add(subscription)
        self._gauges.wake()

    def _remove(self, subscription: Subscription) -> None:
        group = self._groups.get(subscription.filters, set())
        group.discard(subscription)
        if not group:
            self._groups.pop(subscription.filters, None)

    # -- the present ----------------------------------------------------------------------------

    async def _reading(self) -> EventId:
        """Begin to read, unless it was begun; the place behind all that was handed on."""
        async with self._begin:
            if self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
            if self._task is None or self._place is None:
                client = self._client()
                reader = EventReader(client, from_now=True)
                page = await reader.read(0.0)
                self._place = page.place
                self._buffer.begin(page.place)
                self._details = self._details or EventDetails(client)
                self._task = asyncio.create_task(
                    self._follow(reader, self._details), name="event hub"
                )
                self._task.add_done_callback(self._ended)
            return self._place

    async def _follow(self, reader: EventReader, details: EventDetails) -> None:
        outage = Outage("event hub")

        async def read(_: Rounds) -> HeardPage:
            return await reader.follow()

        while True:
            page = await repeated(read, Limit(math.inf), failed=outage.failed)
            outage.over()
            await self._deliver(page, details)
            await self._let_follow()

    async def _deliver(self, page: HeardPage, details: EventDetails) -> None:
        by_tenant: dict[str, list[Heard]] = {}
        for each in page.heard:
            details.hear(each.event)
            by_tenant.setdefault(each.event.tenant, []).append(each)

        def admitted(filters: Filters) -> list[Admitted]:
            tenant = _only_tenant(filters)
            heard = page.heard if tenant is None else by_tenant.get(tenant, [])
            return _admitted(heard, filters)

        wanted = {filters: admitted(filters) for filters in self._groups}
        await details.look_up(each.event for some in wanted.values() for each, _, _ in some)
        # Without a pause from here on: a client that joins stands before all of it or behind.
        if page.gap:
            self._gap(page)
        items: Made = {}
        for filters, group in self._groups.items():
            some = wanted[filters] if filters in wanted else admitted(filters)  # it came just now
            for events in _batches(_items(some, filters, details, items)):
                for subscription in group:
                    subscription.put(events)
        if page.gap:
            self._buffer.begin(page.place)
        else:
            self._buffer.add(page.heard)
        self._place = page.place

    async def _let_follow(self) -> None:
        """Wait a moment if most clients are behind and read on: then it is us who are too fast.

        A client that does not read, or a few that read slowly, hold nobody up.
        """
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        ends = clock() + _FOLLOW
        while clock() < ends:
            everybody = self._all()
            behind = {each: each.taken for each in everybody if each.is_behind}
            if 2 * len(behind) < len(everybody) or not behind:
                return
            await asyncio.sleep(_GLANCE)
            moving = sum(each.taken > taken for each, taken in behind.items())
            if 2 * moving < len(everybody):
                return

    def _gap(self, page: HeardPage) -> None:
        events = EventBatch([_gap(page)])
        for subscription in self._all():
            subscription.put(events)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, BrokerError):
            _log.error("the hub of events failed", exc_info=error)
        self.end_all("closed")  # whoever comes next begins anew

    def _stop_if_idle(self) -> None:
        self._leaving = None
        if not self._groups:
            self._stop()

    def _stop(self) -> asyncio.Task[None] | None:
        task, self._task = self._task, None
        self._place = None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if task is not None:
            task.cancel()
        return task

    # -- the past -------------------------------------------------------------------------------

    async def _hand_over(
        self, subscription: Subscription, after: str, until: dict[str, EventId]
    ) -> None:
        """What lies behind ``after`` up to ``until``, where the held part begins."""
        place, seen_failed = parse_event_text(after)
        kept = self._buffer.behind(places_of(place))
        if kept is not None:
            old = [_without_seen(each, seen_failed) for each in kept]
            await self._push(subscription, old, until)
            return
        async with self._catching:
            reader = EventReader(self._client(), after=place, seen_failed=seen_failed)
            while True:
                page = await reader.read(0.0)
                if page.gap:
                    await subscription.push(EventBatch([_gap(page)]))
                await self._push(subscription, page.heard, until)
                here = places_of(page.place)
                if all(reached(here, each) for each in until.values()):
                    return
                if not page.count and page.place == page.begin:
                    # A shard is away: what it had until now will not come.
                    if not page.gap:
                        await subscription.push(EventBatch([_gap(page)]))
                    return

    async def _push(
        self, subscription: Subscription, heard: Sequence[Heard], until: dict[str, EventId]
    ) -> None:
        details = self._details
        if details is None:
            raise Ended("closed", subscription.resume)
        past = [each for each in heard if reached(until, each.event.id)]
        for start in range(0, len(past), _AT_ONCE):
            part = past[start : start + _AT_ONCE]
            wanted = _admitted(part, subscription.filters)
            for each in part:
                if each.event.kind == "started":  # older than the present: nothing to forget
                    details.hear(each.event)
            await details.look_up(each.event for each, _, _ in wanted)
            for events in _batches(_items(wanted, subscription.filters, details, {})):
                await subscription.push(events)


def _only_tenant(filters: Filters) -> str | None:
    """The tenant that all of these filters are about, if it is one."""
    tenants = {each.tenant for each in filters}
    return tenants.pop() if len(tenants) == 1 else None


def _admitted(heard: Iterable[Heard], filters: Filters) -> list[Admitted]:
    """What some of the filters admit, and under which names of tasks; None: under any."""
    found: list[Admitted] = []
    for each in heard:
        for type in each.types:
            names = {filter.name for filter in filters if filter.admits(each.event, type)}
            if names:
                found.append((each, type, None if None in names else names))
    return found


def _items(
    admitted: Iterable[Admitted], filters: Filters, details: EventDetails, items: Made
) -> list[EncodedEvent]:
    """The items of events, now that names are known; ``items`` has those that were made already."""
    found: list[EncodedEvent] = []
    open = any(each.workers for each in filters)
    for each, type, names in admitted:
        if names is not None and details.name(each.event) not in names:
            continue
        key = id(each), type, open or each.event.kind != "started"
        item = items.get(key)
        if item is None:
            item = items[key] = encoded(details.info(each, type), workers=key[2])
        found.append(item)
    return found


def _batches(items: Sequence[EncodedEvent]) -> list[EventBatch]:
    return [EventBatch(items[start : start + _BATCH]) for start in range(0, len(items), _BATCH)]


def _without_seen(heard: Heard, seen_failed: EventId | None) -> Heard:
    if heard.event.id != seen_failed:
        return heard
    return Heard(heard.event, heard.place, heard.types[1:])


def _gap(page: HeardPage) -> EncodedEvent:
    return encoded_data(GAP, page.now, {}, event_text(page.begin, GAP))
