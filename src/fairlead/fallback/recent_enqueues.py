"""What the broker has accepted lately: a failover, or an emptied server, may have lost it.

Batches are kept, not tasks: so it costs next to nothing. They live in memory and end with the
process. A call stays until its server was seen to be the same one a minute later: an outage,
however long, makes none of them too old to be compared.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fairlead.broker.requests import Receipt, Submission

_SECONDS = 60.0
_MOST_BYTES = 64 * 1024 * 1024
_MOST_TASKS = 200_000
_OVERHEAD = 500  # bytes that a task takes in memory beside its body
_NONE: frozenset[int] = frozenset()


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """A call that the broker has answered, and when that was."""

    at: float  # by the monotonic clock, with which it is forgotten
    shard: str
    incarnation: str
    number: int
    submissions: Sequence[Submission]
    refused: frozenset[int]  # the places of those that it did not take, or took for others
    size: int  # bytes, about


class RecentEnqueues:
    """The calls of the last minute, of all loops and threads of a process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[str, deque[Acknowledged]] = {}  # by shard, the oldest first
        self._bytes = self._tasks = 0

    def __len__(self) -> int:
        return self._tasks

    def add(
        self,
        shard: str,
        incarnation: str,
        number: int,
        submissions: Sequence[Submission],
        receipts: Sequence[Receipt],
    ) -> None:
        """Keep a call until ``seen`` forgets it, or for as long as there is room."""
        tasks = tuple(submissions)  # of what the garbage collector does not track: it is left alone
        size = _OVERHEAD * len(tasks)
        for task in tasks:
            size += len(task.message.body)
        now = self._clock()
        refused = _NONE
        for receipt in receipts:
            if receipt.code != "accepted":
                refused = _refused(tasks, receipts)
                break
        made = Acknowledged(now, shard, incarnation, number, tasks, refused, size)
        with self._lock:
            calls = self._calls.get(shard)
            if calls is None:
                calls = self._calls[shard] = deque()
            calls.append(made)
            self._bytes += size
            self._tasks += len(tasks)
            while self._bytes > _MOST_BYTES or self._tasks > _MOST_TASKS:
                self._drop(min(filter(None, self._calls.values()), key=lambda each: each[0].at))

    def calls(self, shard: str) -> list[Acknowledged]:
        """Return the calls that went to a shard, the oldest first."""
        with self._lock:
            return list(self._calls.get(shard, ()))

    def now(self) -> float:
        """Return the moment by the clock of the calls."""
        return self._clock()

    def age(self, call: Acknowledged) -> float:
        """Return how many seconds ago a call was answered."""
        return self._clock() - call.at

    def seen(self, shard: str, at: float) -> None:
        """Forget the calls of a shard that it still had a minute later.

        ``at`` is the moment at which its history was compared, and what it lost was removed.
        """
        with self._lock:
            calls = self._calls.get(shard)
            while calls and calls[0].at < at - _SECONDS:
                self._drop(calls)

    def remove(self, gone: Iterable[Acknowledged]) -> None:
        """Forget calls."""
        found = set(map(id, gone))
        with self._lock:
            for shard, calls in self._calls.items():
                self._calls[shard] = deque(each for each in calls if id(each) not in found)
            kept = [each for calls in self._calls.values() for each in calls]
            self._bytes = sum(each.size for each in kept)
            self._tasks = sum(len(each.submissions) for each in kept)

    def _drop(self, calls: deque[Acknowledged]) -> None:
        gone = calls.popleft()
        self._bytes -= gone.size
        self._tasks -= len(gone.submissions)


def _refused(tasks: Sequence[Submission], receipts: Sequence[Receipt]) -> frozenset[int]:
    """Return the places of those that the broker does not have; another of their unique key may."""
    return frozenset(
        place
        for place, each in enumerate(receipts)
        if each.code != "accepted"
        and not (each.code == "duplicate" and each.id == tasks[place].message.id)
    )
