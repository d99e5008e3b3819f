"""Refuse submissions that no broker takes, before anything is done.

Asked for every task, so it must be cheap. ``checks`` has what is asked of other calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args

from fairlead.broker.checks import check_settlement
from fairlead.broker.requests import MAX_ENQUEUE, MAX_TENANTS, Submission
from fairlead.broker.submissions import Submissions
from fairlead.model.argument_packing import MAX_BODY
from fairlead.model.errors import InvalidInput, InvalidName, InvalidOption, TooLarge
from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import LEVEL_NAMES, Message, shares_options
from fairlead.model.names import check_limiter, check_queue, check_tenant
from fairlead.model.options import MAX_COST, MAX_DEPENDENCIES, MAX_LIMITERS, MIN_COST

MAX_ENVELOPE = 4 * 1024  # bytes of a body around its arguments
MAX_TRACE = 16 * 1024  # bytes

_POLICIES: tuple[str, ...] = get_args(DependencyPolicy)
_SEPARATORS = frozenset("\x1d\x1e")  # between the options of a task, where they are sent
_LOWEST = len(LEVEL_NAMES) - 1
_LARGEST_BODY = MAX_BODY + MAX_ENVELOPE
_LARGEST_INT = 2**63 - 1  # what every store can hold
_LONGEST_ID = 128  # characters
_ID = re.compile(rf"[A-Za-z0-9_.-]{{1,{_LONGEST_ID}}}\Z").match
_ID_RULE = (
    "1 to 128 characters out of A-Z a-z 0-9 _ . -, alone or after the task's own tenant and a colon"
)
# The same few names come again and again; a name that is refused is not remembered.
_check_queue = lru_cache(maxsize=1_024)(check_queue)
_check_tenant = lru_cache(maxsize=8_192)(check_tenant)
_check_limiter = lru_cache(maxsize=1_024)(check_limiter)


#: The last pattern that passed.
_passed = Submission(message=Message(id="", queue="default", tenant="default", body=b""))


def check_submissions(submissions: Sequence[Submission]) -> None:
    """Refuse a batch that breaks the rules of the verb."""
    global _passed  # noqa: PLW0603 - calls of one task come again and again
    if len(submissions) > MAX_ENQUEUE:
        raise TooLarge("the batch", len(submissions), MAX_ENQUEUE, "tasks")
    if not isinstance(submissions, Submissions):
        submissions = Submissions.of(submissions)
    likes, ids, bodies = submissions.likes, submissions.ids, submissions.bodies
    runs = submissions.runs
    last = _passed
    for like, _, _ in runs:
        if like is not last:
            _check_kind(like, last.message)
            last = like
    if not last.message.id:
        _passed = last
    if not _are_plain(ids, bodies):
        for like, id, body in zip(likes, ids, bodies, strict=True):
            _check_contents(id, body, like.message)
    if len(runs) > MAX_TENANTS:
        tenants = {like.message.tenant for like, _, _ in runs}
        if len(tenants) > MAX_TENANTS:
            raise TooLarge("the batch", len(tenants), MAX_TENANTS, "tenants")


def _are_plain(ids: Sequence[Any], bodies: Sequence[object]) -> bool:
    """Whether all are right at a glance."""
    for id in ids:
        if type(id) is not str or not 0 < len(id) <= _LONGEST_ID:
            return False
    for body in bodies:
        if type(body) is not bytes or len(body) > _LARGEST_BODY:
            return False
    text = "".join(ids)
    return text.isascii() and text.encode().isalnum()


def check_submission(submission: Submission) -> None:
    """Refuse one that no broker takes, whatever comes with it."""
    _check_kind(submission)
    _check_contents(submission.message.id, submission.message.body, submission.message)


def _check_kind(submission: Submission, last: Message | None = None) -> None:
    """Look at all but id and body; ``last`` is the message of one that passed."""
    message = submission.message
    if last is None or not shares_options(message, last):
        _check_head(message)
    elif message.tenant is not last.tenant:
        _check_own_tenant(message.tenant)
    if type(message.trace) is not bytes or len(message.trace) > MAX_TRACE:
        _check_bytes("trace", message.trace, MAX_TRACE)
    if submission.delay != 0.0 or submission.deadline is not None or submission.unique is not None:
        _check_times(submission)
    if submission.depends_on and len(submission.depends_on) > MAX_DEPENDENCIES:
        raise TooLarge("depends_on", len(submission.depends_on), MAX_DEPENDENCIES, "tasks")
    if submission.ended is not None:
        _check_ended(submission, submission.ended)
    if submission.on_dependency_failure not in _POLICIES:
        raise InvalidOption(
            "on_dependency_failure",
            submission.on_dependency_failure,
            f"one of {', '.join(_POLICIES)}",
        )


def _check_times(submission: Submission) -> None:
    delay, deadline, unique = submission.delay, submission.deadline, submission.unique
    # Written so that NaN fails as well.
    if not 0.0 <= delay < math.inf:
        raise InvalidOption("delay", delay, "zero or more seconds")
    if deadline is not None and not 0.0 <= deadline < math.inf:
        raise InvalidOption("deadline", deadline, "zero or more seconds")
    if unique is not None:
        if _SEPARATORS.intersection(unique.key):
            raise InvalidName("unique key", unique.key, "a text without the characters 1D and 1E")
        if unique.until == "window" and not 0.0 < unique.window < math.inf:
            raise InvalidOption("unique window", unique.window, "a number of seconds above 0")


def _check_ended(submission: Submission, ended: Settlement) -> None:
    """Refuse an end that no attempt outside of a lease can have."""
    is_late = submission.delay or submission.at
    asks = is_late or submission.depends_on or submission.unique or submission.fence
    if asks or ended.id != submission.message.id or ended.to not in (State.COMPLETED, State.DEAD):
        raise InvalidInput(
            f"task {submission.message.id!r} cannot have ended already: only one that asked for "
            "nothing special can, as completed or dead"
        )
    check_settlement(ended)


def _check_contents(id: object, body: object, message: Message) -> None:
    if type(id) is not str or not (_ID(id) or _is_scoped(id, message.tenant)):
        raise InvalidName("task id", id, _ID_RULE)
    if type(body) is not bytes or len(body) > _LARGEST_BODY:
        _check_bytes("body", body, _LARGEST_BODY)


def _check_head(message: Message) -> None:
    queue, tenant = message.queue, message.tenant
    if type(queue) is not str:
        raise InvalidName("queue", queue, "a plain text")
    _check_queue(queue)
    _check_own_tenant(tenant)
    level, cost = message.level, message.cost
    if type(level) is not int or not 0 <= level <= _LOWEST:
        raise InvalidOption("level", level, f"a whole number from 0 to {_LOWEST}")
    if (type(cost) is not float and type(cost) is not int) or not MIN_COST <= cost <= MAX_COST:
        raise InvalidOption("cost", cost, f"a number from {MIN_COST:g} to {MAX_COST:g}")
    if message.limiters != ():
        _check_limiters(message.limiters)
    flags, version = message.flags, message.version
    if type(flags) is not int or not 0 <= flags <= _LARGEST_INT:
        raise InvalidOption("flags", flags, "a whole number, 0 or more, of 63 bits")
    if type(version) is not int or not 1 <= version <= _LARGEST_INT:
        raise InvalidOption("version", version, "a whole number, 1 or more, of 63 bits")


def _check_own_tenant(tenant: object) -> None:
    if type(tenant) is not str:
        raise InvalidName("tenant", tenant, "a plain text")
    _check_tenant(tenant)


def check_flow_id(id: object, tenant: str) -> None:
    """Raise InvalidName for what cannot be the id of a flow: the rule is that of tasks."""
    if type(id) is not str or not (_ID(id) or _is_scoped(id, tenant)):
        raise InvalidName("flow id", id, _ID_RULE.replace("task", "flow"))


def _is_scoped(id: str, tenant: str) -> bool:
    return id.startswith(f"{tenant}:") and _ID(id, len(tenant) + 1) is not None


def _check_limiters(limiters: object) -> None:
    if type(limiters) is not tuple:
        raise InvalidOption("limiters", limiters, "a tuple of limiter names")
    if len(limiters) > MAX_LIMITERS:
        raise TooLarge("limiters", len(limiters), MAX_LIMITERS, "names")
    for name in limiters:
        if type(name) is not str:
            raise InvalidName("limiter", name, "a plain text")
        _check_limiter(name)
    if len(limiters) > 1 and len(set(limiters)) < len(limiters):
        raise InvalidOption("limiters", limiters, "a tuple that names each limiter once")


def _check_bytes(what: str, value: object, limit: int) -> None:
    if type(value) is not bytes:
        raise InvalidOption(what, value, "bytes")
    if len(value) > limit:
        raise TooLarge(f"the {what}", len(value), limit)
