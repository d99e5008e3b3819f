"""The facade: the only module that joins client and worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from msgspec import UNSET

from fairlead.app.broker_url import check_arguments
from fairlead.app.decorator import TaskRegistrar, defaults_of
from fairlead.app.drained import Drained
from fairlead.app.hooks import HookOptions, Hooks
from fairlead.app.http import asgi_of
from fairlead.app.local import local_handlers_of
from fairlead.app.manager import manager_of
from fairlead.app.middleware import EnqueueMiddleware, RunMiddleware
from fairlead.app.opening import open_clients
from fairlead.app.run_all import drain_app
from fairlead.app.worker import worker_of
from fairlead.broker import Store, shown_url
from fairlead.client import (
    EventInfo,
    Flowing,
    Handle,
    Kind,
    NamedSender,
    Operating,
    Schedules,
    Scheduling,
    Sender,
    TaskCall,
    aenqueue_calls,
    enqueue_calls,
)
from fairlead.client.declared_limits import DeclaredLimits
from fairlead.client.habits import APP, no_attribute
from fairlead.client.ledger_handle import handle_of
from fairlead.client.transactions import Connection
from fairlead.model.backoff import Backoff
from fairlead.model.durations import Duration
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.names import id_and_tenant
from fairlead.model.options import Priorities, Priority, seconds
from fairlead.model.registry import Registry
from fairlead.runtime.surrounding import surrounding
from fairlead.settings import Fallback
from fairlead.telemetry.counters import Counters
from fairlead.worker.extras import AroundRun
from fairlead.worker.lifespan import Lifespan

if TYPE_CHECKING:
    from fairlead.api.server import Server
    from fairlead.api.settings import ApiSettings
    from fairlead.manager.manager import Manager
    from fairlead.worker.runner import Raised
    from fairlead.worker.worker import Worker

__all__ = ("Fairlead",)

R = TypeVar("R")
F = TypeVar("F", bound=Callable[[], Any])
H = TypeVar("H", bound=Callable[[EventInfo], Any])

_KEPT = 100  # exceptions of handlers


class Fairlead(Operating, Flowing, Scheduling):
    """A set of tasks and the broker they go through.

    ``url`` says which broker: ``redis://host``, ``memory://``, ``embedded://PATH``, ... Without one
    the environment variable FAIRLEAD_URL does, or ``url`` in ``fairlead.toml`` in the working
    directory. If nobody says, it is a Valkey server of its own in ./.fairlead, which starts with
    the first call, and a warning says so; with FAIRLEAD_REQUIRE_URL=1 that is refused. ``shards``
    spreads queues over shards of a server or cluster: the shard of each queue by its name.
    ``routes`` leads queues and priorities to other servers: the URL of each, by ``queue:NAME`` or
    ``priority:LEVEL``; without it FAIRLEAD_ROUTES or the file does, if the URL is from there.
    ``store`` takes a broker that is open already. ``priorities`` names further priorities, each for
    one of critical, high, normal and low. ``timeout`` is how long a call may take that does not say
    so itself; without it the URL says so (``?timeout=2s``), FAIRLEAD_TIMEOUT, the file, or it is
    ten seconds. ``task_timeout``, ``max_retries``, ``backoff`` and ``on_dependency_failure`` are
    those of tasks that say nothing of theirs. ``ledger``
    is the URL of a PostgreSQL as the record; without it FAIRLEAD_LEDGER, or the file.
    ``fallback="spool"`` keeps tasks in a folder, ``spool``, while the broker is away, and sends
    them later; ``"local"`` also runs those of ``local_queues`` in this process meanwhile.

    May be used from any number of threads and event loops, and after ``os.fork``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: Mapping[str, str] | None = None,
        routes: Mapping[str, str] | None = None,
        priorities: Mapping[Priority, str] | None = None,
        task_timeout: Duration | None = None,
        max_retries: int | None = None,
        backoff: Backoff | None = None,
        on_dependency_failure: DependencyPolicy | None = None,
        store: Store | None = None,
        timeout: Duration | None = None,
        ledger: str | None = None,
        fallback: Fallback | None = None,
        spool: str | PathLike[str] | None = None,
        local_queues: Sequence[str] | None = None,
    ) -> None:
        check_arguments(url, store, {"shards": shards, "routes": routes}, priorities)
        self._clients, self._url, self._is_named = open_clients(
            url,
            store,
            shards=shards,
            routes=routes,
            timeout=timeout,
            ledger=ledger,
            fallback=fallback,
            spool=spool,
            local_queues=local_queues,
            handlers=partial(local_handlers_of, self),
        )
        self._priorities = Priorities(priorities)
        self._task_timeout = _limit(task_timeout)
        self._registry = Registry()
        defaults = defaults_of(max_retries, backoff, on_dependency_failure)
        self._registrar = TaskRegistrar(self._registry, self._clients, self._priorities, defaults)
        self._raised: deque[Raised] = deque(maxlen=_KEPT)  # by handlers, in all workers
        self._around: list[AroundRun] = []
        self._lifespan = Lifespan()
        self._schedules = Schedules(self._clients)
        self._limits = DeclaredLimits()
        self._hooks = Hooks(self._clients)

    # -- tasks ----------------------------------------------------------------------------------

    @property
    def task(self) -> TaskRegistrar:
        """Registers a function as a task: ``@app.task`` or ``@app.task(queue="mail", ...)``.

        It can still be called like a function. A first parameter annotated ``Context`` is filled
        in by the worker and left out when the task is enqueued. ``TaskOptions`` has the options.
        """
        return self._registrar

    def registered(self, name: str) -> Sender[..., Any]:
        """The task that is registered under a name, to be enqueued or scheduled."""
        kind = Kind(self._registry.get(name), self._priorities)
        return Sender(kind, self._clients, self._registry)

    def named(self, name: str, *, strict: bool | None = None) -> Sender[..., Any]:
        """A task by name, also where its code is not; see ``NamedSender`` for unknown names."""
        return NamedSender.of(name, self._clients, self._registry, self._priorities, strict=strict)

    def send(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueue a task by name from sync code; see ``named``."""
        return self.named(name).enqueue(*args, **kwargs)

    async def asend(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueue a task by name; see ``named``."""
        return await self.named(name).aenqueue(*args, **kwargs)

    def enqueue_many(
        self,
        calls: Iterable[TaskCall[R]],
        *,
        timeout: Duration | None = None,
        tx: Connection = UNSET,
    ) -> list[Handle[R]]:
        """Enqueue calls from sync code; see ``aenqueue_many``."""
        return enqueue_calls(self._clients, self._registry, calls, timeout, tx)

    async def aenqueue_many(
        self,
        calls: Iterable[TaskCall[R]],
        *,
        timeout: Duration | None = None,
        tx: Connection = UNSET,
    ) -> list[Handle[R]]:
        """Enqueue calls, which may depend on each other, with up to 500 in one trip.

        All are checked before any is written, a cycle of dependencies among them too. If the
        broker refuses some (a full queue, for example), the error is raised once all were tried;
        the same calls may be enqueued again, and those that were accepted are recognized.
        ``timeout`` is for all of them together, else the shortest ``enqueue_timeout`` of a call is;
        without either each trip has the time limit of the app.

        With ``tx`` they are written in that transaction, and exist if and only if it commits.
        """
        return await aenqueue_calls(self._clients, self._registry, calls, timeout, tx)

    def handle(self, id: str, tenant: str | None = None) -> Handle[Any]:
        """A handle for a task that was enqueued before, by its id.

        An id that Fairlead made is enough, whatever the tenant; with ``tenant`` only a task of that
        one is found. A chosen id belongs to its tenant: the default one, unless it is said.
        """
        return handle_of(self._clients, *id_and_tenant(id, tenant))

    # -- around tasks and workers ---------------------------------------------------------------

    def around_run(self, middleware: RunMiddleware) -> RunMiddleware:
        """Run an async generator function around every attempt: up to its ``yield``, and on.

        The first one registered is outermost. At the ``yield`` it sees what the handler raised.
        What it raises itself is the attempt's failure; if it swallows the handler's, the attempt
        succeeded without a result. Its time counts as the attempt's.
        """
        self._around.append(surrounding(middleware, "around_run"))
        return middleware

    def around_enqueue(self, middleware: EnqueueMiddleware) -> EnqueueMiddleware:
        """Run an async generator function around every enqueue of this app, for each task.

        What it puts into ``enqueuing.headers`` before its ``yield`` travels with the task; what it
        raises there keeps the task from being written, and the caller gets it.
        """
        self._clients.around.append(surrounding(middleware, "around_enqueue"))
        return middleware

    def on_startup(self, function: F) -> F:
        """Call a function before a worker fetches its first task: sync or async, with a resource.

        The resource is what it returns. Or it yields it once, and the rest runs when the last task
        has ended; at the end the order is the other way round. Handlers find it in
        ``ctx.resources``, under the function's name.
        """
        self._lifespan.add("startup", function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Call a function, sync or async, when the last task of a worker has ended."""
        self._lifespan.add("shutdown", function)
        return function

    def on(self, *types: str, **options: Unpack[HookOptions]) -> Callable[[H], H]:
        """Call a function for events, in the workers: ``@app.on("dead", queue="mail")``.

        It takes an ``EventInfo``. Each event is handled by one process, at least once: what was not
        finished when that died comes again in another. One that fails is called again a few times.
        """
        return self._hooks.on(types, options)

    @property
    def resources(self) -> Mapping[str, Any]:
        """What ``on_startup`` functions opened, by their names; empty while no worker runs."""
        return self._lifespan.resources

    def asgi(self, settings: ApiSettings | None = None) -> Server:
        """The HTTP API of this app, to be mounted into an ASGI application or run by a server.

        ``settings`` say who is let in; without any, only callers with tokens that use a name of
        this machine. Needs ``pip install "fairlead[server]"``.
        """
        return asgi_of(self._clients, self._registry, self._priorities, settings)

    # -- working --------------------------------------------------------------------------------

    def worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, float] | None = None,
        strict: bool = False,
        concurrency: int = 10,
        threads: int = 10,
        grace: float = 30.0,
        task_timeout: Duration | None = None,
        log_tasks: bool = False,
        log_errors: bool = False,
        hooks: bool = True,
    ) -> Worker:
        """A worker in this process: ``async with app.worker(): ...``.

        ``queues`` are names, or weights by name; without any it serves ``default`` and every queue
        that a task of this app names. ``strict`` empties earlier queues before later ones. At the
        end of the block what runs has ``grace`` seconds to finish before it is handed back.
        ``task_timeout`` is that of tasks that say nothing of theirs; without it, the app's.
        ``log_tasks`` logs a line for each task that is completed, ``log_errors`` adds the text and
        the traceback to lines of those that failed; without ``hooks`` it runs none.
        """
        return self._worker(
            queues=queues,
            strict=strict,
            concurrency=concurrency,
            threads=threads,
            grace=grace,
            task_timeout=_limit(task_timeout),
            log_tasks=log_tasks,
            log_errors=log_errors,
            hooks=hooks,
        )

    async def drain(
        self,
        *,
        queues: Sequence[str] | None = None,
        limit: int | None = 10_000,
        raise_errors: bool = False,
    ) -> Drained:
        """Run all that is due now and all that comes of it; how many attempts there were.

        For tests: what is due later stays where it is, and retries get their full backoff, whatever
        the jitter. The number that is returned has ``left``: what did not run, and why. What
        handlers raised is in ``exceptions``, and is raised in the end with ``raise_errors``.
        Without ``queues`` all that there are are served. More than ``limit`` attempts raise an
        error, because a task that enqueues itself would keep this going for ever; None is no limit.
        A handler that does not stop when its time is up is waited for.
        """
        return await drain_app(self, queues, limit, raise_errors=raise_errors)

    def manager(self, *, keep: Duration = "30d") -> Manager:
        """A queue manager in this process: ``async with app.manager(): ...``. Needs a ledger.

        As with ``fairlead manager`` there may be several: one leads. Rows are kept for ``keep``
        after their task has ended.
        """
        return manager_of(self, keep)

    @property
    def exceptions(self) -> list[Raised]:
        """The last exceptions that handlers raised in the workers of this app, for tests."""
        return list(self._raised)

    @property
    def counters(self) -> Counters:
        """What this process enqueued and ran; see ``fairlead.telemetry.metrics.export``."""
        return self._clients.counters

    def _worker(self, **options: Any) -> Worker:
        return worker_of(self, **options)

    async def aclose(self) -> None:
        """Wait for what this loop is enqueueing, then close the broker for good.

        It takes in and hands out nothing more; what runs can still be finished, and read.
        """
        await self._clients.close()

    def close(self) -> None:
        """Wait for what sync code is enqueueing, then close the broker for good; see ``aclose``."""
        self._clients.sync_close()

    def __repr__(self) -> str:
        where = "store" if self._url is None else shown_url(self._url)
        return f"<Fairlead {where}, {len(self._registry)} tasks>"

    if not TYPE_CHECKING:  # a checker would take it for any attribute

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute(self, name, APP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds("task_timeout", timeout, least=0.001)
