"""What a worker of an app is made of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.client import Children
from fairlead.client.declared_limits import declare_all
from fairlead.model.catalog import published
from fairlead.model.errors import InvalidInput
from fairlead.runtime.ids import new_id
from fairlead.runtime.natives import are_threads_patched
from fairlead.worker.extras import Extras

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.worker.worker import Worker

__all__ = ("worker_of",)


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
    from fairlead.worker.setup import slot_plan_of
    from fairlead.worker.worker import Worker

    clients = app._clients
    options.setdefault("incarnation", new_id())
    options.setdefault("slot_plan", lambda: slot_plan_of(app))
    options["task_timeout"] = options.get("task_timeout") or app._task_timeout
    return Worker(
        clients.store,
        app._registry,
        exceptions=app._raised,
        extras=Extras(
            enqueuer=Children(clients, app._registry),
            around=app._around,
            lifespan=app._lifespan,
            log_tasks=log_tasks,
            log_errors=log_errors,
            declare=partial(declare_all, clients, app._limits, app._schedules),
            limit=clients.limit,
            counters=clients.counters,
            hooks=app._hooks.made() if hooks else (),
            catalog=partial(published, app._registry, app._priorities),
            outcomes=clients.outcomes,
        ),
        **options,
    )
