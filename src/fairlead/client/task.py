"""What ``@app.task`` makes of a function: still callable, and ready to be enqueued."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from msgspec import UNSET

from fairlead.broker.submissions import filled, row_of
from fairlead.client.batch import asend_pipeline, awritten, send_pipeline, written
from fairlead.client.call import BoundTask, CallOptions, TaskCall, call_of
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.errors import TASK, raise_for, telling
from fairlead.client.handle import Handle, handle_for, returned
from fairlead.client.named_call import look_up, look_up_now, named_call, placeholder
from fairlead.model.errors import InvalidOption
from fairlead.model.names import check_task_name
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry, TaskSpec
from fairlead.runtime.ids import new_id

P = ParamSpec("P")
R = TypeVar("R")

_LEAST = 0.001  # seconds


@telling(TASK)
class Sender(Generic[P, R]):
    """Enqueues one task, with some options said beforehand."""

    def __init__(
        self, bound: BoundTask, clients: Clients, registry: Registry | None = None
    ) -> None:
        """``registry`` has the tasks that declared dependencies are looked up among."""
        self._bound = bound
        self._clients = clients
        self._registry = registry

    @property
    def name(self) -> str:
        """The name under which the task is registered."""
        return self._bound.spec.name

    def using(self, **options: Unpack[CallOptions]) -> Sender[P, R]:
        """Return the same task with other options; what is not said here stays as it was."""
        return Sender(self._bound.using(options), self._clients, self._registry)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R]:
        """Return a call to be enqueued later, with others: ``app.enqueue_many``."""
        bound = self._bound
        if not bound.is_usual:
            return call_of(bound.for_call(), args, kwargs)
        # The same, without a call for it: whoever makes many calls makes them here.
        made: TaskCall[R] = TaskCall()
        made.args, made.kwargs, made._bound = args, kwargs, bound
        made.spec, made.id = bound.spec, new_id()
        return made

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the task from sync code and return once the broker has accepted it.

        With ``using(tx=...)``: once it is written in that transaction.
        """
        bound = self._bound
        # The short way: a call that is plainly right. None: look closer.
        quick = bound.quick
        row = None if quick is None else quick.plain(new_id(), args, kwargs)
        if row is None:
            call: TaskCall[R] = call_of(bound, args, kwargs)
            if self._registry is not None and bound.declares_dependencies:
                return send_pipeline(self._clients, self._registry, call, bound)
            submission = call.submission()
            if bound.tx is not None:
                return written(self._clients, bound.tx, call, submission)
            row = row_of(submission)
        receipt = self._clients.submit(row, bound.enqueue_timeout, bound.durability)
        spec, like = bound.spec, row[0]
        if receipt.code == "accepted" and receipt.durability == "committed":
            # As nearly all are; by ``handle_for`` it takes twice as long.
            tenant, returns = like.message.tenant, returned(spec.handler)
            return Handle(self._clients, receipt.id, tenant, returns, spec.name)
        raise_for(receipt, filled(row))
        return handle_for(self._clients, spec, receipt, like)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the task and return once the broker has accepted it.

        Everything is checked before anything is written. Concurrent calls share one trip. With
        ``using(tx=...)`` it returns once the task is written in that transaction.
        """
        bound = self._bound
        # The short way: a call that is plainly right. None: look closer.
        quick = bound.quick
        row = None if quick is None else quick.plain(new_id(), args, kwargs)
        if row is None:
            call: TaskCall[R] = call_of(bound, args, kwargs)
            if self._registry is not None and bound.declares_dependencies:
                return await asend_pipeline(self._clients, self._registry, call, bound)
            submission = call.submission()
            if bound.tx is not None:
                return await awritten(self._clients, bound.tx, call, submission)
            row = row_of(submission)
        client = self._clients.current()
        receipt = await client.submit(row, bound.enqueue_timeout, bound.durability)
        spec, like = bound.spec, row[0]
        if receipt.code == "accepted" and receipt.durability == "committed":
            # As nearly all are; by ``handle_for`` it takes twice as long.
            tenant, returns = like.message.tenant, returned(spec.handler)
            return Handle(self._clients, receipt.id, tenant, returns, spec.name)
        raise_for(receipt, filled(row))
        return handle_for(self._clients, spec, receipt, like)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


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
        super().__init__(BoundTask(spec, priorities, codecs=clients.codecs), clients, registry)
        self._function: Callable[..., Any] = spec.handler
        functools.update_wrapper(self, spec.handler)

    @property
    def declared_id(self) -> str:
        """The id that calls have which do not say otherwise; empty if none was declared."""
        id = self._bound.spec.options.id
        return "" if id is UNSET else id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here and now, as if it had never been registered.

        One that takes a ``Context`` gets it from the caller: ``fairlead.testing.Kit`` makes one.
        """
        self._bound.spec.check_direct_call(args, kwargs)
        return self._function(*args, **kwargs)


class SyncTask(Task[P, R]):
    """A registered ``def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it had never been registered."""
        self._bound.spec.check_direct_call(args, kwargs)
        value: R = self._function(*args, **kwargs)
        return value


class AsyncTask(Task[P, R]):
    """A registered ``async def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function here and now, as if it had never been registered."""
        self._bound.spec.check_direct_call(args, kwargs)
        coroutine: Coroutine[Any, Any, R] = self._function(*args, **kwargs)
        return coroutine


class NamedSender(Sender[..., Any]):
    """Enqueues a task of which only the name is known here.

    What workers tell of it are its options: its queue, for example. Arguments that none of them
    would take are refused. If no worker has the task, but there are workers, it is refused as well
    (``UnknownTask`` names the closest); ``strict=False`` accepts it. If no worker is known at all
    it is accepted, with the options of the call and otherwise the usual ones, and a warning is
    logged once; ``strict=True`` refuses it.
    """

    def __init__(
        self, bound: BoundTask, clients: Clients, registry: Registry, *, strict: bool | None = None
    ) -> None:
        super().__init__(bound, clients)
        self._tasks = registry
        self._strict = strict

    @classmethod
    def of(
        cls,
        name: str,
        clients: Clients,
        registry: Registry,
        priorities: Priorities,
        *,
        strict: bool | None = None,
    ) -> NamedSender:
        """The sender of a name that may be registered later, or never."""
        if strict is not None and not isinstance(strict, bool):
            raise InvalidOption("strict", strict, "True, False or left out")
        spec = placeholder(check_task_name(name))
        bound = BoundTask(spec, priorities, codecs=clients.codecs)
        return cls(bound, clients, registry, strict=strict)

    def using(self, **options: Unpack[CallOptions]) -> NamedSender:
        """Return the same task with other options; what is not said here stays as it was."""
        bound = self._bound.using(options)
        return NamedSender(bound, self._clients, self._tasks, strict=self._strict)

    def call(self, *args: Any, **kwargs: Any) -> TaskCall[Any]:
        """Return a call to be enqueued later, with others: ``app.enqueue_many``."""
        self._bound.for_call()
        return self._made(args, kwargs)

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskCall[Any]:
        """A call that is looked up when it is enqueued."""
        bound = self._bound
        if self.name in self._tasks:
            spec = self._tasks.get(self.name)
            known = bound.on(spec)
            return call_of(known, args, kwargs)
        return named_call(bound, args, kwargs, self._strict)

    def enqueue(self, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueue the task from sync code and return once the broker has accepted it."""
        call = self._made(args, kwargs)
        if self._bound.tx is not None:
            look_up_now(self._clients, [call])
            return written(self._clients, self._bound.tx, call, call.submission())
        return self._clients.sync(lambda client: self._send(client, call))

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueue the task and return once the broker has accepted it."""
        call = self._made(args, kwargs)
        client = self._clients.current()
        if self._bound.tx is not None:
            await look_up(client, [call])
            return await awritten(self._clients, self._bound.tx, call, call.submission())
        return await self._send(client, call)

    async def _send(self, client: Client, call: TaskCall[Any]) -> Handle[Any]:
        now, limit = asyncio.get_running_loop().time, self._bound.enqueue_timeout
        began = now()
        await look_up(client, [call])
        submission = call.submission()
        if limit is not None:  # for both
            limit = max(limit - (now() - began), _LEAST)
        receipt = await client.submit(submission, limit, self._bound.durability)
        raise_for(receipt, submission)
        return call.accepted(self._clients, receipt, submission)
