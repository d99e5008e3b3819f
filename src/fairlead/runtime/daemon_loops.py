"""Event loops in daemon threads: how one is made to stand still, and that each does at the end.

A loop that is still running when the interpreter is taken down may call into it once more, from C,
and end the process by a segmentation fault after all its work was done.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import Any

from fairlead.runtime.native_threads import new_lock
from fairlead.runtime.process_hooks import at_fork, at_the_end

_PATIENCE = 1.0  # seconds that a callback has to come to its end

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def stand_still_at_the_end(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop in a daemon thread stand still for ever, once all exit handlers are through."""
    _loops.add(loop)


def stand_still(loop: asyncio.AbstractEventLoop) -> Any:
    """Stop a loop of another thread between two callbacks, until the returned lock is released."""
    stopped, go_on = new_lock(), new_lock()
    stopped.acquire()
    go_on.acquire()

    def hold() -> None:
        stopped.release()
        go_on.acquire()

    loop.call_soon_threadsafe(hold)
    stopped.acquire(timeout=_PATIENCE)
    return go_on


def _end() -> None:
    for loop in list(_loops):
        with suppress(RuntimeError):  # it is closed already
            stand_still(loop)


at_fork(after_in_child=_loops.clear)  # their threads do not exist there
at_the_end(_end)
