"""A worker in this process: builds the components and nests them. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from types import TracebackType
from typing import Self

from fairlead.broker import Caller, Store
from fairlead.broker.verbs import BeatReply
from fairlead.broker.views import WorkerRecord
from fairlead.model.errors import BrokerError, InvalidInput
from fairlead.model.ordering import QueueOrder
from fairlead.model.registry import Registry
from fairlead.runtime.component import Component, serving
from fairlead.runtime.identity import host, identity
from fairlead.worker.capacity import Capacity
from fairlead.worker.channel import Introduction, SlotPlan
from fairlead.worker.declarer import Declarer
from fairlead.worker.execution import abandoned
from fairlead.worker.extras import NO_EXTRAS, Extras
from fairlead.worker.forwarder import Forwarder
from fairlead.worker.healthchecker import Healthchecker
from fairlead.worker.heartbeater import Heartbeater
from fairlead.worker.inflight import Inflight
from fairlead.worker.janitor import Janitor
from fairlead.worker.loading import Loader
from fairlead.worker.processor import Processor
from fairlead.worker.recoverer import Recoverer, give_back
from fairlead.worker.router import Router
from fairlead.worker.runner import Raised, Runner
from fairlead.worker.scheduler import Scheduler
from fairlead.worker.setup import check_count, check_seconds, place, queue_order, versions
from fairlead.worker.slots import Slots
from fairlead.worker.subscriber import Subscriber
from fairlead.worker.syncer import Syncer
from fairlead.worker.tether import Tether
from fairlead.worker.threads import Threads
from fairlead.worker.writer import Writer

__all__ = ("Worker",)

log = logging.getLogger("fairlead.worker")

_MAX_SLOTS = 10_000
_KEPT = 100  # exceptions of handlers, for tests
_DRAINED = 10_000  # attempts after which a drain gives up
_MOST_DRAINED = 10**9
_SHOWN = 100  # running tasks in the registry
_LAST_WORDS = 2.0  # seconds in which a worker that stops gives back what it holds
_SLOT = (sys.executable, "-m", "fairlead.cli.slot")


class Worker:
    """Runs tasks while its ``async with`` block lasts, or once with ``drain``.

    ``queues`` are weights by name, or names in order; without any, ``default`` and every queue that
    a registered task names. ``strict`` empties earlier queues before it looks into later ones (of a
    mapping the heaviest first); otherwise the worker is shared by weight.

    ``incarnation`` belongs to this worker alone. On leaving the block it stops fetching, lets what
    runs finish for ``grace`` seconds, cancels the rest and hands it back without using up an
    attempt. ``patience`` is how long a handler may take to obey before it is abandoned.
    ``lease`` is in seconds; None leaves it to the broker. ``task_timeout``, in seconds, is that of
    tasks that say nothing of theirs. ``exceptions`` takes what handlers raise.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        incarnation: str,
        queues: Sequence[str] | Mapping[str, float] | None = None,
        strict: bool = False,
        concurrency: int = 10,
        threads: int = 10,
        grace: float = 30.0,
        patience: float = 2.0,
        lease: float | None = None,
        slots: int = 2,
        task_timeout: float | None = None,
        dice: Callable[[], float] = random.random,
        exceptions: deque[Raised] | None = None,
        extras: Extras = NO_EXTRAS,
        slot_plan: Callable[[], SlotPlan] | None = None,
        line: str | None = None,
        tether: Tether | None = None,
    ) -> None:
        check_count("concurrency", concurrency, 1, _MAX_SLOTS)
        check_count("threads", threads, 1, _MAX_SLOTS)
        check_seconds("grace", grace)
        check_seconds("patience", patience)
        check_count("slots", slots, 0, _MAX_SLOTS)
        if lease is not None:
            check_seconds("lease", lease, least=0.01)
        self.incarnation = incarnation
        self._concurrency = concurrency
        self._store = store
        self._registry = registry
        self._queues = queues
        self._strict = strict
        self.grace = grace
        self._lease = lease
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first life
        self._alive = False  # from entering until all has stopped
        self._life: AbstractAsyncContextManager[None] | None = None
        self._threads = Threads(threads)
        self._lifespan = extras.lifespan
        self.declarer = Declarer(extras.declare)

        self._tether = tether
        self._own_process = tether is not None or line is not None
        self._started_at = 0.0  # the broker's clock
        board = None if tether is None else tether.board
        caller = Caller(line or incarnation)
        self.inflight = Inflight(incarnation, board)
        self.syncer = Syncer(store, caller, self.inflight)
        self.scheduler = Scheduler(store, Caller(f"{line or incarnation}:schedules"))
        self.forwarder = Forwarder(store, self.scheduler)
        self.recoverer = Recoverer(store, dice)
        self.janitor = Janitor(store, dice)
        self.subscriber = Subscriber(store, self.inflight, incarnation=incarnation)
        self.heartbeater = Heartbeater(
            store,
            incarnation=incarnation,
            answered=lambda: self.inflight.answered,
            held=self.inflight.leases,
            describe=self.describe,
            heard=self.heard,
        )
        self._slots: Slots | None = None
        if slots and slot_plan is not None:
            self._slots = Slots(
                _SLOT,
                slot_plan,
                incarnation,
                count=slots,
                dice=dice,
                patience=patience,
                task_timeout=task_timeout,
            )
        self.runner = Runner(
            self.syncer,
            self.inflight,
            Router(registry, timeout=task_timeout),
            Writer(store, Caller(f"{line or incarnation}:writes"), incarnation, limit=extras.limit),
            Loader(store),
            self._threads,
            self._slots,
            patience=patience,
            dice=dice,
            exceptions=exceptions if exceptions is not None else deque(maxlen=_KEPT),
            extras=extras,
        )
        with contextlib.suppress(RuntimeError):  # otherwise when it begins
            self._attach(asyncio.get_running_loop())
        self.processor = Processor(
            store,
            self.syncer,
            self.inflight,
            self.runner,
            self._threads,
            self.forwarder,
            Capacity(
                registry,
                self.inflight,
                concurrency=concurrency,
                threads=threads,
                processes=0 if self._slots is None else slots,
            ),
            order=self._order(),
            patience=patience,
        )
        self.healthchecker = Healthchecker(store, self.syncer, self.declarer.declare)

    @property
    def exceptions(self) -> deque[Raised]:
        """The last 100 exceptions that handlers raised, for tests; retries are not errors here."""
        return self.runner.exceptions

    async def __aenter__(self) -> Self:
        self._begin()
        life = self._serve()
        try:
            await life.__aenter__()
        except BaseException:
            self._alive = False
            raise
        self._life = life
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        life, self._life = self._life, None
        if life is None:
            return None
        try:
            return await life.__aexit__(kind, error, trace)
        finally:
            self._alive = False

    async def drain(self, *, limit: int | None = _DRAINED) -> int:
        """Run all that is due now, with what handlers enqueue meanwhile; the number of attempts.

        Needs no ``async with``, and is no good inside of it: a worker that runs is never done.
        Retries get their full backoff, whatever the jitter, so that two drains of the same tasks
        do the same. More than ``limit`` attempts raise an error: a task that enqueues itself would
        keep this going for ever. None is no limit.
        """
        if limit is not None:
            check_count("limit", limit, 0, _MOST_DRAINED)
        self._begin()
        try:
            async with self._serve_once():
                return await self.processor.drain(limit)
        finally:
            self._alive = False

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        async with self._lifespan:  # what it opens outlives everything else
            await self._prepare()
            # The order of stopping is from the inside out. Whoever serves attempts goes last.
            async with (
                self._handing_back(),
                serving(*self._keepers(), self.subscriber),
                serving(self.forwarder, self.recoverer, self.janitor, self.healthchecker),
                serving(self.processor),
            ):
                try:
                    yield
                finally:
                    await self.processor.stop(self.grace)

    @asynccontextmanager
    async def _serve_once(self) -> AsyncIterator[None]:
        async with self._lifespan:
            await self._prepare()
            async with self._handing_back(), serving(*self._keepers(), self.subscriber):
                try:
                    yield
                finally:
                    await self.processor.stop(0.0)  # nothing is left unless drain() was cancelled

    async def _prepare(self) -> None:
        hello = await self._store.hello()
        lease = self._lease if self._lease is not None else hello.lease
        order = self._order()
        self.processor.restart()
        self.processor.order, self.processor.lease = order, lease
        self.heartbeater.lease = lease
        self._started_at = hello.now
        await self.recoverer.reclaim()
        await self.declarer.declare(hello)
        if self._tether is not None:
            self.runner.number([spec.name for spec in self._registry])
            self._tether.introduce(self, self._introduction())

    def _keepers(self) -> list[Component]:
        """Who keeps the leases: a supervisor does it for its children."""
        return [self.heartbeater] if self._tether is None else []

    def describe(self) -> WorkerRecord:
        """This worker as the registry shows it."""
        running = [
            (attempt.lease.message.id, attempt.task) for attempt in islice(self.inflight, _SHOWN)
        ]
        return WorkerRecord(
            incarnation=self.incarnation,
            host=host(),
            pid=os.getpid(),
            queues=self.processor.order.order(),
            tasks=tuple(spec.name for spec in self._registry),
            concurrency=self._concurrency,
            running=len(self.inflight),
            started_at=self._started_at,
            details={
                **identity(os.getpid()),
                "settled": self.syncer.settled,
                "fenced": self.syncer.fenced,
                "unsent": self.syncer.unsettled,
                "abandoned": self.abandoned,
                "overdue": self.runner.overdue[0],
                "held": len(self.inflight.held),
                "quiet": self.processor.quiet,
                "versions": versions(self._registry),
                "now": running,
            },
        )

    def heard(self, reply: BeatReply | None) -> None:
        """Stop what the broker says is lost or cancelled."""
        if reply is None:
            return
        for ref in reply.lost:
            self.inflight.stop(ref.id, ref.token, "lost")
        for ref in reply.cancelled:
            self.inflight.stop(ref.id, ref.token, "cancel")
        if reply.paused:
            self.processor.hand_back(reply.paused)

    @property
    def abandoned(self) -> int:
        """Handlers that go on although they were told to end."""
        return self._threads.abandoned + abandoned()

    def _introduction(self) -> Introduction:
        return Introduction(
            incarnation=self.incarnation,
            url="",
            lease=self.processor.lease,
            queues=self.processor.order.order(),
            tasks=tuple(spec.name for spec in self._registry),
            versions=versions(self._registry),
            places=tuple(place(spec.handler) for spec in self._registry),
            concurrency=self._concurrency,
            started_at=self._started_at,
        )

    @asynccontextmanager
    async def detached(self) -> AsyncIterator[None]:
        """Run attempts that somebody else has on loan, as slot processes do."""
        self._begin()
        try:
            async with self._lifespan:
                yield
        finally:
            self._threads.close()
            self._alive = False

    @asynccontextmanager
    async def _handing_back(self) -> AsyncIterator[None]:
        """Leave nothing behind: no thread, and no lease that a lost reply kept from us."""
        try:
            yield
        finally:
            self._threads.close()
            if self._slots is not None:
                await self._slots.close()
            if not self.inflight.left:  # or else the supervisor does it when this process has ended
                await self._give_back()

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await give_back(self._store, self.incarnation, [])
        except (BrokerError, TimeoutError) as error:  # the sweep of another worker will do it
            log.warning("leases not given back", extra={"error": type(error).__name__})

    def _order(self) -> QueueOrder:
        return queue_order(
            self._queues, self._registry, strict=self._strict, largest_fetch=self._concurrency
        )

    def _begin(self) -> None:
        if self._alive:
            raise InvalidInput(f"worker {self.incarnation!r} is running already")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise InvalidInput(
                f"worker {self.incarnation!r} has run on another event loop and belongs to it; "
                "make a new worker for this one"
            )
        self._loop = loop
        self._alive = True
        self._attach(loop)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        # A slot process, and a child: what goes on in them ends with them.
        self.runner.attach(
            loop,
            own_process=self._own_process,
            abandons=self._own_process and self._tether is None,
            leaves=self._tether is not None,
        )
