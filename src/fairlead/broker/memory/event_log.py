"""The events of a shard: one entry per call that changed something, capped by bytes."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import islice
from typing import Any, cast

from fairlead.broker import checks
from fairlead.broker.requests import MAX_READERS, READER_SEEN, READER_SILENCE
from fairlead.model.clock import next_number
from fairlead.model.events import Event, EventId, EventKind

_ENTRY_BYTES = 48  # what an entry and an event cost beside their texts: an estimate, stored nowhere
_EVENT_BYTES = 72
_SPENT = 1_000  # entries in front of the first that are not worth moving the others

#: kind, task, queue, tenant, state, token, attempt, reason
Row = tuple[str, str, str, str, str, int, int, str]


class Stream:
    """Appended to by every verb, read by anyone; readers with a name have their place kept here."""

    def __init__(self, generation: str, shard: str, cap: int) -> None:
        self._generation = generation
        self._shard = shard
        self._cap = cap
        self._entries: list[tuple[int, float, int, list[Row]]] = []  # number, time, bytes, rows
        self._first = 0  # index of the oldest entry that is kept; the ones before it are spent
        self._bytes = 0
        self._last = 0  # the number of the newest entry
        self._dropped = self._id(0, 0)  # the newest event that the cap removed, or the beginning
        self._readers: dict[str, tuple[EventId, int]] = {}  # place, and when it was last read
        self.rows: list[Row] = []  # of the call that is being carried out

    def flush(self, now: float) -> bool:
        """Close the entry of this call; false if nothing happened in it."""
        rows = self.rows
        if not rows:
            return False
        self.rows = []
        size = _ENTRY_BYTES + sum(
            [_EVENT_BYTES + len(row[1]) + len(row[3]) + len(row[7]) for row in rows]
        )
        self._last = next_number(self._last, now)
        self._entries.append((self._last, now, size, rows))
        self._bytes += size
        while self._bytes > self._cap and self._first < len(self._entries) - 1:
            number, _, size, dropped = self._entries[self._first]
            self._entries[self._first] = (number, 0.0, 0, [])  # its rows are free at once
            self._first += 1
            self._bytes -= size
            self._dropped = self._id(number, len(dropped) - 1)
        if self._first > _SPENT and self._first > len(self._entries) // 2:
            del self._entries[: self._first]
            self._first = 0
        return True

    def start(self, reader: str | None, after: EventId | None, now: float) -> EventId:
        """Where to read on; what ``after`` confirms becomes the named reader's place."""
        if reader is None:
            return after if after is not None else self._dropped
        if reader not in self._readers and len(self._readers) >= MAX_READERS:
            self._make_room(now)
        was, seen = self._readers.get(reader, (None, 0))
        place = after or was or self._dropped
        if place != was or now - seen >= READER_SEEN:
            self._readers[reader] = place, math.floor(now)
        return place

    def latest(self) -> EventId:
        """Return the place of the newest event."""
        if self._first == len(self._entries):
            return self._dropped
        number, _, _, rows = self._entries[-1]
        return self._id(number, len(rows) - 1)

    def _make_room(self, now: float) -> None:
        """Forget the reader that has been silent for longest, if that is long enough."""
        seen, name = min((seen, name) for name, (_, seen) in self._readers.items())
        if seen >= now - READER_SILENCE:
            raise checks.too_many_readers()
        del self._readers[name]

    def forget(self, reader: str) -> bool:
        """Forget the place of a named reader; false if it had none."""
        return self._readers.pop(reader, None) is not None

    def read(self, after: EventId, limit: int) -> tuple[list[Event], bool, EventId]:
        """Events behind ``after``, whether some before the first are gone, and where to read on."""
        # Of another generation or shard, or of a future that never came: nothing is known of what
        # such a reader has seen, so all that is kept is new to it.
        foreign = (after.generation, after.shard) != (self._generation, self._shard)
        gap = foreign or after < self._dropped
        place = self._place(after.entry)
        # A place is that of an event which was read: one that is not here was lost.
        if after.entry > self._dropped.entry and (
            place == len(self._entries) or self._entries[place][0] != after.entry
        ):
            gap = True
        if gap:
            after = self._dropped
            place = self._place(after.entry)
        events: list[Event] = []
        for number, at, _, rows in islice(self._entries, place, None):
            skipped = after.index + 1 if number == after.entry else 0
            room = limit - len(events)
            events += [
                self._event(number, index, at, rows[index])
                for index in range(skipped, min(len(rows), skipped + room))
            ]
            if len(events) >= limit:
                break
        return events, gap, events[-1].id if events else after

    def _place(self, entry: int) -> int:
        return bisect_left(self._entries, entry, lo=self._first, key=lambda row: row[0])

    def _event(self, number: int, index: int, at: float, row: tuple[Any, ...]) -> Event:
        kind, task, queue, tenant, state, token, attempt, reason = row
        return Event(
            id=self._id(number, index),
            at=at,
            kind=cast(EventKind, str(kind)),
            task=task,
            queue=queue,
            tenant=tenant,
            state=str(state),
            token=token,
            attempt=attempt,
            reason=reason,
        )

    def _id(self, entry: int, index: int) -> EventId:
        return EventId(self._generation, self._shard, entry, index)
