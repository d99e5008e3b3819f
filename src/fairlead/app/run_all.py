"""Running all that is due, and all that comes of it, for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from fairlead.app.drained import Drained, drained, errors_of
from fairlead.app.worker import worker_of
from fairlead.model.errors import FairleadError
from fairlead.model.names import DEFAULT_QUEUE

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.worker.worker import Worker

__all__ = ("drain_app", "run_all")


async def drain_app(
    app: Fairlead, queues: Sequence[str] | None, limit: int | None, *, raise_errors: bool
) -> Drained:
    """Run all that is due in an app; see ``Fairlead.drain``."""

    async def worker() -> Worker:
        served = await _all_queues(app) if queues is None else queues
        return worker_of(app, queues=served, hooks=False)

    before = app.exceptions
    async with app._lifespan:  # once, though there is more than one worker
        attempts = await run_all(worker, limit)
    client = app._clients.current()
    if raise_errors:
        raised = [each for each in app.exceptions if all(each is not old for old in before)]
        error = await errors_of(client, raised)
        if error is not None:
            raise error
    return await drained(client, attempts, queues)


async def _all_queues(app: Fairlead) -> list[str]:
    said = (spec.options.queue for spec in app._registry)
    named = {queue for queue in said if isinstance(queue, str)}
    return sorted({DEFAULT_QUEUE, *named, *(await app.asnapshot(tenants=False)).queues})


async def run_all(new_worker: Callable[[], Awaitable[Worker]], limit: int | None) -> int:
    """Let one worker after the other drain the broker; return how many attempts there were.

    More than ``limit`` attempts raise an error.
    """
    total, left = 0, limit
    while True:
        worker = await new_worker()
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
