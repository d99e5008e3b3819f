"""What handles ask the ledger about tasks and flows that the broker does not know, or not yet."""

from __future__ import annotations

import msgspec

from fairlead.ledger.pool import Executor
from fairlead.ledger.rows import made
from fairlead.ledger.statements import statement

__all__ = (
    "Standing",
    "cancel_pending",
    "cancel_pending_flow",
    "flow_standing",
    "task_standing",
)


class Standing(msgspec.Struct, frozen=True):
    """What stands in the row of a task or a flow, as far as a handle needs it."""

    state: str
    reason: str = ""
    stands_for: str = ""
    error_type: str = ""
    error: str = ""


async def task_standing(ledger: Executor, *, id: str, tenant: str) -> Standing | None:
    """Return what stands in the row of a task; None if there is none."""
    answer = await ledger.run(statement("task_standing"), {"id": id, "tenant": tenant})
    return made(Standing, answer.rows[0]) if answer.rows else None


async def flow_standing(ledger: Executor, *, id: str, tenant: str) -> Standing | None:
    """Return what stands in the row of a flow; None if there is none."""
    answer = await ledger.run(statement("flow_standing"), {"id": id, "tenant": tenant})
    return made(Standing, answer.rows[0]) if answer.rows else None


async def cancel_pending(ledger: Executor, *, id: str, tenant: str) -> int | None:
    """Cancel a task that no manager has claimed; how often it was sent before, None if not done."""
    answer = await ledger.run(statement("cancel_pending"), {"id": id, "tenant": tenant})
    return answer.rows[0][0] if answer.rows else None


async def cancel_pending_flow(ledger: Executor, *, id: str, tenant: str) -> int | None:
    """Do the same with a flow."""
    answer = await ledger.run(statement("cancel_pending_flow"), {"id": id, "tenant": tenant})
    return answer.rows[0][0] if answer.rows else None
