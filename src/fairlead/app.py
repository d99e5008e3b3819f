"""The facade: the only module that joins client and worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from fairlead.broker import Store, connect
from fairlead.client import (
    AsyncTask,
    Client,
    Clients,
    Handle,
    LimiterSettings,
    Page,
    PageSelection,
    QueueSettings,
    Snapshot,
    Submission,
    SyncTask,
    Task,
    TaskCall,
    TaskOptions,
    TenantSettings,
    WorkerRecord,
    declared,
    handles_of,
    limiter_change,
    queue_change,
    tenant_change,
)
from fairlead.embedded import SCHEME, find_binary
from fairlead.model.errors import FairleadError, InvalidInput, InvalidOption
from fairlead.model.names import DEFAULT_QUEUE, DEFAULT_TENANT, check_queue, check_tenant, full_id
from fairlead.model.options import Priorities, Priority
from fairlead.model.registry import Registry
from fairlead.runtime.ids import new_id
from fairlead.settings import configured_url
from fairlead.worker import Context, Raised, Worker

__all__ = ("Fairlead", "TaskDecorator")

P = ParamSpec("P")
R = TypeVar("R")

_KEPT = 100  # exceptions of handlers


class TaskDecorator(Protocol):
    """What ``app.task(...)`` returns: makes a task of a function, with the options given."""

    # The overloads overlap on purpose: an async function is also one that returns a coroutine,
    # and one that takes a context is also one that takes something. The first that fits counts.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class Fairlead:
    """A set of tasks and the broker they go through.

    ``url`` says which broker: ``redis://host``, ``memory://``, ``embedded://PATH``, ... Without one
    the environment variable FAIRLEAD_URL does, or ``url`` in ``fairlead.toml`` in the working
    directory. If nobody says, it is a Valkey server of its own in ./.fairlead, which starts with
    the first call. ``store`` takes a broker that is open already, for example one that is wrapped.
    ``priorities`` names further priorities, each for one of critical, high, normal and low.

    May be used from any number of threads and event loops, and after ``os.fork``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        priorities: Mapping[Priority, str] | None = None,
        store: Store | None = None,
    ) -> None:
        if url is not None and store is not None:
            raise InvalidOption("url", url, "left out when a store is given")
        if url is not None and not isinstance(url, str):
            raise InvalidOption("url", url, "text such as memory://")
        if priorities is not None and not isinstance(priorities, Mapping):
            raise InvalidOption("priorities", priorities, "a level for each name or number")
        if store is None:
            store = connect(url or configured_url() or _own_server())
        self._clients = Clients(store)
        self._priorities = Priorities(priorities)
        self._registry = Registry()
        self._raised: deque[Raised] = deque(maxlen=_KEPT)  # by handlers, in all workers

    # -- tasks ----------------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail", ...)``.

        It can still be called like a function. A first parameter annotated ``Context`` is filled
        in by the worker and left out when the task is enqueued.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            spec = declared(function, options, self._priorities, Context)
            self._registry.add(spec)
            kind: type[Task[..., Any]] = AsyncTask if spec.is_async else SyncTask
            return kind(spec, self._clients, self._priorities)

        return register if function is None else register(function)

    def enqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[Handle[R]]:
        """Enqueue calls from sync code; see ``aenqueue_many``."""
        made, submissions = self._submissions(calls)
        receipts = self._clients.sync(lambda client: client.submit_many(submissions))
        return handles_of(self._clients, made, submissions, receipts)

    async def aenqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[Handle[R]]:
        """Enqueue calls, which may depend on each other, with up to 500 in one trip.

        All are checked before any is written, a cycle of dependencies among them too. If the
        broker refuses some (a full queue, for example), the error is raised once all were tried;
        the same calls may be enqueued again, and those that were accepted are recognized.
        """
        made, submissions = self._submissions(calls)
        receipts = await self._clients.current().submit_many(submissions)
        return handles_of(self._clients, made, submissions, receipts)

    def handle(self, id: str, tenant: str = DEFAULT_TENANT) -> Handle[Any]:
        """A handle for a task that was enqueued before, by its id."""
        return Handle(self._clients, full_id(check_tenant(tenant), id), tenant)

    def _submissions(
        self, calls: Iterable[TaskCall[R]]
    ) -> tuple[list[TaskCall[R]], list[Submission]]:
        if not isinstance(calls, Iterable):
            raise InvalidInput(f"{type(calls).__name__} is not a list of calls")
        made = list(calls)
        submissions = []
        for index, call in enumerate(made):
            if not isinstance(call, TaskCall):
                raise InvalidInput(
                    f"item {index} is {type(call).__name__}, not a call; use task.call(...)"
                )
            self._registry.get(call.spec.name)
            try:
                submissions.append(call.submission())
            except InvalidInput as error:
                error.add_note(f"in call {index}, of task {call.spec.name!r}; none was enqueued")
                raise
        return made, submissions

    # -- operating ------------------------------------------------------------------------------

    async def aconfigure_queue(self, name: str, /, **settings: Unpack[QueueSettings]) -> None:
        """Set limits, pause and retention of a queue; what is not named stays as it is."""
        await self._clients.current().configure([queue_change(name, **settings)])

    def configure_queue(self, name: str, /, **settings: Unpack[QueueSettings]) -> None:
        """Set limits, pause and retention of a queue, from sync code."""
        change = queue_change(name, **settings)
        self._clients.sync(lambda client: client.configure([change]))

    async def aconfigure_tenant(
        self, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
    ) -> None:
        """Set weight, limits and pause of a tenant, in one queue or in all of them."""
        await self._clients.current().configure([tenant_change(name, queue, **settings)])

    def configure_tenant(
        self, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
    ) -> None:
        """Set weight, limits and pause of a tenant, from sync code."""
        change = tenant_change(name, queue, **settings)
        self._clients.sync(lambda client: client.configure([change]))

    async def aconfigure_limiter(self, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
        """Set a named limiter, which tasks of all queues may share."""
        await self._clients.current().configure([limiter_change(name, **settings)])

    def configure_limiter(self, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
        """Set a named limiter, from sync code."""
        change = limiter_change(name, **settings)
        self._clients.sync(lambda client: client.configure([change]))

    async def asnapshot(self) -> Snapshot:
        """How many tasks there are, by state, queue and tenant."""
        return await self._clients.current().snapshot()

    def snapshot(self) -> Snapshot:
        """How many tasks there are, by state, queue and tenant, from sync code."""
        return self._clients.sync(lambda client: client.snapshot())

    async def apurge(self, queue: str | None = None, *, tenant: str | None = None) -> int:
        """Cancel all that waits, in one queue or in all, of one tenant or of all; how many."""
        return await _purge(self._clients.current(), queue, tenant)

    def purge(self, queue: str | None = None, *, tenant: str | None = None) -> int:
        """Cancel all that waits, from sync code; see ``apurge``."""
        return self._clients.sync(lambda client: _purge(client, queue, tenant))

    async def apage(self, **selection: Unpack[PageSelection]) -> Page:
        """Tasks, in an order of the store's own: ``apage(state="dead")`` is the dead letters.

        Read on with ``cursor=page.cursor`` until it is None; a page may be empty before that.
        """
        return await self._clients.current().page(selection)

    def page(self, **selection: Unpack[PageSelection]) -> Page:
        """The same from sync code; see ``apage``."""
        return self._clients.sync(lambda client: client.page(selection))

    async def aworkers(self) -> list[WorkerRecord]:
        """The workers of this broker that were heard of in the last 15 seconds."""
        return await self._clients.current().workers()

    def workers(self) -> list[WorkerRecord]:
        """The workers that were heard of lately, from sync code; see ``aworkers``."""
        return self._clients.sync(lambda client: client.workers())

    # -- working --------------------------------------------------------------------------------

    def worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, float] | None = None,
        strict: bool = False,
        concurrency: int = 10,
        threads: int = 10,
        grace: float = 30.0,
    ) -> Worker:
        """A worker in this process: ``async with app.worker(): ...``.

        ``queues`` are names, or weights by name; without any it serves ``default`` and every queue
        that a task of this app names. ``strict`` empties earlier queues before later ones. At the
        end of the block what runs has ``grace`` seconds to finish before it is handed back.
        """
        return self._worker(
            queues=queues, strict=strict, concurrency=concurrency, threads=threads, grace=grace
        )

    async def drain(
        self, *, queues: Sequence[str] | None = None, limit: int | None = 10_000
    ) -> int:
        """Run all that is due now and all that comes of it; how many attempts there were.

        For tests: what is due later stays where it is, and retries get their full backoff, whatever
        the jitter. What handlers raised is in ``exceptions``. Without ``queues`` all that there are
        are served. More than ``limit`` attempts raise an error, because a task that enqueues itself
        would keep this going for ever; None is no limit.
        """
        total, left = 0, limit
        while True:
            worker = self._worker(queues=await self._all_queues() if queues is None else queues)
            try:
                attempts = await worker.drain(limit=left)
            except FairleadError as error:
                if total:  # the error knows of this worker only
                    error.add_note(f"{total:,} attempts were made before, in the same drain")
                raise
            total += attempts
            left = None if left is None else left - attempts
            if not attempts:  # asked once more, for queues that did not exist before
                return total

    @property
    def exceptions(self) -> list[Raised]:
        """The last exceptions that handlers raised in the workers of this app, for tests."""
        return list(self._raised)

    def _worker(self, **options: Any) -> Worker:
        return Worker(
            self._clients.store,
            self._registry,
            incarnation=new_id(),
            exceptions=self._raised,
            **options,
        )

    async def _all_queues(self) -> list[str]:
        named = {
            spec.options.queue for spec in self._registry if isinstance(spec.options.queue, str)
        }
        return sorted({DEFAULT_QUEUE, *named, *(await self.asnapshot()).queues})

    async def aclose(self) -> None:
        """Wait for what this loop is enqueueing, then close the broker for good.

        It takes in and hands out nothing more; what runs can still be finished, and read.
        """
        await self._clients.close()

    def close(self) -> None:
        """Wait for what sync code is enqueueing, then close the broker for good; see ``aclose``."""
        self._clients.sync_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _own_server() -> str:
    """The URL of the broker that nobody had to name; raises where there is no program for it."""
    find_binary()  # looked for now: at the first call, the error would come from deep within
    return f"{SCHEME}://"


async def _purge(client: Client, queue: str | None, tenant: str | None) -> int:
    if tenant is not None:
        check_tenant(tenant)
    names = list((await client.snapshot()).queues) if queue is None else [check_queue(queue)]
    return sum([await client.purge(name, tenant) for name in names])
