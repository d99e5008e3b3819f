"""The threads that sync handlers run in: our own, so that a stuck one can be replaced."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Protocol

log = logging.getLogger("fairlead.worker")

_LONG = 0.005  # seconds that quick jobs may take before another thread helps
_QUICK_ONES = object()  # handed over instead of a job: run all that are quick
_JOIN = 1.0  # seconds; the threads that are joined have nothing left to do


class Job(Protocol):
    """Something to run in a thread. All but ``work`` is called, and set, on the loop's thread."""

    quick: bool  # it is expected to end at once; may be begun and run by any thread
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
    For the same reason one thread runs all quick jobs that are there, one after the other. Should
    one of them not be quick after all, another thread goes on with the rest.

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
        self._quick: deque[Job] = deque()  # threads take from it as well
        self._helping: asyncio.TimerHandle | None = None  # while a thread runs quick jobs
        self._handed: SimpleQueue[Job | object | None] = SimpleQueue()
        self._done: deque[Job | object] = deque()
        self._told = False  # the loop was told to look into _done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: dict[int | None, threading.Thread] = {}  # by ident, without abandoned ones

    def submit(self, job: Job) -> None:
        """Run the job as soon as a thread is free."""
        if not job.quick:
            self._waiting.append(job)
            self._next()
            return
        self._quick.append(job)
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
        for job in (*self._waiting, *self._quick):
            job.withdraw()

    def withdraw(self, job: Job) -> bool:
        """Take back a job that no thread has begun; False if one has."""
        try:
            (self._quick if job.quick else self._waiting).remove(job)
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
        self._collect()  # a thread may have said so without being heard
        for _ in range(self._alive):
            self._handed.put(None)
        self._alive = 0
        if self._helping is not None:
            self._helping.cancel()
            self._helping = None
        if self._busy == 0:
            for thread in self._threads.values():
                thread.join(_JOIN)
        self._threads.clear()

    def _next(self) -> None:
        if self._helping is None:
            self._help()  # first: one thread does them all
        while self._waiting and self._take_thread():
            job = self._waiting.popleft()
            job.begin()
            self._handed.put(job)

    def _help(self) -> None:
        """Have a thread run the quick jobs, and another one if that takes long."""
        self._helping = None
        if self._quick and self._take_thread():
            self._handed.put(_QUICK_ONES)
            self._helping = asyncio.get_running_loop().call_later(_LONG, self._help)

    def _take_thread(self) -> bool:
        if self._busy >= self._count or (self._alive <= self._busy and not self._start()):
            return False
        self._busy += 1
        return True

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
            goes_on = self._run_quick_ones(ident) if job is _QUICK_ONES else self._run(job, ident)
            del job  # nothing of a finished task is kept alive by an idle thread
            if not goes_on:
                return

    def _run(self, job: Any, ident: int) -> bool:
        """Run a job in this thread; whether the thread may take another one."""
        job.ident = ident
        job.work()
        # Read once: the loop may abandon the job at this very moment, and must be able to
        # tell afterwards whether this thread has noticed.
        job.left = left = job.abandoned
        self._done.append(job)
        return self._tell() and not left

    def _run_quick_ones(self, ident: int) -> bool:
        while True:
            try:
                job = self._quick.popleft()
            except IndexError:
                self._done.append(_QUICK_ONES)
                return self._tell()
            job.begin()
            if not self._run(job, ident):
                return False

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
            job: Any = self._done.popleft()
            if job is _QUICK_ONES:
                self._busy -= 1
                if self._helping is not None:
                    self._helping.cancel()
                self._help()  # some may have come since the thread looked
                continue
            if job.abandoned:
                self._lost -= 1
                if not job.left:  # abandoned too late for its thread to notice: it stays
                    self._alive += 1
                    self._busy += job.quick  # and has the other quick ones to do
            elif not job.quick:
                self._busy -= 1
            job.end()
        self._next()
