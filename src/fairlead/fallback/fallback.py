"""What an app does while its broker is away: keep tasks and outcomes on disk, and send them later.

The broker stays the only queue. The spool is a log of what it is to get: whoever enqueues is
answered once the task is on this machine's disk, and the drain is idempotent by the task's id.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import math
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from fairlead.broker import LIMIT, Store, destination_of, parts_of
from fairlead.broker.requests import Receipt, Submission
from fairlead.broker.submission_checks import check_submissions
from fairlead.fallback.background import BackgroundLoop
from fairlead.fallback.codec import Doubted, SpooledTask, encode_submission, moment_now
from fairlead.fallback.latency import Latency
from fairlead.fallback.local_tasks import LocalTasks, MakeHandlers
from fairlead.fallback.numbered_enqueues import Doubt
from fairlead.fallback.outages import Outages
from fairlead.fallback.outcomes import Outcomes
from fairlead.fallback.recent_enqueues import RecentEnqueues
from fairlead.fallback.replay import Replayer
from fairlead.fallback.spooled_ids import SpooledIds
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import Ambiguous
from fairlead.model.message import Message
from fairlead.model.outage import BrokerState
from fairlead.runtime.portal import portal
from fairlead.runtime.process_hooks import at_fork
from fairlead.spool import Entry, Kind, Spool, SpoolLimits
from fairlead.telemetry.counters import SpoolFigures

log = logging.getLogger("fairlead.fallback")

_AT_CLOSE = 1.0  # seconds that a close waits for what is being sent
_DISK = 1.0  # seconds that the disk has at least


class FallbackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a fallback behaves."""

    directory: Path
    limits: SpoolLimits = SpoolLimits()
    silence: float = 1.0  # seconds without a reply after which a broker counts as away
    is_kept: bool = True  # it probes, drains and adopts by itself
    local_queues: frozenset[str] = frozenset()  # whose tasks may run here while the broker is away
    local_concurrency: int = 4  # of these, at a time
    settling: float = 1.0  # seconds that it must have been away before they do


class Fallback:
    """The spool of one app in one process, and what is known of its broker.

    Nothing runs and nothing is on disk before the first task is enqueued. Probes, the drain and the
    adoption of what dead processes left run on the portal's loop.
    """

    def __init__(
        self, store: Store, options: FallbackOptions, handlers: MakeHandlers | None = None
    ) -> None:
        """``handlers`` opens what runs tasks of ``local_queues``; None: nothing does."""
        self.store = store
        self.options = options
        self.parts = parts_of(store)
        self.spool = Spool.open(
            options.directory, limits=options.limits, broker=destination_of(store)
        )
        self.ids = SpooledIds()
        self.outages = Outages(self.parts.stores, changed=self.wake)
        self.outcomes = Outcomes(self.spool, self._used)
        self.recent_enqueues = RecentEnqueues()
        self.latency = Latency()
        self.replayer = Replayer(self)
        self._handlers = handlers
        self.local = LocalTasks(self, handlers)
        self._background: BackgroundLoop | None = None
        self._running: concurrent.futures.Future[None] | None = None
        self._pid = 0
        self._starting = threading.Lock()
        self._closed = False
        _all.add(self)

    # -- what is known --------------------------------------------------------------------------

    @property
    def state(self) -> BrokerState:
        """How the broker stands; with several shards, the one that stands worst."""
        return self.outages.state

    @property
    def since(self) -> float:
        """When that state began, in unix seconds."""
        return self.outages.since

    def figures(self) -> SpoolFigures:
        """Return how the process stands to its broker, and what it keeps on disk, for metrics."""
        stats = self.spool.stats()
        return SpoolFigures(
            state=self.state,
            depth=stats.depth,
            bytes=stats.bytes,
            oldest_at=stats.oldest_at,
            rejected=stats.rejected,
            fenced=self.outcomes.fenced + self.local.outcomes.fenced,
            local=self.local.ran,
        )

    def is_spooled(self, id: str) -> bool:
        """Whether a task is in the spool and not at the broker, as far as this process knows."""
        return id in self.ids

    def shard_of(self, message: Message) -> str:
        """Return the name of the shard that takes a task."""
        return self.parts.place(message.queue, message.level)

    # -- into the spool -------------------------------------------------------------------------

    async def keep(
        self,
        submissions: Sequence[Submission],
        doubt: Doubt | None = None,
        until: float = math.inf,
    ) -> list[Receipt]:
        """Write tasks into the spool; return their receipts once they are on disk.

        ``doubt`` is the call with which the broker may have got them already. ``until`` is how long
        the caller waits, by the loop's clock; the disk has a second in any case.

        Raises ``InvalidInput`` as the broker would, ``SpoolFull``, ``SpoolFailed``, or
        ``Ambiguous`` if the disk does not answer in time.
        """
        check_submissions(submissions)
        moment = moment_now()
        doubts: Iterable[Doubted | None] = itertools.repeat(None)
        if doubt is not None:
            doubts = (Doubted(doubt.incarnation, doubt.number, n) for n in itertools.count())
        await self.keep_again(
            [SpooledTask(*each) for each in zip(submissions, itertools.repeat(moment), doubts)],
            until,
        )
        return [
            Receipt(id=submission.message.id, code="accepted", durability="spooled")
            for submission in submissions
        ]

    async def keep_again(self, tasks: Sequence[SpooledTask], until: float = math.inf) -> None:
        """Write tasks into the spool that were enqueued some time ago."""
        submissions = [task.submission for task in tasks]
        entries = [Entry(Kind.SUBMISSION, encode_submission(task)) for task in tasks]
        self.ids.add(submissions)  # before the append: it may be sent before that returns
        loop = asyncio.get_running_loop()
        written = loop.create_task(self.spool.aappend(entries), name="spool")
        written.add_done_callback(lambda _: self._written(submissions, written))
        patience = max(min(until, loop.time() + LIMIT) - loop.time(), _DISK)
        if not (await asyncio.wait([written], timeout=patience))[0]:
            raise Ambiguous(
                "the broker is away, and the disk of the spool did not answer in time; the task "
                "may be written, and sent later: enqueue it again under its id only"
            )
        written.result()

    def _written(self, submissions: Sequence[Submission], written: asyncio.Task[list[int]]) -> None:
        """Take in what came of an append, whether its caller still waits or not."""
        if written.cancelled():
            return  # with its loop; it may be written all the same
        if written.exception() is not None:
            self.ids.discard(submissions)
        else:
            self._used()

    # -- the background -------------------------------------------------------------------------

    def start(self) -> None:
        """See to it that this process probes, drains and adopts. Costs nothing once it does."""
        if self._pid == os.getpid() or self._closed or not self.options.is_kept:
            return
        with self._starting:  # two loops may make their first calls at once
            if self._pid != os.getpid() and not self._closed:
                self._background = background = BackgroundLoop(self)
                self._running = portal.spawn(background.run)
                self._pid = os.getpid()

    async def close(self) -> None:
        """Stop within about a second, say what stays in the spool, and let go of it."""
        with self._starting:
            self._closed = True
        running, background = self._running, self._background
        if running is not None and background is not None and self._pid == os.getpid():
            background.stop()
            await asyncio.wait([asyncio.wrap_future(running)], timeout=_AT_CLOSE)
            running.cancel()
        self.local.stop(0.0)
        self._running = self._background = None
        depth = self.spool.depth
        if depth:
            log.warning(
                "%d records stay in the spool at %s; the next process that uses it sends them",
                depth,
                self.options.directory.absolute(),
                extra={"depth": depth},
            )
        try:
            await in_thread(self.spool.close)  # it waits for the disk
        except RuntimeError:  # there are no threads to be had at the end of a program
            self.spool.close()

    def _used(self) -> None:
        """There may be something to send."""
        self.start()
        self.wake()

    def wake(self) -> None:
        """Look again now what is to be done. From any thread."""
        background = self._background
        if background is not None:
            background.wake()

    def _renew(self) -> None:
        """In a forked child: the tasks in the spool are the parent's, and so is the loop."""
        self.ids, self.recent_enqueues = SpooledIds(), RecentEnqueues()
        self.replayer = Replayer(self)
        self.local = LocalTasks(self, self._handlers)
        self.outages.renew()
        self._background = self._running = None
        self._pid = 0
        self._starting = threading.Lock()  # the parent may have held it


_all: weakref.WeakSet[Fallback] = weakref.WeakSet()


def _renew_all() -> None:
    for fallback in list(_all):
        fallback._renew()


at_fork(after_in_child=_renew_all)
