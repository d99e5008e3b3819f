"""The states of a task, by themselves: commands list them without anything else of the model.

Which may follow which: ``lifecycle.TRANSITIONS``.
"""

from enum import StrEnum


class State(StrEnum):
    """Where a task is. One word per thing, everywhere."""

    SCHEDULED = "scheduled"
    """Due later."""
    DEFERRED = "deferred"
    """Waits for dependencies."""
    QUEUED = "queued"
    """Waits for its turn."""
    RUNNING = "running"
    """On loan to a worker, started or about to be."""
    RETRYING = "retrying"
    """Failed, due again later."""
    COMPLETED = "completed"
    """Its handler returned."""
    DEAD = "dead"
    """In the dead-letter queue; a reason says why."""
    CANCELLED = "cancelled"
    """Stopped by somebody, before or while it ran."""


#: The members by themselves, for what is done for each task: to look one up in an enum costs more
#: than to call a function.
SCHEDULED, DEFERRED, QUEUED, RUNNING, RETRYING, COMPLETED, DEAD, CANCELLED = State
