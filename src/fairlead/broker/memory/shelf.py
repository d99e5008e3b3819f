"""Finished tasks of one queue, kept by age, count and bytes, whichever comes first."""

from __future__ import annotations

import math

from fairlead.broker.memory.agenda import Agenda
from fairlead.broker.memory.records import Task

__all__ = ("Shelf",)

_OVERHEAD = 100  # bytes that a kept task counts for beside its contents


class Shelf:
    """The next to be forgotten is the one whose time is over first."""

    def __init__(self, *, keep: float, count: float = math.inf, size: int) -> None:
        self.keep = keep  # seconds
        self.max_count = count
        self.max_bytes = size
        self.bytes = 0
        self._agenda: Agenda[str] = Agenda()

    def __len__(self) -> int:
        return len(self._agenda)

    def __contains__(self, id: str) -> bool:
        return id in self._agenda

    def add(self, task: Task, now: float, keep: float | None) -> None:
        """Keep a finished task for the shelf's time, or for its own."""
        task.expires_at = now + (self.keep if keep is None else keep)
        message, error = task.message, task.error
        size = _OVERHEAD + len(message.body) + len(message.trace)
        for part in (task.result, task.progress, task.checkpoint):
            if part is not None:
                size += len(part)
        if error is not None:
            size += len(error.message) + len(error.traceback)
        task.size = size
        self.bytes += size
        self._agenda.set(task.id, task.expires_at)

    def remove(self, task: Task) -> None:
        """Take a task off, because it is put to work again or forgotten."""
        self._agenda.discard(task.id)
        self.bytes -= task.size
        task.size = 0
        task.expires_at = None

    def pop_overdue(self, now: float) -> str | None:
        """The id of the next task to forget, if there is one too many; ``remove`` must follow."""
        agenda = self._agenda
        if len(agenda) > self.max_count or self.bytes > self.max_bytes:
            return agenda.pop()
        return agenda.pop_due(now)
