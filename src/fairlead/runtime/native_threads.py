"""Real threads and locks, also where gevent has put greenlets in their place.

After ``gevent.monkey.patch_all()`` a "thread" is a greenlet of the thread that starts it. An event
loop in one would never yield to the others, so the loop of sync code needs a real one; and those
who wait for it must wait as greenlets do, or everything else in their thread would stand still.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import sys
from collections.abc import Callable
from typing import Any


def are_threads_patched() -> bool:
    """Whether gevent has replaced the threads of this process."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def new_lock() -> Any:
    """A lock of the operating system, for what is held for moments only."""
    return _original("allocate_lock")()


def get_ident() -> int:
    """The real thread that this runs in."""
    return int(_original("get_ident")())


def start_thread(function: Callable[..., object], *args: object) -> None:
    """Run a function in a real thread that nobody waits for."""
    _original("start_new_thread")(function, args)


def wait_as_greenlet(future: concurrent.futures.Future[Any]) -> None:
    """Let other greenlets of this thread run until a future of another thread is done."""
    import gevent  # type: ignore[import-untyped, unused-ignore]
    import gevent.event  # type: ignore[import-untyped, unused-ignore]

    done = gevent.event.Event()
    watcher = gevent.get_hub().loop.async_()  # the one thing that other threads may touch
    watcher.start(done.set)
    try:
        future.add_done_callback(lambda _: watcher.send())
        done.wait()
    finally:
        watcher.stop()
        watcher.close()


def _original(name: str) -> Any:
    if are_threads_patched():
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    return getattr(_thread, name)
