"""The state machine of a task: every broker takes its transitions from ``TRANSITIONS``.

What follows an attempt is decided by ``retries``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.model.message import ErrorInfo
from fairlead.model.states import State as State

DeadReason = Literal[
    "exhausted", "expired", "dependency_failed", "poison", "unroutable", "rejected"
]
DependencyPolicy = Literal["dead", "cancel", "wait", "run"]

FINAL = frozenset({State.COMPLETED, State.DEAD, State.CANCELLED})
WAITING = frozenset({State.SCHEDULED, State.DEFERRED, State.QUEUED, State.RETRYING})

#: What a task may be from its first moment on.
#: ``completed`` and ``dead`` are for one that ran where it was enqueued, while the broker was away.
CREATION = frozenset(
    {State.SCHEDULED, State.DEFERRED, State.QUEUED, State.COMPLETED, State.DEAD, State.CANCELLED}
)

#: From each state, where a task may go next. ``dead`` -> ``queued`` is an operator's requeue, and
#: ``deferred`` behind a final state the retry of a flow; both raise the generation, and within one
#: generation the final states are final. A waiting task is ``completed`` if it ran elsewhere, while
#: the broker was away.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.SCHEDULED: frozenset({State.QUEUED, *FINAL}),
    State.DEFERRED: frozenset({State.SCHEDULED, State.QUEUED, *FINAL}),
    State.QUEUED: frozenset({State.RUNNING, *FINAL}),
    State.RUNNING: frozenset(
        {
            State.COMPLETED,
            State.RETRYING,
            State.DEAD,
            State.CANCELLED,
            State.QUEUED,  # released, or its worker is gone
            State.SCHEDULED,  # snoozed
        }
    ),
    State.RETRYING: frozenset({State.QUEUED, *FINAL}),
    State.COMPLETED: frozenset(),
    State.DEAD: frozenset({State.QUEUED, State.DEFERRED}),
    State.CANCELLED: frozenset({State.DEFERRED}),  # if it was for a dependency that failed
}

#: The same table read backwards: from which states each one can be reached.
ORIGINS: dict[State, frozenset[State]] = {
    to: frozenset(origin for origin, targets in TRANSITIONS.items() if to in targets)
    for to in State
}


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decided move out of ``running``; the broker checks the token and carries it out."""

    id: str
    token: int
    to: State
    delay: float = 0.0  # seconds until due again, for scheduled and retrying
    burn: bool = True  # whether the attempt counts
    reason: str = ""  # why dead, or why handed back
    error: ErrorInfo | None = None
    result: bytes | None = None
    run_time: float = 0.0  # seconds, for the charge on the tenant's share
    keep: float | None = None  # seconds to keep the finished task; None: the queue's retention

    @property
    def ran(self) -> bool:
        """Whether a handler ran at all; otherwise the task goes back as it came."""
        return self.burn or self.run_time > 0.0 or self.reason == "snoozed"


def apply_cancel(to: State, *, cancel_requested: bool) -> State:
    """Where a settled task goes, seeing that somebody may have cancelled it meanwhile.

    An attempt that succeeded is ``completed`` all the same; anything else is ``cancelled``, and a
    cancelled task is never tried again.
    """
    if cancel_requested and to is not State.COMPLETED:
        return State.CANCELLED
    return to


def breaker_vote(settlement: Settlement, to: State) -> bool | None:
    """What an attempt says of what its task depends on: it works, it fails, or (None) nothing.

    ``to`` is where the task goes in the end. Only what the handler did counts: neither an order to
    stop nor the death of a process says anything of a service that several tasks share.
    """
    if to is State.COMPLETED:
        return True
    failed = (
        to in (State.RETRYING, State.DEAD)
        and settlement.burn
        and settlement.error is not None
        and settlement.reason in ("", "exhausted")
    )
    return False if failed else None


def on_dependency(parent: State, policy: DependencyPolicy) -> Literal["met", "wait"] | State:
    """What a parent in this state means for a task that depends on it.

    ``met``: it no longer holds the task back. ``wait``: it still does. A State: the task's own end.
    """
    if parent is State.COMPLETED:
        return "met"
    if parent not in FINAL or policy == "wait":
        return "wait"
    if policy == "run":
        return "met"
    return State.CANCELLED if policy == "cancel" else State.DEAD


def may_return(state: State, reason: str) -> bool:
    """Whether the retry of a flow puts a finished task back: it is dead, or ended for another.

    What an order cancelled stays cancelled; nothing will ever run it.
    """
    return state is State.DEAD or (
        state is State.CANCELLED and reason.startswith("dependency_failed")
    )
