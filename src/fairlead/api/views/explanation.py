"""Why a task is not running, as its caller may know it.

To operators all of it. A tenant is told the same reasons, but not how many others wait, run or are
served before it, nor which worker and which host has its task.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fairlead.broker.explanation import Reason
from fairlead.model.safe_repr import one_line

#: Fields that are about the task itself, or about its own tenant.
_OWN = frozenset(
    {
        *("attempts", "deadline_at", "due_at", "error", "finished_at", "queue", "reason"),
        *("started_at", "task", "tasks_ahead", "tenant", "version"),
    }
)
#: Reasons whose sentence tells of others, and what is said in its place.
_TEXTS = {
    "held": "a worker has it in hand, but has not started it yet",
    "queue_full": "its queue runs as many tasks as it may",
    "queue_rate": "its queue begins as many tasks as it may",
    "limiter_full": "limiter {name!r} has no room",
    "limiter_rate": "limiter {name!r} lets no more through for now",
    "breaker_open": "the breaker of limiter {name!r} is open",
    "breaker_half_open": "the breaker of limiter {name!r} is half open, and its probes run",
    "tenants_ahead": "other tenants are served before its own",
    "unknown_task": "no worker of its queue knows task {task!r}",
    "workers_busy": "all workers of its queue are busy",
}


def reasons_for_tenant(reasons: Collection[Reason], own: Collection[str]) -> list[Reason]:
    """The reasons without what tells of others; ``own`` are ids of tasks of the same tenant."""
    return [_reason(reason, own) for reason in reasons]


def _reason(reason: Reason, own: Collection[str]) -> Reason:
    fields = {name: value for name, value in reason.fields.items() if name in _OWN}
    text = reason.text
    if reason.code == "running":
        text = text.partition(", by ")[0]
    elif reason.code == "waits":
        text, fields = _waits(reason, own)
    elif reason.code == "tenant_full" or reason.code == "tenant_rate":
        fields = dict(reason.fields)  # its own limit
    elif reason.code in _TEXTS:
        names = {name: one_line(str(value), 100) for name, value in reason.fields.items()}
        text = _TEXTS[reason.code].format(**{"name": "", "task": "", **names})
        if "limiter" in text:
            fields["name"] = reason.fields.get("name")
    return Reason(code=reason.code, text=text, fields=fields, estimate=reason.estimate)


def _waits(reason: Reason, own: Collection[str]) -> tuple[str, dict[str, Any]]:
    waits = reason.fields.get("waits_for", {})
    known = {id: state for id, state in waits.items() if id in own}
    if not known:
        return "it waits for other tasks", {}
    id, state = next(iter(known.items()))
    return f"it waits for {id} ({state or 'not known here'})", {"waits_for": known}
