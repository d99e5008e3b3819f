"""The states of a task, by themselves: commands list them without anything else of the model.

Which may follow which: ``lifecycle.TRANSITIONS``.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ("State",)


class State(StrEnum):
    """Where a task is. One word per thing, everywhere."""

    SCHEDULED = "scheduled"  # due later
    DEFERRED = "deferred"  # waits for dependencies
    QUEUED = "queued"
    RUNNING = "running"  # on loan to a worker, started or about to be
    RETRYING = "retrying"  # failed, due again later
    COMPLETED = "completed"
    DEAD = "dead"  # the dead-letter queue; a reason says why
    CANCELLED = "cancelled"
