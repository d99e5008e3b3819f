"""The events of a shard: one entry per call that changed something, capped by bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any, cast

from fairlead.model.events import Event, EventId, EventKind

__all__ = ("Stream",)

_ENTRY_BYTES = 48  # what an entry and an event cost beside their texts: an estimate, stored nowhere
_EVENT_BYTES = 72

#: kind, task, queue, tenant, state, token, attempt, reason
Row = tuple[str, str, str, str, str, int, int, str]


class Stream:
    """Appended to by every verb, read by anyone; readers with a name have their place kept here."""

    def __init__(self, generation: str, shard: str, cap: int) -> None:
        self.generation = generation
        self._shard = shard
        self._cap = cap
        self._entries: deque[tuple[int, float, int, list[Row]]] = deque()
        self._bytes = 0
        self._last = 0  # the number of the newest entry
        self._dropped: EventId | None = None  # the newest event that the cap removed
        self._readers: dict[str, EventId] = {}
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
        self._last += 1
        self._entries.append((self._last, now, size, rows))
        self._bytes += size
        while self._bytes > self._cap and len(self._entries) > 1:
            number, _, size, dropped = self._entries.popleft()
            self._bytes -= size
            self._dropped = self._id(number, len(dropped) - 1)
        return True

    def start(self, reader: str | None, after: EventId | None) -> EventId | None:
        """Where to read on; what ``after`` confirms becomes the named reader's place."""
        if reader is None:
            return after
        if after is not None:
            self._readers[reader] = after
        return self._readers.get(reader)

    def read(self, after: EventId | None, limit: int) -> tuple[list[Event], bool]:
        """Events behind ``after``, and whether some before the first of them are gone."""
        gap = False
        if after is None or after.generation != self.generation:
            gap = after is not None
            after = self._dropped
        elif self._dropped is not None and after < self._dropped:
            gap, after = True, self._dropped
        events: list[Event] = []
        entry, index = (after.entry, after.index) if after is not None else (0, -1)
        # A deque is slow in its middle, but readers are nearly always near its end.
        place = bisect_right(self._entries, entry - 1, key=lambda row: row[0])
        for position in range(place, len(self._entries)):
            number, at, _, rows = self._entries[position]
            for i in range(index + 1 if number == entry else 0, len(rows)):
                if len(events) >= limit:
                    return events, gap
                events.append(self._event(number, i, at, rows[i]))
        return events, gap

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
        return EventId(self.generation, self._shard, entry, index)
