"""Things that are due at some time, in order, with cheap removal."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)  # strings, or tuples of strings: anything that sorts

_SLACK = 64  # stale entries that are not worth a rebuild


class TimeIndex(Generic[K]):
    """Keys by time; equal times go by key. All in O(log n), amortized.

    Removal only forgets the key; its heap entry is skipped later. A rebuild keeps the heap within
    twice the living entries, so that what is set and dropped again and again cannot pile up.
    """

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[float, K]] = []
        self._times: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: K) -> bool:
        return key in self._times

    def __iter__(self) -> Iterator[K]:
        return iter(self._times)

    def set(self, key: K, at: float) -> None:
        """Put the key at this time, whatever its time was before."""
        self._times[key] = at
        heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def get(self, key: K) -> float | None:
        """The key's time, or None."""
        return self._times.get(key)

    def discard(self, key: K) -> None:
        """Forget the key, if it is there."""
        self._times.pop(key, None)

    def first(self) -> tuple[float, K] | None:
        """The earliest entry, left in place."""
        heap, times = self._heap, self._times
        while heap:
            at, key = heap[0]
            if times.get(key) == at:
                return heap[0]
            heappop(heap)
        return None

    def firsts(self, most: int, now: float) -> list[K]:
        """Up to ``most`` of the earliest keys whose time has come; they stay where they are."""
        found: list[tuple[float, K]] = []
        while len(found) < most and (entry := self.first()) is not None and entry[0] <= now:
            found.append(heappop(self._heap))
            del self._times[entry[1]]
        for at, key in found:
            self._times[key] = at
            heappush(self._heap, (at, key))
        return [key for _, key in found]

    def pop(self) -> K | None:
        """Take out the earliest key, due or not."""
        heap, times = self._heap, self._times
        while heap:
            at, key = heappop(heap)
            if times.get(key) == at:
                del times[key]
                return key
        return None

    def pop_due(self, now: float) -> K | None:
        """Take out the earliest key if its time has come."""
        entry = self.first()
        return self.pop() if entry is not None and entry[0] <= now else None
