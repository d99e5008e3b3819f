"""What a drain does not try again for a while, because the broker refused it."""

from __future__ import annotations

from collections.abc import Iterable

_SHARD = 5.0  # seconds before a shard is tried again that refuses everything
_FIRST, _LONGEST = 8.0, 60.0  # seconds before a task is tried again; longer than that of its shard
_IN_A_ROW = 2  # different tasks that a shard refuses before it counts as refusing everything


class DrainBackoff:
    """Pauses of single tasks, which grow, and of shards.

    One damaged task must not stop what is behind it, and a broker that refuses everything must not
    be asked about each task.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[float, float]] = {}  # until when, and how long that was
        self._shards: dict[str, float] = {}  # until when
        self._in_a_row: dict[str, int] = {}  # tasks that a shard refused, none taken in between

    def hold(self, shard: str, id: str, now: float) -> bool:
        """Return whether a task is not to be tried now."""
        if self._shards.get(shard, 0.0) > now:
            return True
        return bool(self._tasks) and self._tasks.get(id, (0.0, 0.0))[0] > now

    def refused(self, shard: str, id: str, now: float) -> tuple[bool, bool]:
        """Take in that a task was refused by itself.

        Return whether that is news of the task, and whether the shard has to wait from now on.
        """
        last = self._tasks.get(id)
        pause = _FIRST if last is None else min(last[1] * 2.0, _LONGEST)
        self._tasks[id] = now + pause, pause
        row = self._in_a_row[shard] = self._in_a_row.get(shard, 0) + 1
        if row >= _IN_A_ROW:
            self._shards[shard] = now + _SHARD
        return last is None and row < _IN_A_ROW, row == _IN_A_ROW

    def taken(self, shard: str, ids: Iterable[str]) -> None:
        """Take in that a shard took tasks."""
        self._in_a_row.pop(shard, None)
        if self._tasks:
            for id in ids:
                self._tasks.pop(id, None)
