"""Which tasks are in the spool, and what became of those that the broker did not take as they were.

As far as this process knows: what a dead process left is in its records, not here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from fairlead.broker.dependency_order import depending
from fairlead.broker.requests import Submission
from fairlead.model.options import Dependency

_MOST_ENDS = 100_000  # refused tasks, and those that others stand for, that are remembered


class SpooledIds:
    """Ids by what is known of them. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}  # an id may be appended more than once
        self._refused: dict[str, str] = {}  # why
        self._holders: dict[str, str] = {}  # the task that stands for it

    def __contains__(self, id: str) -> bool:
        return id in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def any(self, ids: Iterable[str]) -> bool:
        """Whether one of these is in the spool."""
        return bool(self._counts) and any(id in self._counts for id in ids)

    def add(self, submissions: Iterable[Submission]) -> None:
        """Note that these are about to be in the spool."""
        with self._lock:
            for each in submissions:
                _count(self._counts, each.message.id, 1)

    def discard(self, submissions: Iterable[Submission]) -> None:
        """Note that the broker has these, or that they are nowhere."""
        with self._lock:
            for each in submissions:
                _count(self._counts, each.message.id, -1)

    def settled(self, submissions: Sequence[Submission]) -> list[Submission]:
        """Return submissions whose dependencies are what became of them on the way out of here.

        One that another task stands for is that task. One that was refused is not known: a handle
        that the broker does not know would count as completed.
        """
        if not (self._refused or self._holders):
            return list(submissions)
        return [depending(each, tuple(map(self._settled, each.depends_on))) for each in submissions]

    def _settled(self, dependency: Dependency) -> Dependency:
        holder = self._holders.get(dependency.id)
        if holder is not None:
            return Dependency(holder, known=True)
        return Dependency(dependency.id) if dependency.id in self._refused else dependency

    def refuse(self, id: str, why: str) -> None:
        """Note that the broker will never take it."""
        with self._lock:
            _put(self._refused, id, why)

    def expire(self, submission: Submission, why: str) -> None:
        """Note that a record of it was given up; if it was the last, the broker never gets it."""
        id = submission.message.id
        with self._lock:
            _count(self._counts, id, -1)
            if id not in self._counts:
                _put(self._refused, id, why)

    def refused(self, id: str) -> str | None:
        """Return why the broker did not take it; None if it may have."""
        return self._refused.get(id)

    def replace(self, id: str, holder: str) -> None:
        """Note that another task stands for it, which has its unique key."""
        with self._lock:
            _put(self._holders, id, holder)

    def holder(self, id: str) -> str | None:
        """Return the task that stands for it; None if it is a task itself."""
        return self._holders.get(id)


def _count(table: dict[str, int], id: str, more: int) -> None:
    left = table.get(id, 0) + more
    if left > 0:
        table[id] = left
    else:
        table.pop(id, None)


def _put(table: dict[str, str], id: str, value: str) -> None:
    table[id] = value
    while len(table) > _MOST_ENDS:
        del table[next(iter(table))]
