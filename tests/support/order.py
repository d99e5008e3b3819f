"""Which tests each process runs, and in which order: those that take long come first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import pytest

__all__ = ("Lanes", "seconds_of")

T = TypeVar("T")


def seconds_of(item: pytest.Item) -> float:
    """How long a test takes, as its marker says."""
    return max((marker.args[0] for marker in item.iter_markers("long")), default=0.0)


class Lanes(Generic[T]):
    """Items for several processes: a piece of neighbors for each, which share what they set up.

    Items that take long mostly wait. They have processes of their own, half as many again, which
    begin with the longest. A process that has nothing left takes half of the largest piece, and
    then what is left of the others.
    """

    def __init__(self, items: Sequence[T], seconds: Callable[[T], float], jobs: int) -> None:
        long = sorted((each for each in items if seconds(each)), key=seconds, reverse=True)
        short = [each for each in items if not seconds(each)]
        jobs = min(jobs, len(short))
        self.count = jobs + min((jobs + 1) // 2 or 1, len(long))
        self._long = deque(long)
        self._pieces: list[deque[T]] = []
        for place in range(jobs):
            begin, end = (len(short) * edge // jobs for edge in (place, place + 1))
            self._pieces.append(deque(short[begin:end]))

    def next(self, place: int) -> T | None:
        """Return the next item for a process; None if there is none left."""
        if place < len(self._pieces) and any(self._pieces):
            own = self._pieces[place]
            if not own:
                largest = max(self._pieces, key=len)
                own.extendleft(largest.pop() for _ in range((len(largest) + 1) // 2))
            return own.popleft()
        return self._long.popleft() if self._long else None

    def give_back(self, item: T) -> None:
        """Take back an item that a process did not begin."""
        self._long.appendleft(item)
