"""What waits for one client: bounded, and dropped as a whole when the client is too slow."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

from fairlead.api.live.encoded_events import EventBatch
from fairlead.client.event_info import EventFilter
from fairlead.model.events import EventId

MAX_EVENTS = 2_000  # that wait for one client, unless one batch has more
MAX_BYTES = 512 * 1024  # and how much that may be

Reason = Literal["slow", "drained", "closed"]


class Ended(Exception):
    """The subscription is over; ``resume`` is the id to read on from, elsewhere or later."""

    def __init__(self, reason: Reason, resume: str) -> None:
        super().__init__(reason)
        self.reason: Reason = reason
        self.resume = resume


class Subscription:
    """A queue between the hub and one client.

    The hub never waits for it: if there is no room, all that waits is dropped and the client is
    told where to read on.
    """

    def __init__(
        self, filters: frozenset[EventFilter], resume: str, joined: EventId | None = None
    ) -> None:
        """``joined`` is the place behind which the hub hands on what happens."""
        self.filters = filters
        self.joined = joined
        self.resume = resume  # the last id that the client has, or where it began
        self._waiting: deque[EventBatch] = deque()
        self._held: deque[EventBatch] | None = deque()  # comes after what is being caught up with
        self._events = 0
        self._bytes = 0
        self.taken = 0  # batches, so that it can be seen whether the client goes on reading
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self.ended: Reason | None = None
        self.over = asyncio.Event()  # with ``ended``, for whoever waits for something else

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._bytes

    @property
    def is_behind(self) -> bool:
        """Whether more than half of its room is taken."""
        return self._events > MAX_EVENTS // 2 or self._bytes > MAX_BYTES // 2

    def put(self, events: EventBatch) -> None:
        """Add what just happened; the hub calls this, and goes on at once."""
        if self.ended is not None:
            return
        if self._events and not self._has_room(events):
            self.end("slow")
            return
        self._count(events, 1)
        if self._held is not None:
            self._held.append(events)
        else:
            self._waiting.append(events)
            self._news.set()

    async def push(self, events: EventBatch) -> None:
        """Add something from before the present, as soon as there is room. Raises ``Ended``."""
        while self._waiting and not self._has_room(events):
            self._room.clear()
            await self._room.wait()
            self._check()
        self._check()
        self._count(events, 1)
        self._waiting.append(events)
        self._news.set()

    def go_live(self) -> None:
        """What was held back comes now, and then whatever happens."""
        held, self._held = self._held, None
        if held:
            self._waiting.extend(held)
            self._news.set()

    async def take(self, timeout: float) -> EventBatch | None:
        """The next batch; None if there is none in time. Raises ``Ended``."""
        if not self._waiting:
            self._news.clear()
            self._check()
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return None
        self._check()
        events = self._waiting.popleft()
        self.taken += 1
        self._count(events, -1)
        self._room.set()
        return events

    def sent(self, id: str) -> None:
        """The client has everything up to this id."""
        if id:
            self.resume = id

    def end(self, reason: Reason) -> None:
        """Drop what waits; whoever takes or pushes learns why."""
        if self.ended is None:
            self.ended = reason
            self._waiting.clear()
            self._held = None
            self._events = self._bytes = 0
            self._news.set()
            self._room.set()
            self.over.set()

    def _check(self) -> None:
        if self.ended is not None:
            raise Ended(self.ended, self.resume)

    def _has_room(self, events: EventBatch) -> bool:
        return (
            self._events + len(events.items) <= MAX_EVENTS
            and self._bytes + events.size <= MAX_BYTES
        )

    def _count(self, events: EventBatch, sign: int) -> None:
        self._events += sign * len(events.items)
        self._bytes += sign * events.size
