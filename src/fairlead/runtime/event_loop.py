"""Event loops: uvloop's where there is one."""

from __future__ import annotations

import asyncio

__all__ = ("new_loop", "new_runner")


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
