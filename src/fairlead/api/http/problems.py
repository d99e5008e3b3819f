"""What goes wrong, as RFC 9457 problems: one class for each type, one table for our own errors.

Types and fields are part of the interface: clients decide by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from fairlead.model.codecs import CodecError
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    Fenced,
    InvalidArgument,
    InvalidCron,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotSerializable,
    QueueFull,
    QueueInUse,
    Refused,
    ResultGone,
    ScheduleConflict,
    TooLarge,
    UnknownDependency,
    UnknownPriority,
    UnknownSchedule,
    UnknownTask,
)
from fairlead.model.ledger_errors import LedgerError, LedgerRefused
from fairlead.model.safe_repr import one_line
from fairlead.model.spool_errors import SpoolFailed, SpoolFull

_LONGEST_VALUE = 100
_LONGEST_FIELD = 200
_LONGEST_DETAIL = 1_000
_RETRY_AFTER = 2.0  # seconds, where nothing better is known


class ProblemBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document: ``application/problem+json``."""

    type: str
    title: str
    status: int
    detail: str = ""
    field: str | None = None  # what was wrong: a path in the body, a parameter, a header
    value: str | None = None  # what stood there, cut after 100 characters; never of a payload
    rule: str | None = None  # what it must be
    ids: tuple[str, ...] = ()  # the tasks that it is about
    retry_after: float | None = None  # seconds; also in the header Retry-After


class Problem(Exception):
    """The request ends with a problem document."""

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "unexpected"
    title: ClassVar[str] = "Something went wrong here"

    def __init__(
        self,
        detail: str = "",
        *,
        field: str | None = None,
        value: object = None,
        rule: str | None = None,
        ids: Sequence[str] = (),
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.body = ProblemBody(
            type=f"/problems/{self.slug}",
            title=self.title,
            status=self.status,
            detail=one_line(detail, _LONGEST_DETAIL),
            field=None if field is None else one_line(field, _LONGEST_FIELD),
            value=None if value is None else one_line(str(value), _LONGEST_VALUE),
            rule=None if rule is None else one_line(rule, _LONGEST_DETAIL),
            ids=tuple(ids),
            retry_after=retry_after,
        )
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after)))


class BadRequest(Problem):
    """The request cannot be read."""

    status, slug, title = 400, "bad-request", "The request cannot be read"


class Unauthorized(Problem):
    """No token, or one that is not valid (any more)."""

    status, slug, title = 401, "unauthorized", "A valid token is needed"

    def __init__(self, detail: str = "", **more: Any) -> None:
        super().__init__(detail, headers={"www-authenticate": "Bearer"}, **more)


class Forbidden(Problem):
    """The token lacks the scope, or the request comes from a place that is not allowed."""

    status, slug, title = 403, "forbidden", "The caller may not do this"


class NotFound(Problem):
    """There is no such thing, or not for this caller."""

    status, slug, title = 404, "not-found", "There is no such thing"


class MethodNotAllowed(Problem):
    """The path exists, and answers to other methods."""

    status, slug, title = 405, "method-not-allowed", "The path does not answer to this method"


class RequestTimeout(Problem):
    """The body of the request did not come in time."""

    status, slug, title = 408, "request-timeout", "The request did not come in time"


class Conflicting(Problem):
    """What is asked for does not fit what is there."""

    status, slug, title = 409, "conflict", "It does not fit what is there"


class BodyTooLarge(Problem):
    """Over a limit in bytes, depth or count."""

    status, slug, title = 413, "too-large", "It is over a limit"


class UnsupportedMediaType(Problem):
    """The body is of another kind than the route takes."""

    status, slug, title = 415, "unsupported-media-type", "The body is of the wrong kind"


class Invalid(Problem):
    """A value breaks a rule; nothing was changed."""

    status, slug, title = 422, "invalid", "A value is not valid"


class TooManyRequests(Problem):
    """The caller asks too often."""

    status, slug, title = 429, "too-many-requests", "The caller asks too often"


class Full(Problem):
    """The queue, or the tenant's part of it, is full."""

    status, slug, title = 429, "queue-full", "The queue is full"


class SpoolOverflow(Problem):
    """The broker is away, and so many tasks wait for it on disk that no more are taken."""

    status, slug, title = 429, "spool-full", "The broker is away, and the spool is full"


class Unexpected(Problem):
    """A mistake of ours; the log has the rest."""


class BrokerAway(Problem):
    """The broker cannot be reached, or refuses for now; nothing was changed."""

    status, slug, title = 503, "broker-away", "The broker does not answer"


class BrokerFull(Problem):
    """The broker has no memory left for anything new; nothing was changed."""

    status, slug, title = 503, "broker-full", "The broker is out of memory"


class SpoolAway(Problem):
    """The broker is away, and the disk does not take the task either; nothing was changed."""

    status, slug, title = 503, "spool-failed", "The broker is away, and the spool cannot write"


class Spooled(Problem):
    """The task was accepted and is kept on disk; the broker does not know it yet."""

    status, slug, title = 503, "spooled", "The broker does not have the task yet"


class LedgerAway(Problem):
    """The ledger cannot be reached, or took too long; what is in the broker can still be read."""

    status, slug, title = 503, "ledger-away", "The ledger does not answer"


#: What says that nothing was changed: it must not be told when something was.
NOTHING_DONE = (BrokerAway, BrokerFull, SpoolAway)


class InDoubt(Problem):
    """The broker did not answer in time: the change may have been made, or not."""

    status, slug, title = 503, "in-doubt", "It is not known whether it was done"


class Draining(Problem):
    """This process is about to end; ask again, another one answers."""

    status, slug, title = 503, "draining", "This server is about to stop"


def problem_of(error: Exception) -> Problem | None:
    """What callers are told of an error of ours; None if it is no error that a caller may cause."""
    if isinstance(error, Problem):
        return error
    for kind, make in _TABLE:
        if isinstance(error, kind):
            return make(error)
    return None


def _plain(kind: type[Problem]) -> Callable[[Any], Problem]:
    return lambda error: kind(str(error))


def _full(error: QueueFull) -> Problem:
    return Full(str(error), field=error.setting, rule=f"{error.limit}", retry_after=_RETRY_AFTER)


# Not in the words of the error, which may name the address of the broker.
def _away(error: BrokerError) -> Problem:
    why = f"refuses ({error.cause})" if isinstance(error, Refused) else "cannot be reached"
    detail = f"the broker {why}; nothing was changed"
    return BrokerAway(detail, ids=error.ids, retry_after=_RETRY_AFTER)


# Nor in these, which name that of the ledger.
def _ledger_away(error: LedgerError) -> Problem:
    why = f"refuses ({error.cause})" if isinstance(error, LedgerRefused) else "cannot be reached"
    return LedgerAway(
        f"the ledger {why}; tasks of the broker are not affected", retry_after=_RETRY_AFTER
    )


def _refused(error: Refused) -> Problem:
    if error.cause != "oom":
        return _away(error)
    detail = (
        "the broker is out of memory and takes nothing new, nothing was changed; "
        "give it more memory, or let workers finish tasks"
    )
    return BrokerFull(detail, ids=error.ids, retry_after=_RETRY_AFTER)


def _spool_full(error: SpoolFull) -> Problem:
    detail = "the broker is away, and the spool of this server is full; nothing was changed"
    rule = f"{error.limit}"
    return SpoolOverflow(
        detail, field=error.setting, rule=rule, ids=error.ids, retry_after=_RETRY_AFTER
    )


# Without its words, which may name a path.
def _spool_failed(error: SpoolFailed) -> Problem:
    detail = "the broker is away, and the spool of this server cannot write; nothing was changed"
    return SpoolAway(detail, ids=error.ids, retry_after=_RETRY_AFTER)


def _in_doubt(error: BrokerError) -> Problem:
    detail = "the broker did not answer: the change may have been made, or will be"
    return InDoubt(detail, ids=error.ids, retry_after=_RETRY_AFTER)


def _misfit(error: InvalidArgument) -> Problem:
    # Without its words, which repeat the argument.
    detail = f"an argument does not fit task {error.task!r}"
    return Invalid(detail, field=error.field, rule=error.rule)


def _unknown_priority(error: UnknownPriority) -> Problem:
    rule = f"one of {', '.join(map(str, error.known[:20]))}"
    return Invalid(str(error), field="priority", value=error.value, rule=rule)


def _unknown_dependency(error: UnknownDependency) -> Problem:
    rule = "ids of tasks that are known"
    return Invalid(str(error), field="depends_on", value=error.dependency, rule=rule)


def _bad_name(error: InvalidName) -> Problem:
    field = _FIELDS.get(error.kind, error.kind)
    return Invalid(str(error), field=field, value=error.value, rule=error.rule)


#: What names are called in bodies, where that is another word.
_FIELDS = {
    "correlation id": "correlation_id",
    "flow id": "id",
    "task id": "id",
    "task name": "task",
    "unique key": "unique",
}

# The first that fits counts, so the particular ones come first.
_TABLE: tuple[tuple[type[Exception], Callable[[Any], Problem]], ...] = (
    (QueueFull, _full),
    (QueueInUse, _plain(Conflicting)),
    (CodecError, _plain(Conflicting)),
    (Conflict, lambda e: Conflicting(str(e), ids=(e.id,), field="id")),
    (ScheduleConflict, _plain(Conflicting)),
    (Fenced, _plain(Conflicting)),
    (ResultGone, lambda e: NotFound(str(e), ids=(e.id,))),
    (UnknownSchedule, _plain(NotFound)),
    (TooLarge, lambda e: BodyTooLarge(str(e), rule=f"at most {e.limit} {e.unit}")),
    (InvalidName, _bad_name),
    (InvalidOption, lambda e: Invalid(str(e), field=e.option, value=e.value, rule=e.rule)),
    (InvalidArgument, _misfit),
    (InvalidCron, lambda e: Invalid(str(e), field="cron", value=e.expression, rule=e.why)),
    (UnknownTask, lambda e: Invalid(str(e), field="task", value=e.name, rule="a known task")),
    (UnknownPriority, _unknown_priority),
    (UnknownDependency, _unknown_dependency),
    (NotSerializable, lambda e: Invalid(str(e), field=e.where, rule=e.why)),
    (InvalidInput, _plain(Invalid)),
    (Ambiguous, _in_doubt),
    (SpoolFull, _spool_full),
    (SpoolFailed, _spool_failed),
    (Refused, _refused),
    (BrokerError, _away),
    (LedgerError, _ledger_away),
)
