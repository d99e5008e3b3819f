"""Running all that is due, and all that comes of it, for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fairlead.model.errors import FairleadError

if TYPE_CHECKING:
    from fairlead.worker.worker import Worker

__all__ = ("run_all",)


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
