"""Which handlers run spooled tasks in this process: those of the app, as in its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.worker.extras import Extras

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.fallback.local import Finished, Handlers

__all__ = ("local_handlers_of",)


def local_handlers_of(app: Fairlead, concurrency: int, finished: Finished) -> Handlers:
    """Return what runs tasks of an app, so many at a time. Nothing is open before it is used."""
    # Here: most programs run no tasks of their own.
    from fairlead.worker.local import LocalHandlers

    clients = app._clients
    return LocalHandlers(
        clients.store,
        app._registry,
        finished,
        extras=Extras(
            around=app._around,
            lifespan=app._lifespan,
            limit=clients.limit,
            counters=clients.counters,
        ),
        concurrency=concurrency,
        task_timeout=app._task_timeout,
        exceptions=app._raised,
    )
