"""Workers of an app, and its handlers for spooled tasks: what they are made of."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.client import Clients, FencedEnqueuer, Schedules
from fairlead.client.limits import DeclaredLimits, raise_first
from fairlead.model.catalog import published
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput
from fairlead.model.options import seconds
from fairlead.runtime.ids import new_id
from fairlead.runtime.native_threads import are_threads_patched
from fairlead.worker.app_services import AppServices

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.fallback.local_tasks import Finished, Handlers
    from fairlead.worker.worker import Worker

_log = logging.getLogger("fairlead.worker")


def task_limit(timeout: Duration | None) -> float | None:
    """Return ``task_timeout`` of an app or a worker in seconds."""
    return None if timeout is None else seconds("task_timeout", timeout, least=0.001)


def worker(
    app: Fairlead,
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
    """Return a worker for this process: ``async with app.worker(): ...``.

    Args:
        queues: Names, or weights by name. Default: "default" and those that tasks of the app name.
        strict: True empties earlier queues, or heavier ones, before others. Default: False.
        concurrency: How many attempts run at a time, up to 10,000. Default: 10.
        threads: How many threads run sync handlers, up to 10,000. Default: 10.
        grace: Seconds to finish what runs at the end, before it is handed back. Default: 30.
        task_timeout: How long an attempt may take, seconds or such as "5m". Default: the app's.
        log_tasks: True logs a line for each task that is completed. Default: False.
        log_errors: True adds text and traceback to lines of failed attempts. Default: False.
        hooks: False runs none of the hooks of ``app.on``. Default: True.
    """
    made = worker_of(
        app,
        queues=queues,
        strict=strict,
        concurrency=concurrency,
        threads=threads,
        grace=grace,
        task_timeout=task_limit(task_timeout),
        log_tasks=log_tasks,
        log_errors=log_errors,
        hooks=hooks,
    )
    weakref.finalize(made, _warn_if_unused, made.used)
    return made


def _warn_if_unused(used: Sequence[object]) -> None:
    """Log it if a worker is thrown away that never ran: mostly ``async with`` was forgotten."""
    if not used:
        _log.warning("app.worker() made a worker that never ran; use: async with app.worker(): ...")


def worker_of(
    app: Fairlead,
    *,
    log_tasks: bool = False,
    log_errors: bool = False,
    hooks: bool = True,
    **options: Any,
) -> Worker:
    """Return a worker for the tasks of an app; ``options`` go to ``Worker``. It does not run yet.

    Raises InvalidInput where gevent has replaced the threads.
    """
    if are_threads_patched():
        raise InvalidInput(
            "gevent has replaced the threads of this process, which a worker needs for its "
            "handlers; run `fairlead worker`, and patch only in the program that enqueues"
        )
    # Here: most programs only enqueue.
    from fairlead.worker.config import slot_plan_of
    from fairlead.worker.worker import Worker

    clients = app._clients
    app._limits.joined()  # a file that is wrong is told now, not in a log line later
    options.setdefault("incarnation", new_id())
    options.setdefault("slot_plan", lambda: slot_plan_of(app))
    options["task_timeout"] = options.get("task_timeout") or app._task_timeout
    return Worker(
        clients.store,
        app._registry,
        exceptions=app._raised,
        services=AppServices(
            enqueuer=FencedEnqueuer(clients, app._registry),
            around=app._around,
            lifespan=app._lifespan,
            log_tasks=log_tasks,
            log_errors=log_errors,
            declare=partial(_declare, clients, app._limits, app._schedules),
            limit=clients.limit,
            counters=clients.counters,
            codecs=clients.codecs,
            hooks=app._hooks.made() if hooks else (),
            catalog=partial(published, app._registry, app._priorities),
            outcomes=clients.outcomes,
        ),
        **options,
    )


async def _declare(clients: Clients, limits: DeclaredLimits, schedules: Schedules) -> None:
    """Write all that a program declares; what is refused does not keep the rest from it.

    Raises the first error once everything was tried.
    """
    ends = await asyncio.gather(
        limits.write(clients.current()), schedules.adeclare(), return_exceptions=True
    )
    raise_first(ends)


def local_handlers_of(app: Fairlead, concurrency: int, finished: Finished) -> Handlers:
    """Return what runs tasks of an app, so many at a time. Nothing is open before it is used."""
    # Here: most programs run no tasks of their own.
    from fairlead.worker.local_handlers import LocalHandlers

    clients = app._clients
    return LocalHandlers(
        clients.store,
        app._registry,
        finished,
        services=AppServices(
            around=app._around,
            lifespan=app._lifespan,
            limit=clients.limit,
            counters=clients.counters,
            codecs=clients.codecs,
        ),
        concurrency=concurrency,
        task_timeout=app._task_timeout,
        exceptions=app._raised,
    )
