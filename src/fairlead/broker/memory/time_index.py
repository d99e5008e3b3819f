"""Things that are due at some time, in order, with cheap removal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)  # strings, or tuples of strings: anything that sorts

_SLACK = 64  # stale entries that are not worth a rebuild


class TimeIndex(Generic[K]):
    """Keys by time; equal times go by key. All in O(log n), amortized.

    What comes in order, as nearly all does, stands in a line; only what is earlier than its end
    goes to a heap. Removal only forgets the key; its entry is skipped later. A rebuild keeps the
    entries within twice the living ones, so that what is set and dropped again and again cannot
    pile up.
    """

    __slots__ = ("_heap", "_line", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[float, K]] = []
        self._line: deque[tuple[float, K]] | None = None  # until it is needed: many never are
        self._times: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: K) -> bool:
        return key in self._times

    def __iter__(self) -> Iterator[K]:
        return iter(self._times)

    def set(self, key: K, at: float) -> None:
        """Put the key at this time, whatever its time was before."""
        times, line, heap, entry = self._times, self._line, self._heap, (at, key)
        times[key] = at
        if line is None:
            line = self._line = deque()
        if line and entry < line[-1]:
            heappush(heap, entry)
        else:
            line.append(entry)
        if len(line) + len(heap) > 2 * len(times) + _SLACK:
            self._line = deque(sorted((time, key) for key, time in times.items()))
            self._heap = []

    def get(self, key: K) -> float | None:
        """The key's time, or None."""
        return self._times.get(key)

    def discard(self, key: K) -> None:
        """Forget the key, if it is there."""
        self._times.pop(key, None)

    def first(self) -> tuple[float, K] | None:
        """The earliest entry, left in place."""
        times, line, heap = self._times, self._line, self._heap
        while line and times.get(line[0][1]) != line[0][0]:
            line.popleft()
        while heap and times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        if line and not (heap and heap[0] < line[0]):
            return line[0]
        return heap[0] if heap else None

    def firsts(self, most: int, now: float) -> list[K]:
        """Up to ``most`` of the earliest keys whose time has come; they stay where they are."""
        found: list[tuple[float, K]] = []
        while len(found) < most and (entry := self.first()) is not None and entry[0] <= now:
            self.pop()
            found.append(entry)
        for at, key in found:
            self.set(key, at)
        return [key for _, key in found]

    def pop(self) -> K | None:
        """Take out the earliest key, due or not."""
        entry = self.first()
        if entry is None:
            return None
        if self._line and self._line[0] is entry:
            self._line.popleft()
        else:
            heappop(self._heap)
        key = entry[1]
        del self._times[key]
        return key

    def pop_due(self, now: float) -> K | None:
        """Take out the earliest key if its time has come."""
        entry = self.first()
        return self.pop() if entry is not None and entry[0] <= now else None
