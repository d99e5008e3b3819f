"""Where a task is before the broker has it: enqueued in a transaction, or during an outage."""

from enum import StrEnum


class OutboxState(StrEnum):
    """States in front of those of ``State``: the broker does not know the task, or not yet."""

    UNCOMMITTED = "uncommitted"
    """Nobody but the caller's transaction knows it: that is open, or was rolled back."""
    PENDING = "pending"
    """Committed: a manager will send it to the broker when it is due."""
    SPOOLED = "spooled"
    """The broker was away: a spool on this machine has it, and sends it when it is back."""
    REFUSED = "refused"
    """The broker will never take it; the error of its result says why."""
