"""Retry or dead letter: what follows an attempt, and the death of the process that ran it.

Every worker takes its settlements from ``settle()``, every broker what a crash means from
``after_crash()``; nothing else decides whether a task is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Literal

import msgspec

from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import ErrorInfo, Leased, run_limits
from fairlead.model.signals import Reject, Retry, Snooze
from fairlead.model.states import State

CRASH_LIMIT = 3  # crashes in a row that make a task poison
ALONE = 2  # crashes in a row after which a task runs in a process of its own
_UNROUTABLE_BACKOFF = Backoff(initial=5.0, factor=2.0, max=300.0, jitter="none")
_UNROUTABLE_LIMIT = 292  # hand-backs with that backoff last a day
_INTERRUPTED = ErrorInfo(
    "Interrupted", "its worker could not let it finish; with max_retries=0 it does not run again"
)


# What can become of one attempt. Workers report these, settle() turns them into moves.


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned; ``result`` is what it returned, packed."""

    result: bytes | None = None


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or ran out of time."""

    error: BaseException
    info: ErrorInfo


class Released(msgspec.Struct, frozen=True):
    """The worker gives the task back, untouched or because it stops; not at once with ``delay``."""

    delay: float = 0.0  # seconds, and up to half as many more by the dice


class Cancelled(msgspec.Struct, frozen=True):
    """The attempt was ended because somebody cancelled the task."""


class Unroutable(msgspec.Struct, frozen=True):
    """No handler here knows the task's name or the message's version."""

    info: ErrorInfo
    task: str = ""  # its name and version, if they can be read
    version: int = 1


class Crashed(msgspec.Struct, frozen=True):
    """The process that ran the attempt died, and only this attempt ran in it."""

    info: ErrorInfo


_Move = Callable[..., Settlement]
Outcome = Succeeded | Failed | Released | Cancelled | Unroutable | Crashed


def settle(
    lease: Leased,
    outcome: Outcome,
    policy: RetryPolicy,
    *,
    dice: float,
    run_time: float = 0.0,
    keep: float | None = None,
) -> Settlement:
    """What follows an attempt: completed, retrying, dead, released, snoozed or cancelled.

    ``dice`` is a number from [0, 1) for the jitter. ``lease.attempt`` counts from 1, so a task with
    ``max_retries=2`` is dead when its third attempt fails.
    """
    move = partial(Settlement, id=lease.message.id, token=lease.token, run_time=run_time)
    if isinstance(outcome, Succeeded):
        return move(to=State.COMPLETED, result=outcome.result, keep=keep)
    # Without ``keep`` from here on: the dead are kept for operators.
    if isinstance(outcome, Released):
        if run_time > 0.0 and runs_once(lease.message.flags, policy.max_retries + 1):
            return move(to=State.DEAD, reason="exhausted", error=_INTERRUPTED)
        if outcome.delay > 0.0:
            delay = outcome.delay * (1.0 + dice / 2.0)
            return move(to=State.SCHEDULED, delay=delay, burn=False, reason="released")
        return move(to=State.QUEUED, burn=False, reason="released")
    if isinstance(outcome, Cancelled):
        return move(to=State.CANCELLED)
    if isinstance(outcome, Unroutable):
        if lease.unroutable >= _UNROUTABLE_LIMIT:
            return move(to=State.DEAD, burn=False, reason="unroutable", error=outcome.info)
        delay = _UNROUTABLE_BACKOFF.delay(lease.unroutable, dice)
        return move(
            to=State.RETRYING, delay=delay, burn=False, reason="unroutable", error=outcome.info
        )
    if isinstance(outcome, Crashed):
        return _settle_crash(lease, outcome.info, policy, dice, move)
    return _settle_failure(lease, outcome, policy, dice, move)


@lru_cache(maxsize=1_024)
def runs_once(flags: int, runs: int | None = None) -> bool:
    """Whether a task may begin only once, whatever becomes of it: ``max_retries=0``.

    ``flags`` are those of its message; if they do not say it, ``runs`` does.
    """
    said, max_crashes = run_limits(flags)
    return (said or runs) == 1 and max_crashes is None


def _settle_crash(
    lease: Leased, info: ErrorInfo, policy: RetryPolicy, dice: float, move: _Move
) -> Settlement:
    """What follows the death of a process that ran nothing else."""
    reason = _end_by_crash(
        lease.crashes + 1, lease.attempt, policy.max_retries + 1, run_limits(lease.message.flags)[1]
    )
    if reason:
        return move(to=State.DEAD, reason=reason, error=info)
    delay = policy.backoff.delay(lease.attempt - 1, dice)
    return move(to=State.RETRYING, delay=delay, reason="crashed", error=info)


def _settle_failure(
    lease: Leased, failure: Failed, policy: RetryPolicy, dice: float, move: _Move
) -> Settlement:
    """What follows an error: it may ask for something, or the policy says it."""
    error, info = failure.error, failure.info
    if isinstance(error, Snooze):
        return move(to=State.SCHEDULED, delay=error.delay, burn=False, reason="snoozed")
    if isinstance(error, Reject):
        return move(to=State.DEAD, reason="rejected", error=info)
    # Asked first: an error that is given up on says more than that it was the last attempt.
    if not isinstance(error, Retry) and not policy.retries(error):
        return move(to=State.DEAD, reason="rejected", error=info)
    if lease.attempt > policy.max_retries:
        return move(to=State.DEAD, reason="exhausted", error=info)
    if isinstance(error, Retry) and error.delay is not None:
        return move(to=State.RETRYING, delay=error.delay, error=info)
    delay = policy.backoff_for(error).delay(lease.attempt - 1, dice)
    return move(to=State.RETRYING, delay=delay, error=info)


def after_crash(
    crashes: int, attempts: int, flags: int, *, cancel_requested: bool
) -> tuple[State, str]:
    """Where a task goes whose worker died while it ran, and why if it is dead.

    ``crashes`` and ``attempts`` count this one, ``flags`` are those of its message.
    """
    if cancel_requested:
        return State.CANCELLED, ""
    runs, max_crashes = run_limits(flags)
    reason = _end_by_crash(crashes, attempts, runs, max_crashes)
    return (State.DEAD, reason) if reason else (State.QUEUED, "")


def may_have_run(*, started: bool, attempts: int, flags: int) -> bool:
    """Whether an attempt counts whose worker is gone, and nobody saw what it had begun.

    A worker tells of what it begins a moment later. So a task that is not known to have begun goes
    back as if nothing had happened, unless it may not run once more: then it may have been its
    last run. ``attempts`` are those before this one.
    """
    runs, max_crashes = run_limits(flags)
    return started or (max_crashes is None and runs is not None and attempts + 1 >= runs)


def _end_by_crash(
    crashes: int, attempts: int, runs: int | None, max_crashes: int | None
) -> Literal["poison", "exhausted", ""]:
    """Why a task does not run again after so many crashes in a row, and attempts; '' if it does.

    Crashes use up attempts like any other failure, unless the task has a limit for them alone.
    """
    if max_crashes is not None:
        return "poison" if crashes > max_crashes else ""
    if crashes >= CRASH_LIMIT:
        return "poison"
    return "exhausted" if runs is not None and attempts >= runs else ""


def crashes_after(crashes: int, *, blocked: bool) -> int:
    """The count of crashes in a row after another one.

    There is no doubt about a task that blocked the loop: it runs alone from now on.
    """
    return max(crashes + 1, ALONE) if blocked else crashes + 1
