"""The class ``Fairlead``: what programs make, and where its methods are found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from msgspec import UNSET

from fairlead.app import admin, flows, services
from fairlead.app.backend import check_arguments, open_clients
from fairlead.app.decorator import TaskRegistrar, defaults_of, schedule, task
from fairlead.app.drain import drain
from fairlead.app.hooks import HookOptions, Hooks
from fairlead.app.middleware import EnqueueMiddleware, RunMiddleware, context_manager_of
from fairlead.app.worker import local_handlers_of, task_limit, worker, worker_of
from fairlead.broker import Store, shown_url
from fairlead.client import (
    BoundTask,
    EventInfo,
    Handle,
    NamedSender,
    Schedules,
    Sender,
    TaskCall,
    aenqueue_calls,
    enqueue_calls,
)
from fairlead.client.errors import APP, telling
from fairlead.client.ledger_handle import handle_of
from fairlead.client.limits import DeclaredLimits
from fairlead.client.transactions import Connection
from fairlead.model.backoff import Backoff
from fairlead.model.codecs import Codec
from fairlead.model.durations import Duration
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.names import id_and_tenant
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry
from fairlead.settings import Fallback
from fairlead.telemetry.counters import Counters
from fairlead.worker.app_services import AroundRun
from fairlead.worker.run.lifespan import Lifespan

if TYPE_CHECKING:
    from fairlead.worker.runner import Raised

R = TypeVar("R")
F = TypeVar("F", bound=Callable[[], Any])
H = TypeVar("H", bound=Callable[[EventInfo], Any])

_KEPT = 100  # exceptions of handlers


@telling(APP)
class Fairlead:
    """A set of tasks and the broker they go through.

    May be used from any number of threads and event loops, and after ``os.fork``.
    """

    # A line ``name = function`` makes a method of a function of this package, which takes the app.

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: Mapping[str, str] | None = None,
        routes: Mapping[str, str] | None = None,
        namespace: str | None = None,
        priorities: Mapping[Any, str | int] | None = None,
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
        codec: Codec | Sequence[Codec] | None = None,
        **unknown: Never,
    ) -> None:
        """Make an app. It connects with the first call, not here.

        Those marked (*) come from the environment if they are not given (FAIRLEAD_URL and so on),
        else from ``fairlead.toml`` in the working directory; shards and routes unless ``url`` is.
        Durations are seconds, a timedelta, or text such as "5m". Without any URL the app starts
        a Valkey server in ./.fairlead, with a warning; FAIRLEAD_REQUIRE_URL=1 refuses that.

        Args:
            url: The broker (*): "redis://host", "memory://", ... Default: "embedded://".
            shards: The shard of each queue, by its name. Default: [shards] of the file, else one.
            routes: URLs of other servers, by queue:NAME or priority:LEVEL (*). Default: none.
            namespace: Keeps apart what shares a server, unless the URL does (*). Default: none.
            priorities: Levels by further names, or a number for every name. Default: none.
            task_timeout: How long an attempt may take, as a duration. Default: no limit.
            max_retries: Attempts after the first, of tasks that name no number. Default: 5.
            backoff: The wait before retries of tasks that name none. Default: ``Backoff()``.
            on_dependency_failure: "dead", "cancel", "wait" or "run". Default: "dead".
            store: A broker that is open already, instead of ``url``. Default: none.
            timeout: How long a call to the broker may take (*), a duration. Default: 10 seconds.
            ledger: The URL of a PostgreSQL as the record (*). Default: none.
            fallback: While the broker is away (*): "none", "spool" or "local". Default: "none".
            spool: The folder of tasks kept for the broker (*). Default: "./.fairlead/spool".
            local_queues: The queues that ``fallback="local"`` runs here (*). Default: none.
            codec: Compresses or encrypts values; the first writes, all read. Default: none.
        """
        known, spread = Fairlead.__init__.__kwdefaults__ or (), {"shards": shards, "routes": routes}
        check_arguments(url, store, spread, priorities, namespace, unknown, known)
        self._priorities = Priorities(priorities)
        self._clients, self._url, self._is_named = open_clients(
            url,
            store,
            shards=shards,
            routes=routes,
            namespace=namespace,
            timeout=timeout,
            ledger=ledger,
            fallback=fallback,
            spool=spool,
            local_queues=local_queues,
            handlers=partial(local_handlers_of, self),
            priorities=self._priorities,
            codec=codec,
        )
        self._task_timeout = task_limit(task_timeout)
        self._registry = Registry()
        defaults = defaults_of(max_retries, backoff, on_dependency_failure)
        self._registrar = TaskRegistrar(self._registry, self._clients, self._priorities, defaults)
        self._raised: deque[Raised] = deque(maxlen=_KEPT)  # by handlers, in all workers
        self._around: list[AroundRun] = []
        self._lifespan = Lifespan()
        self._schedules = Schedules(self._clients)
        self._limits = DeclaredLimits()
        self._hooks = Hooks(self._clients)

    # -- tasks --------------------------------------------------------------------------------

    task = task

    def registered(self, name: str) -> Sender[..., Any]:
        """Return the task that is registered under a name, to be enqueued or scheduled."""
        codecs = self._clients.codecs
        kind = BoundTask(self._registry.get(name), self._priorities, codecs=codecs)
        return Sender(kind, self._clients, self._registry)

    def named(self, name: str, *, strict: bool | None = None) -> Sender[..., Any]:
        """Return a task by name, also where its code is not.

        What workers tell of it are its options, and arguments that none of them would take are
        refused. So is a name that no worker has, if there are workers (``UnknownTask`` names the
        closest), unless ``strict=False``; where no worker is known at all it is accepted, unless
        ``strict=True``.

        Args:
            strict: False accepts a name that no worker has, True refuses it. Default: see above.
        """
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
        """Enqueue calls, which may depend on each other, from sync code; 500 in one trip.

        All are checked before any is written. ``aenqueue_many`` says what happens to refused ones.

        Args:
            timeout: How long all of them together may take, a duration. Default: that of the calls.
            tx: Your connection, session or Django alias: they are written there. Default: none.
        """
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
        Without a ``timeout`` the shortest ``enqueue_timeout`` of a call is for all of them; without
        either each trip has the time limit of the app. With ``tx`` they exist if and only if that
        transaction commits.

        Args:
            timeout: How long all of them together may take, a duration. Default: that of the calls.
            tx: Your connection, session or Django alias: they are written there. Default: none.
        """
        return await aenqueue_calls(self._clients, self._registry, calls, timeout, tx)

    def handle(self, id: str, tenant: str | None = None) -> Handle[Any]:
        """Return a handle for a task that was enqueued before, by its id.

        An id that Fairlead made is enough, whatever the tenant. A chosen id belongs to its tenant,
        which is the default one unless you say another.

        Args:
            tenant: Only a task of this tenant is found. Default: of any, if Fairlead made the id.
        """
        return handle_of(self._clients, *id_and_tenant(id, tenant))

    # -- around tasks and workers -------------------------------------------------------------

    def around_run(self, middleware: RunMiddleware) -> RunMiddleware:
        """Run an async generator function around every attempt: up to its ``yield``, and on.

        The first one registered is outermost. At the ``yield`` it sees what the handler raised.
        What it raises itself is the attempt's failure; if it swallows the handler's, the attempt
        succeeded without a result. Its time counts as the attempt's.
        """
        self._around.append(context_manager_of(middleware, "around_run"))
        return middleware

    def around_enqueue(self, middleware: EnqueueMiddleware) -> EnqueueMiddleware:
        """Run an async generator function around every enqueue of this app, for each task.

        What it puts into ``enqueuing.headers`` before its ``yield`` travels with the task; what it
        raises there keeps the task from being written, and the caller gets it.
        """
        self._clients.around.append(context_manager_of(middleware, "around_enqueue"))
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

    asgi = services.asgi

    # -- working ------------------------------------------------------------------------------

    worker = worker
    drain = drain
    manager = services.manager

    @property
    def exceptions(self) -> list[Raised]:
        """The last exceptions that handlers raised in the workers of this app, for tests."""
        return list(self._raised)

    @property
    def counters(self) -> Counters:
        """What this process enqueued and ran; see ``fairlead.telemetry.metrics.export``."""
        return self._clients.counters

    _worker = worker_of

    # -- for operators ------------------------------------------------------------------------

    aconfigure_queue = admin.aconfigure_queue
    configure_queue = admin.configure_queue
    aconfigure_tenant = admin.aconfigure_tenant
    configure_tenant = admin.configure_tenant
    aconfigure_limiter = admin.aconfigure_limiter
    configure_limiter = admin.configure_limiter
    aqueue_settings = admin.aqueue_settings
    queue_settings = admin.queue_settings
    atenant_settings = admin.atenant_settings
    tenant_settings = admin.tenant_settings
    alimiter_settings = admin.alimiter_settings
    limiter_settings = admin.limiter_settings
    declare_queue = admin.declare_queue
    declare_tenant = admin.declare_tenant
    declare_limiter = admin.declare_limiter
    asnapshot = admin.asnapshot
    snapshot = admin.snapshot
    astats = admin.astats
    stats = admin.stats
    events = admin.events
    apurge = admin.apurge
    purge = admin.purge
    adelete_queue = admin.adelete_queue
    delete_queue = admin.delete_queue
    apage = admin.apage
    page = admin.page
    ahistory = admin.ahistory
    history = admin.history
    atask_history = admin.atask_history
    task_history = admin.task_history
    aworkers = admin.aworkers
    workers = admin.workers

    # -- flows and schedules ------------------------------------------------------------------

    enqueue_flow = flows.enqueue_flow
    aenqueue_flow = flows.aenqueue_flow
    flow = flows.flow
    schedule = schedule

    @property
    def schedules(self) -> Schedules:
        """The schedules of the broker: to be listed, made, changed, paused and deleted."""
        return self._schedules

    # -- the end ------------------------------------------------------------------------------

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
