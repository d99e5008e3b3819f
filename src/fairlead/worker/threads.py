"""The threads that sync handlers run in: our own, so that a stuck one can be replaced."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import Protocol

__all__ = ("Job", "Threads")

log = logging.getLogger("fairlead.worker")

_JOIN = 1.0  # seconds; the threads that are joined have nothing left to do


class Job(Protocol):
    """Something to run in a thread. All but ``work`` is called, and set, on the loop's thread."""

    abandoned: bool  # nobody waits for it any more
    left: bool  # its thread saw that and ended; set by the thread
    ident: int | None  # of the thread that runs it; set by the thread

    def begin(self) -> None:
        """A thread is about to run it."""
        ...

    def work(self) -> None:
        """Run it, in the thread. Must not raise."""
        ...

    def end(self) -> None:
        """It ran; called for an abandoned job too, whenever that ends at last."""
        ...

    def withdraw(self) -> None:
        """No thread can run it: take it back."""
        ...


class Threads:
    """At most ``count`` jobs at a time, each in a thread; further ones wait for their turn.

    Jobs are handed over and reported on the loop's thread. Completions are collected, and one
    wake-up of the loop takes all that have come in by then: a wake-up costs more than a short job.

    A stuck job that is abandoned has its thread replaced, but there are never more than twice
    ``count`` threads: handlers that hang must not take the whole process with them.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._alive = 0  # threads that will take another job
        self._busy = 0  # of these, how many have one
        self._lost = 0  # threads of abandoned jobs
        self._denied = False  # the last thread that was wanted could not be had
        self._waiting: deque[Job] = deque()
        self._handed: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[Job] = deque()
        self._told = False  # the loop was told to look into _done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: dict[int | None, threading.Thread] = {}  # by ident, without abandoned ones

    def submit(self, job: Job) -> None:
        """Run the job as soon as a thread is free."""
        self._waiting.append(job)
        self._next()

    @property
    def abandoned(self) -> int:
        """Threads of jobs that nobody waits for any more."""
        return self._lost

    @property
    def stuck(self) -> bool:
        """There is no thread, and none could be had: no job will run before ``revive``."""
        return self._denied and self._alive == 0

    def revive(self) -> bool:
        """Try again to have a thread; whether jobs can run."""
        return not self.stuck or self._start()

    def give_back(self) -> None:
        """Have all jobs taken back that no thread has begun."""
        for job in list(self._waiting):
            job.withdraw()

    def withdraw(self, job: Job) -> bool:
        """Take back a job that no thread has begun; False if one has."""
        try:
            self._waiting.remove(job)
        except ValueError:
            return False
        return True

    def abandon(self, job: Job) -> None:
        """Wait no longer for a job that runs: its thread is replaced, and ends with it."""
        job.abandoned = True
        self._threads.pop(job.ident, None)
        self._alive -= 1
        self._busy -= 1
        self._lost += 1
        self._next()

    def close(self) -> None:
        """End the threads that are idle. Abandoned ones cannot be ended; they are daemons."""
        for _ in range(self._alive):
            self._handed.put(None)
        self._alive = 0
        if self._busy == 0:
            for thread in self._threads.values():
                thread.join(_JOIN)
        self._threads.clear()

    def _next(self) -> None:
        while self._waiting and self._busy < self._count:
            if self._alive <= self._busy and not self._start():
                return
            self._busy += 1
            job = self._waiting.popleft()
            job.begin()
            self._handed.put(job)

    def _start(self) -> bool:
        self._loop = asyncio.get_running_loop()
        if self._alive + self._lost >= 2 * self._count:
            return self._deny("abandoned handlers that still run hold too many")
        thread = threading.Thread(target=self._serve, name="fairlead-handler", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return self._deny("the system gives no more")
        self._alive += 1
        self._threads[thread.ident] = thread
        if self._denied:
            log.info("threads for sync handlers again")
        self._denied = False
        return True

    def _deny(self, why: str) -> bool:
        if not self._denied:
            fields = {"alive": self._alive, "abandoned": self._lost}
            log.error("too few threads for sync handlers: %s", why, extra=fields)
        self._denied = True
        return False

    def _serve(self) -> None:
        ident = threading.get_ident()
        while (job := self._handed.get()) is not None:
            job.ident = ident
            job.work()
            # Read once: the loop may abandon the job at this very moment, and must be able to
            # tell afterwards whether this thread has noticed.
            job.left = left = job.abandoned
            self._done.append(job)
            del job  # nothing of a finished task is kept alive by an idle thread
            if not self._tell() or left:
                return

    def _tell(self) -> bool:
        """Have the loop look into ``_done``; False once it is closed and nobody will."""
        if self._told:  # set before the last look began, or cleared after it: never lost
            return True
        self._told = True
        assert self._loop is not None  # noqa: S101 - set before the first thread starts
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            return False
        return True

    def _collect(self) -> None:
        self._told = False
        while self._done:
            job = self._done.popleft()
            if not job.abandoned:
                self._busy -= 1
            else:
                self._lost -= 1
                if not job.left:
                    self._alive += 1  # abandoned too late for its thread to notice: it stays
            job.end()
        self._next()
