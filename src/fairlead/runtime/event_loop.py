"""Event loops: uvloop's where there is one, and what has to be done before one ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


def new_loop() -> asyncio.AbstractEventLoop:
    """A fresh event loop, of the fastest kind there is."""
    try:
        import uvloop
    except (ImportError, RuntimeError):  # the latter inside an exit handler: too late for imports
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def new_runner() -> asyncio.Runner:
    """Runs coroutines on such a loop, and cleans up after them."""
    return asyncio.Runner(loop_factory=new_loop)


async def outlasted(task: asyncio.Task[Any]) -> None:
    """Wait for a task that ends soon, however often the one that waits is cancelled meanwhile.

    ``asyncio.run`` waits in the end for the tasks that it cancels, and not for those that they
    start: these would be destroyed half done.
    """
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
