"""Calls that are enqueued together, and calls that the handlers of a worker enqueue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import UNSET

from fairlead.broker import call_limit
from fairlead.broker.verbs import Durability, LeaseRef, Submission
from fairlead.client.call import TaskCall
from fairlead.client.clients import Clients
from fairlead.client.handle import Handle
from fairlead.client.ledger_handle import LedgerHandle
from fairlead.client.named import look_up, look_up_now
from fairlead.client.outbox import awrite_tasks, write_tasks
from fairlead.client.receipts import raise_for
from fairlead.client.task import handles_of
from fairlead.client.transactions import Connection, transaction_of
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput
from fairlead.model.registry import Registry, TaskSpec

__all__ = (
    "Children",
    "aenqueue_calls",
    "durability_of",
    "enqueue_calls",
    "limit_of",
    "prepared",
    "prepared_now",
    "submissions_of",
)

R = TypeVar("R")


def submissions_of(
    calls: Iterable[TaskCall[R]], registry: Registry, fence: LeaseRef | None = None
) -> tuple[list[TaskCall[R]], list[Submission]]:
    """Check all calls before any is written. Errors name the call."""
    made = list(calls)
    submissions = []
    spec: TaskSpec | None = None  # of the call before, which is registered
    for index, call in enumerate(made):
        if spec is not None and type(call) is TaskCall and call.spec is spec and fence is None:
            plain = call.plain()
            if plain is not None:
                submissions.append(plain)
                continue
        if not isinstance(call, TaskCall):
            raise InvalidInput(
                f"item {index} is {type(call).__name__}, not a call; use task.call(...)"
            )
        call.check_registered(registry)
        spec = call.spec
        try:
            submissions.append(call.submission(fence))
        except InvalidInput as error:
            error.add_note(f"in call {index}, of task {call.spec.name!r}; none was enqueued")
            raise
    return made, submissions


async def prepared(
    clients: Clients,
    calls: Iterable[TaskCall[R]],
    registry: Registry,
    fence: LeaseRef | None = None,
) -> tuple[list[TaskCall[R]], list[Submission]]:
    """``submissions_of`` calls, once workers were asked about those that are by name only."""
    return submissions_of(await look_up(clients.current(), calls), registry, fence)


def prepared_now(
    clients: Clients, calls: Iterable[TaskCall[R]], registry: Registry
) -> tuple[list[TaskCall[R]], list[Submission]]:
    """``prepared`` from sync code."""
    return submissions_of(look_up_now(clients, calls), registry)


def limit_of(calls: Iterable[TaskCall[Any]], timeout: Duration | None = None) -> float | None:
    """How many seconds calls have that are enqueued together; None: as the app says.

    What was said of all of them counts, otherwise the shortest that one of them has.
    """
    said = (call.enqueue_timeout for call in calls)
    return call_limit(timeout) or min((each for each in said if each is not None), default=None)


def durability_of(calls: Iterable[TaskCall[Any]]) -> Durability:
    """What calls need that are enqueued together: as much as one of them does."""
    return "committed" if any(call.durability == "committed" for call in calls) else "spooled"


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
    limit, durability = limit_of(made, timeout), durability_of(made)
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
    limit, durability = limit_of(made, timeout), durability_of(made)
    receipts = await clients.current().submit_many(submissions, limit, durability)
    return handles_of(clients, made, submissions, receipts)


class Children:
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
