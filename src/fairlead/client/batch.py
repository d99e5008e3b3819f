"""Calls that are enqueued together: by callers, by handlers, or because tasks depend on others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from fairlead.broker import call_limit
from fairlead.broker.requests import Durability, LeaseRef, Receipt, Submission
from fairlead.broker.submissions import Submissions
from fairlead.client.call import BoundTask, CallOptions, TaskCall, bounds_of, call_of
from fairlead.client.clients import Clients
from fairlead.client.errors import error_of, raise_for
from fairlead.client.handle import Handle, handle_for, returned
from fairlead.client.ledger_handle import LedgerHandle
from fairlead.client.named_call import look_up, look_up_now
from fairlead.client.outbox import awrite_tasks, write_tasks
from fairlead.client.transactions import Connection, Transaction, transaction_of
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput
from fairlead.model.registry import Registry, TaskSpec

__all__ = (
    "FencedEnqueuer", "aenqueue_calls", "asend_pipeline", "awritten",
    "enqueue_calls", "handles_of", "limit_of", "prepared", "prepared_now", "send_pipeline",
    "submissions_of", "written",
)  # fmt: skip

R = TypeVar("R")

_TAKEN = frozenset(("accepted", "duplicate"))


def submissions_of(
    calls: Iterable[TaskCall[R]], registry: Registry, fence: LeaseRef | None = None
) -> tuple[list[TaskCall[R]], Submissions]:
    """Check all calls before any is written. Errors name the call."""
    made = list(calls)
    likes: list[Submission] = []
    ids: list[str] = []
    bodies: list[bytes] = []
    while (index := len(ids)) < len(made):
        call = made[index]
        if not isinstance(call, TaskCall):
            raise InvalidInput(
                f"item {index} is {type(call).__name__}, not a call; use task.call(...)"
            )
        call.check_registered(registry)
        if fence is None and _add_plain(made, likes, ids, bodies):
            continue
        try:
            submission = call.submission(fence)
        except InvalidInput as error:
            error.add_note(f"in call {index}, of task {call.spec.name!r}; none was enqueued")
            raise
        likes.append(submission)
        ids.append(submission.message.id)
        bodies.append(submission.message.body)
    return made, Submissions(likes, ids, bodies)


def _add_plain(
    calls: Sequence[TaskCall[R]], likes: list[Submission], ids: list[str], bodies: list[bytes]
) -> int:
    """Add what follows of calls of one task, as far as they are plainly right; how many are.

    The short way of ``TaskCall.submission``.
    """
    start = len(ids)
    bound = calls[start]._bound
    template = bound.ready
    if template is None or not template.is_usual():
        return 0
    added = template.bodies(_alike(calls, start, bound))
    bodies += added
    ids += [call.id for call in calls[start : start + len(added)]]
    likes += [template.like] * len(added)
    return len(added)


def _alike(calls: Sequence[TaskCall[R]], start: int, bound: BoundTask) -> Iterator[tuple[Any, ...]]:
    """Return the arguments of those that follow, one by one: few may be asked for."""
    for place in range(start, len(calls)):
        call = calls[place]
        if type(call) is not TaskCall or call._bound is not bound or call.kwargs:
            return
        yield call.args


async def prepared(
    clients: Clients,
    calls: Iterable[TaskCall[R]],
    registry: Registry,
    fence: LeaseRef | None = None,
) -> tuple[list[TaskCall[R]], Submissions]:
    """``submissions_of`` calls, once workers were asked about those that are by name only."""
    return submissions_of(await look_up(clients.current(), calls), registry, fence)


def prepared_now(
    clients: Clients, calls: Iterable[TaskCall[R]], registry: Registry
) -> tuple[list[TaskCall[R]], Submissions]:
    """``prepared`` from sync code."""
    return submissions_of(look_up_now(clients, calls), registry)


def limit_of(calls: Iterable[TaskCall[Any]], timeout: Duration | None = None) -> float | None:
    """How many seconds calls have that are enqueued together; None: as the app says.

    What was said of all of them counts, otherwise the shortest that one of them has.
    """
    return _limit(bounds_of(calls), timeout)


def _limit(bounds: Iterable[BoundTask], timeout: Duration | None) -> float | None:
    said = (bound.enqueue_timeout for bound in bounds)
    return call_limit(timeout) or min((each for each in said if each is not None), default=None)


def _durability(bounds: Iterable[BoundTask]) -> Durability:
    """What calls need that are enqueued together: as much as one of them does."""
    needs_broker = any(bound.durability == "committed" for bound in bounds)
    return "committed" if needs_broker else "spooled"


def enqueue_calls(
    clients: Clients,
    registry: Registry,
    calls: Iterable[TaskCall[R]],
    timeout: Duration | None,
    tx: Connection,
) -> list[Handle[R]]:
    """Enqueue calls from sync code, at the broker or in a transaction; see ``aenqueue_many``."""
    made, submissions = prepared_now(clients, calls, registry)
    if tx is not UNSET:
        receipts = write_tasks(clients, transaction_of(tx), submissions)
        return handles_of(clients, made, submissions, receipts, LedgerHandle)
    bounds = bounds_of(made[start] for _, start, _ in submissions.runs)
    limit, durability = _limit(bounds, timeout), _durability(bounds)
    receipts = clients.sync(lambda client: client.submit_many(submissions, limit, durability))
    return handles_of(clients, made, submissions, receipts)


async def aenqueue_calls(
    clients: Clients,
    registry: Registry,
    calls: Iterable[TaskCall[R]],
    timeout: Duration | None,
    tx: Connection,
) -> list[Handle[R]]:
    """Enqueue calls, at the broker or in a transaction; see ``aenqueue_many`` of the app."""
    made, submissions = await prepared(clients, calls, registry)
    if tx is not UNSET:
        receipts = await awrite_tasks(clients, transaction_of(tx), submissions)
        return handles_of(clients, made, submissions, receipts, LedgerHandle)
    bounds = bounds_of(made[start] for _, start, _ in submissions.runs)
    limit, durability = _limit(bounds, timeout), _durability(bounds)
    receipts = await clients.current().submit_many(submissions, limit, durability)
    return handles_of(clients, made, submissions, receipts)


class FencedEnqueuer:
    """Enqueues for handlers, under the lease of their attempt.

    Nothing of it is spooled: the outcome of the attempt may be settled before a spool is drained,
    and then the lease is over that the broker asks for.
    """

    def __init__(self, clients: Clients, registry: Registry) -> None:
        self._clients = clients
        self._registry = registry

    def limit(self, calls: Iterable[object]) -> float:
        """How many seconds these calls have, enqueued together."""
        made = (call for call in calls if isinstance(call, TaskCall))
        return limit_of(made) or self._clients.limit

    async def one(self, call: Any, fence: LeaseRef) -> Any:
        """Enqueue a call; its handle. Those of one moment share a trip with all others."""
        if not isinstance(call, TaskCall):
            raise InvalidInput(f"{type(call).__name__} is not a call; use task.call(...)")
        await look_up(self._clients.current(), [call])
        call.check_registered(self._registry)
        submission = call.submission(fence)
        limit = call.enqueue_timeout
        receipt = await self._clients.current().submit(submission, limit, "committed")
        raise_for(receipt, submission)
        return call.accepted(self._clients, receipt, submission)

    async def many(self, calls: Iterable[Any], fence: LeaseRef) -> list[Any]:
        """Enqueue calls that may depend on each other; their handles."""
        made, submissions = await prepared(self._clients, calls, self._registry, fence)
        limit = limit_of(made)
        receipts = await self._clients.current().submit_many(submissions, limit, "committed")
        return handles_of(self._clients, made, submissions, receipts)


# -- receipts and handles ----------------------------------------------------------------------


def written(
    clients: Clients, tx: Transaction, call: TaskCall[R], submission: Submission
) -> Handle[R]:
    """Enqueue a call in a transaction, from sync code."""
    (receipt,) = write_tasks(clients, tx, [submission])
    raise_for(receipt, submission)
    return call.accepted(clients, receipt, submission, LedgerHandle)


async def awritten(
    clients: Clients, tx: Transaction, call: TaskCall[R], submission: Submission
) -> Handle[R]:
    """Enqueue a call in a transaction."""
    (receipt,) = await awrite_tasks(clients, tx, [submission])
    raise_for(receipt, submission)
    return call.accepted(clients, receipt, submission, LedgerHandle)


def handles_of(
    clients: Clients,
    calls: Sequence[TaskCall[R]],
    submissions: Sequence[Submission],
    receipts: Sequence[Receipt],
    kind: Callable[..., Handle[Any]] = Handle,
) -> list[Handle[R]]:
    """A handle for each call of a batch; if some were refused, the first refusal is raised."""
    if not _TAKEN.issuperset({receipt.code for receipt in receipts}):
        errors = list(map(error_of, receipts, submissions))
        refused = next(error for error in errors if error is not None)
        stand = errors.count(None)
        refused.add_note(
            f"{stand} of {len(calls)} tasks were accepted. The same calls may be enqueued again: "
            "those that were accepted are recognized by their ids."
        )
        raise refused
    if len(receipts) != len(calls):
        raise ValueError(f"{len(receipts)} receipts came back for {len(calls)} calls")
    if not isinstance(submissions, Submissions):
        submissions = Submissions.of(submissions)
    made: list[Handle[R]] = []
    for like, start, end in submissions.runs:
        spec = calls[start].spec
        tenant, task, returns = like.message.tenant, spec.name, returned(spec.handler)
        made += [
            # As nearly all are; by ``handle_for`` it takes three times as long.
            Handle(clients, receipt.id, tenant, returns, task, receipt.code == "duplicate")
            if receipt.durability == "committed" and kind is Handle
            else handle_for(clients, spec, receipt, like, kind)
            for receipt in receipts[start:end]
        ]
    return made


# -- tasks that declare what they depend on ----------------------------------------------------


def upstream_calls(registry: Registry, last: BoundTask) -> list[TaskCall[Any]]:
    """Return a call of each task that this one depends on by declared ids, however far before it.

    They belong to the tenant of the last one. One that cannot be called without arguments is left
    out: it has to be there already, like an id that no task declares.
    """
    by_id = {spec.options.id: spec for spec in registry if spec.options.id is not UNSET}
    said: CallOptions = {}
    if last.options.tenant is not UNSET:
        said["tenant"] = last.options.tenant
    calls: list[TaskCall[Any]] = []
    seen = {last.spec.name}
    todo = list(_declared(last.spec))
    while todo:
        spec = by_id.get(todo.pop())
        if spec is None or spec.name in seen:
            continue
        seen.add(spec.name)
        if spec.positions[0] == 0 and spec.positions[1] >= 0:
            bound = BoundTask(spec, last.priorities, codecs=last.codecs)
            calls.append(call_of(bound.using(said), (), {}))
            todo += _declared(spec)
    return calls


def send_pipeline(
    clients: Clients, registry: Registry, last: TaskCall[Any], bound: BoundTask
) -> Handle[Any]:
    """Enqueue a call and all that it depends on by declaration, from sync code; its handle."""
    calls, submissions = _pipeline(registry, last, bound)
    if bound.tx is not None:
        return _last(
            clients, calls, submissions, write_tasks(clients, bound.tx, submissions), bound
        )
    receipts = clients.sync(
        lambda client: client.submit_many(submissions, bound.enqueue_timeout, bound.durability)
    )
    return _last(clients, calls, submissions, receipts, bound)


async def asend_pipeline(
    clients: Clients, registry: Registry, last: TaskCall[Any], bound: BoundTask
) -> Handle[Any]:
    """Enqueue a call and all that it depends on by declaration; its handle."""
    calls, submissions = _pipeline(registry, last, bound)
    if bound.tx is not None:
        receipts = await awrite_tasks(clients, bound.tx, submissions)
    else:
        limit, client = bound.enqueue_timeout, clients.current()
        receipts = await client.submit_many(submissions, limit, bound.durability)
    return _last(clients, calls, submissions, receipts, bound)


def _pipeline(
    registry: Registry, last: TaskCall[Any], bound: BoundTask
) -> tuple[list[TaskCall[Any]], list[Submission]]:
    calls = [*upstream_calls(registry, bound), last]
    return calls, [call.submission() for call in calls]


def _declared(spec: TaskSpec) -> Sequence[Any]:
    return () if spec.options.depends_on is UNSET else spec.options.depends_on


def _last(
    clients: Clients,
    calls: list[TaskCall[Any]],
    submissions: list[Submission],
    receipts: Sequence[Receipt],
    bound: BoundTask,
) -> Handle[Any]:
    """The handle of the last call; raises what kept one of them from being there."""
    for receipt, submission in zip(receipts, submissions, strict=True):
        # One that was enqueued with arguments before is the one that is meant.
        if receipt.code != "conflict" or submission is submissions[-1]:
            raise_for(receipt, submission)
    handle = Handle if bound.tx is None else LedgerHandle
    return calls[-1].accepted(clients, receipts[-1], submissions[-1], handle)
