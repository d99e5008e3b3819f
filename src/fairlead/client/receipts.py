"""What the broker's answer to a submission means for the caller."""

from __future__ import annotations

from fairlead.broker.verbs import Receipt, Submission
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    Fenced,
    QueueFull,
    Refused,
    UnknownDependency,
)

__all__ = ("about", "error_of", "raise_for")


def about(error: BrokerError, submission: Submission) -> None:
    """Say which task an error is about: the caller has no handle, and may have no id."""
    message = submission.message
    error.ids = (message.id,)
    if isinstance(error, Ambiguous):
        error.add_note(
            f"Task {message.id!r} of tenant {message.tenant!r} may have been accepted; its state "
            "(app.handle) tells. enqueue() again is safe with an id of your own, using(id=...); "
            "otherwise it makes another task."
        )


def raise_for(receipt: Receipt, submission: Submission) -> None:
    """Raise the typed error that a refusal stands for."""
    if receipt.code == "accepted":
        return
    error = error_of(receipt, submission)
    if error is not None:
        if isinstance(error, BrokerError):
            error.ids = (submission.message.id,)
        raise error


def error_of(receipt: Receipt, submission: Submission) -> Exception | None:
    """The typed error that a refusal stands for; None if there is a task."""
    message, fence = submission.message, submission.fence
    match receipt.code:
        case "accepted" | "duplicate":
            return None
        case "conflict":
            return Conflict(message.id)
        case "queue_full":
            return QueueFull(message.queue, receipt.limit)
        case "tenant_full":
            return QueueFull(message.queue, receipt.limit, message.tenant)
        case "tenant_bytes":
            return QueueFull(
                message.queue, receipt.limit, message.tenant, setting="max_tenant_bytes"
            )
        case "unknown_dependency":
            return UnknownDependency(message.id, receipt.detail)
        case "fenced":
            return Fenced(fence.id if fence else message.id, fence.token if fence else 0)
        case "closed":
            return Refused("closed", f"the broker is closed; task {message.id!r} was not accepted")
        case "stale":
            return Refused("stale", f"the slot of task {message.id!r} was fired before")
