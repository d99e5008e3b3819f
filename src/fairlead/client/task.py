"""What ``@app.task`` makes of a function: still callable, and ready to be enqueued."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack

from msgspec import UNSET

from fairlead.broker.verbs import Receipt, Submission
from fairlead.client.call import CallOptions, Kind, TaskCall, handle_for
from fairlead.client.clients import Clients
from fairlead.client.habits import TASK, no_attribute
from fairlead.client.handle import Handle
from fairlead.client.ledger_handle import LedgerHandle
from fairlead.client.outbox import awrite_tasks, write_tasks
from fairlead.client.pipeline import asend_pipeline, send_pipeline
from fairlead.client.receipts import error_of, raise_for
from fairlead.client.transactions import Transaction
from fairlead.model.options import Priorities
from fairlead.model.registry import Registry, TaskSpec

__all__ = ("AsyncTask", "Sender", "SyncTask", "Task", "awritten", "handles_of", "written")

P = ParamSpec("P")
R = TypeVar("R")


class Sender(Generic[P, R]):
    """Enqueues one task, with some options said beforehand."""

    def __init__(self, kind: Kind, clients: Clients, registry: Registry | None = None) -> None:
        """``registry`` has the tasks that declared dependencies are looked up among."""
        self._kind = kind
        self._clients = clients
        self._registry = registry

    @property
    def name(self) -> str:
        """The name under which the task is registered."""
        return self._kind.spec.name

    def using(self, **options: Unpack[CallOptions]) -> Sender[P, R]:
        """The same task with other options; what is not said here stays as it was."""
        return Sender(self._kind.using(options), self._clients, self._registry)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R]:
        """A call to be enqueued later, with others: ``app.enqueue_many``."""
        if self._kind.tx is not None:
            self._kind.for_call()
        return self._made(args, kwargs)

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskCall[R]:
        return TaskCall(self._kind, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the task from sync code and return once the broker has accepted it.

        With ``using(tx=...)``: once it is written in that transaction.
        """
        kind = self._kind
        submission = kind.plain(args, kwargs)
        if submission is None:
            call = self._made(args, kwargs)
            if self._registry is not None and kind.declares_dependencies:
                return send_pipeline(self._clients, self._registry, call, kind)
            submission = call.submission()
            if kind.tx is not None:
                return written(self._clients, kind.tx, call, submission)
        receipt = self._clients.submit(submission, kind.enqueue_timeout, kind.durability)
        raise_for(receipt, submission)
        return handle_for(self._clients, kind.spec, receipt, submission)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the task and return once the broker has accepted it.

        Everything is checked before anything is written. Concurrent calls share one trip. With
        ``using(tx=...)`` it returns once the task is written in that transaction.
        """
        kind = self._kind
        submission = kind.plain(args, kwargs)
        if submission is None:
            call = self._made(args, kwargs)
            if self._registry is not None and kind.declares_dependencies:
                return await asend_pipeline(self._clients, self._registry, call, kind)
            submission = call.submission()
            if kind.tx is not None:
                return await awritten(self._clients, kind.tx, call, submission)
        client = self._clients.current()
        receipt = await client.submit(submission, kind.enqueue_timeout, kind.durability)
        raise_for(receipt, submission)
        return handle_for(self._clients, kind.spec, receipt, submission)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    if not TYPE_CHECKING:  # a checker would take it for any attribute

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute(self, name, TASK)


class Task(Sender[P, R]):
    """A registered function: call it directly, or enqueue it.

    ``P`` are the arguments to enqueue it with: those of the function, without the context that
    the worker puts in front. ``R`` is what the function returns, once awaited.
    """

    def __init__(
        self,
        spec: TaskSpec,
        clients: Clients,
        priorities: Priorities,
        registry: Registry | None = None,
    ) -> None:
        super().__init__(Kind(spec, priorities), clients, registry)
        self._function: Callable[..., Any] = spec.handler
        functools.update_wrapper(self, spec.handler)

    @property
    def declared_id(self) -> str:
        """The id that calls have which do not say otherwise; empty if none was declared."""
        id = self._kind.spec.options.id
        return "" if id is UNSET else id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here and now, as if it had never been registered."""
        return self._function(*args, **kwargs)


class SyncTask(Task[P, R]):
    """A registered ``def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it had never been registered."""
        value: R = self._function(*args, **kwargs)
        return value


class AsyncTask(Task[P, R]):
    """A registered ``async def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function here and now, as if it had never been registered."""
        coroutine: Coroutine[Any, Any, R] = self._function(*args, **kwargs)
        return coroutine


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
    if any(receipt.code != "accepted" and receipt.code != "duplicate" for receipt in receipts):
        errors = list(map(error_of, receipts, submissions))
        refused = next(error for error in errors if error is not None)
        stand = errors.count(None)
        refused.add_note(
            f"{stand} of {len(calls)} tasks were accepted. The same calls may be enqueued again: "
            "those that were accepted are recognized by their ids."
        )
        raise refused
    return [
        call.accepted(clients, receipt, submission, kind)
        for call, receipt, submission in zip(calls, receipts, submissions, strict=True)
    ]
