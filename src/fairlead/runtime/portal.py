"""The way from sync code into asyncio: one background event loop per process.

Calls of all threads meet on one loop, so they share its group commits. The thread is a daemon and
starts with the first call. A forked child starts its own; at exit the process waits for writes of
daemon threads that are still under way, and at the very end the loop stands still. Where gevent has
patched the threads, the loop gets a real one all the same, and callers wait as greenlets.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fairlead.runtime.daemon_loops import stand_still, stand_still_at_the_end
from fairlead.runtime.event_loop import new_loop
from fairlead.runtime.native_threads import (
    are_threads_patched,
    get_ident,
    start_thread,
    wait_as_greenlet,
)
from fairlead.runtime.process_hooks import at_exit, at_fork, at_the_end

T = TypeVar("T")

_AT_EXIT = 5.0  # seconds that the process waits for outstanding calls
_SLICE = 1.0  # seconds after which a caller looks up from waiting


class Portal:
    """Runs coroutines for sync callers on a loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None  # its ident
        self._outstanding: set[concurrent.futures.Future[Any]] = set()
        self._lock = threading.Lock()
        self._go_on: Any = None  # a lock that the loop waits for, while a fork is under way
        self._inherited: list[object] = []
        self._has_ended = False

    def run(self, factory: Callable[[], Awaitable[T]], *, flushed: bool = True) -> T:
        """Await ``factory()`` on the portal's loop and return its value or raise its error.

        May be called from any thread, also from one whose own loop is running (which stands still
        meanwhile). At Ctrl-C the call is cancelled. ``flush`` does not wait for one that is not to
        be ``flushed``: nothing is lost when the process ends under it.
        """
        loop = self._start() if self._loop is None else self._loop
        if loop is None:
            return _run_here(factory)
        if self._thread == get_ident():
            raise RuntimeError(
                "a sync call inside the portal's own loop would wait for itself; "
                "use the async form (aenqueue, aresult, ...) here"
            )
        future = asyncio.run_coroutine_threadsafe(_awaited(factory), loop)
        try:
            if flushed:
                self._outstanding.add(future)
                future.add_done_callback(self._outstanding.discard)
            return _result(future)
        except BaseException:
            future.cancel()  # changes nothing if the error is the coroutine's own
            raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself, which runs from now on. RuntimeError at the end of the process."""
        loop = self._start() if self._loop is None else self._loop
        if loop is None:
            raise RuntimeError("the process ends: no event loop can be started any more")
        return loop

    def spawn(self, factory: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T] | None:
        """Begin to await ``factory()`` on the portal's loop, and return at once.

        The end of the process does not wait for it. None if no thread can be had any more.
        """
        loop = self._start() if self._loop is None else self._loop
        return None if loop is None else asyncio.run_coroutine_threadsafe(_awaited(factory), loop)

    def flush(self, timeout: float) -> bool:
        """Wait until the calls made so far have ended; whether they did in time."""
        return not concurrent.futures.wait(list(self._outstanding), timeout).not_done

    def _start(self) -> asyncio.AbstractEventLoop | None:
        """The loop, in a thread of its own; None if no thread can be had any more."""
        with self._lock:
            if self._loop is None and not self._has_ended:
                loop = new_loop()
                try:
                    _start(lambda: self._serve(loop))
                except RuntimeError:  # Python 3.12 starts none while the interpreter shuts down
                    loop.close()
                    return None
                self._loop = loop
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = get_ident()
        asyncio.set_event_loop(loop)
        stand_still_at_the_end(loop)
        loop.run_forever()

    def _end(self) -> None:
        """Leave the loop, which stands still from now on; later exit handlers get one each."""
        with self._lock:
            self._loop, self._has_ended = None, True

    def _renew(self) -> None:
        """After a fork, in the child, where the loop's thread does not exist: begin anew."""
        # The parent's loop is kept, not closed: its epoll and its pipe are shared with the parent,
        # and closing it here would deafen the one there.
        self._inherited.append((self._loop, self._outstanding))
        self._loop = self._thread = None
        self._outstanding = set()
        self._lock = threading.Lock()

    def _stand_still(self) -> None:
        """Before a fork: stop the loop between two callbacks, so that it holds no lock."""
        self._lock.acquire()
        if self._loop is None or self._thread == get_ident():
            return
        self._go_on = stand_still(self._loop)

    def _move_on(self) -> None:
        """After a fork, in the parent."""
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on.release()
        self._lock.release()


def _run_here(factory: Callable[[], Awaitable[T]]) -> T:
    """Await it on a loop of this very call: slow, but an exit handler may still enqueue."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_awaited(factory))
    finally:
        loop.close()


async def _awaited(factory: Callable[[], Awaitable[T]]) -> T:
    return await factory()


def _result(future: concurrent.futures.Future[T]) -> T:
    if are_threads_patched():
        wait_as_greenlet(future)
        return future.result()
    # In slices: a Ctrl-C that arrives just before the thread blocks is only seen when it wakes.
    while True:
        try:
            return future.result(_SLICE)
        except TimeoutError:
            if future.done():  # then it is the coroutine's own, or was too late to count
                return future.result()


def _start(function: Callable[[], None]) -> None:
    if are_threads_patched():
        start_thread(function)
    else:
        threading.Thread(target=function, name="fairlead-portal", daemon=True).start()


#: The one of this process.
portal = Portal()

at_fork(
    before=portal._stand_still,
    after_in_parent=portal._move_on,
    after_in_child=portal._renew,
)
at_exit(portal.flush, _AT_EXIT)
at_the_end(portal._end)
