"""Group commit: callers of all threads and loops share one write and one fdatasync.

One thread writes. While the disk works on a group, the next one gathers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime import native_threads
from fairlead.spool.writer import Draft

_GROUP = 4 * 1024 * 1024  # bytes that are written at once; one request may have more
_HANGS = 5.0  # seconds with one group after which a disk is given nothing more

_Settled = tuple["asyncio.Future[list[int]]", "list[int] | Exception"]


class Request:
    """Records of one call, and the caller who waits for them, in a thread or in a loop."""

    __slots__ = ("count", "drafts", "loop", "size", "waiter")

    def __init__(
        self,
        drafts: Sequence[Draft],
        count: int,
        size: int,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.drafts, self.count, self.size, self.loop = drafts, count, size, loop
        self.waiter: Any = concurrent.futures.Future() if loop is None else loop.create_future()


class Committer:
    """The writing thread. It is started by the first request."""

    def __init__(
        self,
        append: Callable[[Sequence[Draft]], Sequence[int]],
        release: Callable[[int, int], None],
    ) -> None:
        self._append = append
        self._release = release  # is told the count and size of requests that are through
        self._waiting: deque[Request] = deque()
        self._lock = native_threads.new_lock()
        self._wake = native_threads.new_lock()
        self._wake.acquire()
        self._is_running = self._is_closed = False
        self._began = 0.0  # when the disk was given the group that it has; 0: it has none
        self._ended = native_threads.new_lock()

    def submit(self, request: Request) -> None:
        """Have a request written with the next group.

        Raises ``SpoolFailed`` once it is closed, while the disk hangs, or if the thread cannot be
        started; then the next request tries to start it again.
        """
        with self._lock:
            if self._is_closed:
                raise SpoolFailed("the spool is closed")
            began = self._began  # read once: the thread forgets it as soon as the disk answers
            if began and (hangs := time.monotonic() - began) > _HANGS:
                raise SpoolFailed(
                    f"the disk of the spool has not answered for {hangs:.0f} s; nothing was written"
                )
            if not self._is_running:
                self._start()
            self._waiting.append(request)
            if self._wake.locked():
                self._wake.release()

    def _start(self) -> None:
        """Start the thread. The caller has the lock."""
        self._ended.acquire()
        try:
            native_threads.start_thread(self._run)
        except BaseException as error:
            self._ended.release()
            if isinstance(error, RuntimeError):  # a limit of the system, or the program ends
                raise SpoolFailed(f"the spool cannot write ({error})") from error
            raise
        self._is_running = True

    def close(self) -> bool:
        """Write what waits, and end the thread; False if the disk hangs, and so does the thread."""
        with self._lock:
            self._is_closed = True
            if self._wake.locked():
                self._wake.release()
        if not self._ended.acquire(timeout=_HANGS):
            return False
        self._ended.release()
        return True

    def _run(self) -> None:
        try:
            while True:
                self._wake.acquire()
                while group := self._take():
                    self._commit(group)
                with self._lock:
                    if self._is_closed and not self._waiting:
                        return
        finally:
            self._ended.release()

    def _take(self) -> list[Request]:
        group: list[Request] = []
        size = 0
        with self._lock:
            while self._waiting and (not group or size + self._waiting[0].size <= _GROUP):
                group.append(self._waiting.popleft())
                size += group[-1].size
        return group

    def _commit(self, group: list[Request]) -> None:
        drafts = [draft for request in group for draft in request.drafts]
        error: Exception | None = None
        sequences: Sequence[int] = ()
        self._began = time.monotonic()
        try:
            sequences = self._append(drafts)
        except SpoolFailed as failed:
            error = failed
        except Exception as unexpected:  # noqa: BLE001 - each caller gets it, and the thread goes on
            error = unexpected
        self._began = 0.0
        self._release(sum(r.count for r in group), sum(r.size for r in group))
        in_loops: dict[asyncio.AbstractEventLoop, list[_Settled]] = {}
        start = 0
        for request in group:
            end = start + len(request.drafts)
            result = _copy(error) if error is not None else list(sequences[start:end])
            start = end
            if request.loop is not None:
                in_loops.setdefault(request.loop, []).append((request.waiter, result))
            elif isinstance(result, Exception):
                request.waiter.set_exception(result)
            else:
                request.waiter.set_result(result)
        for loop, settled in in_loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, with all who waited
                loop.call_soon_threadsafe(_settle, settled)


def _settle(settled: list[_Settled]) -> None:
    for future, result in settled:
        if future.done():  # the caller was cancelled
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def _copy(error: Exception) -> Exception:
    """Return the error for one more caller: tracebacks of several do not mix."""
    if isinstance(error, SpoolFailed):
        return SpoolFailed(str(error)).with_traceback(error.__traceback__)
    return error
