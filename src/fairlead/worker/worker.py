"""A worker in this process: its parts and who knows whom, how they start and stop, its state."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self

from fairlead.broker import Caller, Store
from fairlead.broker.records import WorkerRecord
from fairlead.model.errors import InvalidInput
from fairlead.model.queue_order import QueueOrder
from fairlead.model.registry import Registry
from fairlead.runtime.component import Component, serving
from fairlead.runtime.randomness import generator
from fairlead.worker.app_services import NO_SERVICES, AppServices
from fairlead.worker.capacity import Capacity
from fairlead.worker.coalescer import Coalescer
from fairlead.worker.config import check_count, check_limits, prepared, queue_order
from fairlead.worker.declarer import Declarer
from fairlead.worker.emptiness import until_empty
from fairlead.worker.forwarder import Forwarder
from fairlead.worker.handler_router import Router
from fairlead.worker.healthchecker import Healthchecker
from fairlead.worker.heartbeater import Heartbeater
from fairlead.worker.hooks import HookRunner
from fairlead.worker.inflight import Inflight
from fairlead.worker.janitor import Janitor
from fairlead.worker.lease_watch import LeaseWatch
from fairlead.worker.orders import Orders
from fairlead.worker.process.ipc import SlotPlan
from fairlead.worker.process.supervisor_link import SupervisorLink
from fairlead.worker.processor import Processor
from fairlead.worker.publisher import Publisher
from fairlead.worker.queue_watch import QueueWatch
from fairlead.worker.recoverer import Recoverer, give_back_soon
from fairlead.worker.referrer import Referrer
from fairlead.worker.run.dependency_loader import DependencyLoader
from fairlead.worker.run.executors import abandoned
from fairlead.worker.run.isolated_process import SlotProcesses
from fairlead.worker.run.progress_writer import ProgressWriter
from fairlead.worker.run.threads import Threads
from fairlead.worker.runner import Raised, Runner
from fairlead.worker.scheduler import Scheduler
from fairlead.worker.subscriber import Subscriber
from fairlead.worker.syncer import Syncer
from fairlead.worker.worker_record import WorkerState, introduction_of, state_of, worker_record

_KEPT = 100  # exceptions of handlers, for tests
_DRAINED = 10_000  # attempts after which a drain gives up
_MOST_DRAINED = 10**9
_SLOT = (sys.executable, "-m", "fairlead.cli.worker_slot")


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
        dice: Callable[[], float] = generator.random,
        exceptions: deque[Raised] | None = None,
        services: AppServices = NO_SERVICES,
        slot_plan: Callable[[], SlotPlan] | None = None,
        caller_id: str | None = None,
        link: SupervisorLink | None = None,
    ) -> None:
        check_limits(
            concurrency=concurrency, threads=threads, slots=slots,
            grace=grace, patience=patience, lease=lease,
        )  # fmt: skip
        self.incarnation = incarnation
        self.concurrency = concurrency
        self.grace = grace
        self.registry = registry
        self._store = store
        self._queues, self._strict, self._lease = queues, strict, lease
        self._link = link
        self._lifespan = services.lifespan
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first life
        self._alive = False  # from entering until all has stopped
        self._life: AbstractAsyncContextManager[None] | None = None
        self._ending: asyncio.Future[None] | None = None  # the stop that an operator ordered
        self._ended = asyncio.Event()
        self.used: list[bool] = []  # not empty since it has begun; may outlive it
        self.started_at = 0.0  # the broker's clock
        calls = caller_id or incarnation

        # What is on loan. Those that tell the processor of something are made before it.
        coalescer = Coalescer()
        self.outcomes = services.outcomes
        self.inflight = Inflight(
            incarnation, None if link is None else link.shared_state,
            release=lambda lease: self.processor.release(lease),  # noqa: PLW0108
        )  # fmt: skip
        self.syncer = Syncer(
            store, Caller(calls), self.inflight, services.outcomes, woken=coalescer.hurry
        )
        self.subscriber = Subscriber(
            store, self.inflight,
            take=lambda leases: self.processor.take_over(leases),  # noqa: PLW0108
        )  # fmt: skip

        # What runs attempts.
        self._threads = Threads(threads)
        self._slots: SlotProcesses | None = None
        if slots and slot_plan is not None:
            self._slots = SlotProcesses(
                _SLOT, slot_plan, incarnation,
                count=slots, dice=dice, patience=patience, task_timeout=task_timeout,
            )  # fmt: skip
        self.referrer = Referrer(
            store, self.inflight, incarnation=incarnation,
            settle=lambda lease, outcome: self.runner.turn_down(lease, outcome),  # noqa: PLW0108
        )  # fmt: skip
        self.runner = Runner(
            self.syncer,
            self.inflight,
            Router(registry, timeout=task_timeout, codecs=services.codecs),
            ProgressWriter(store, Caller(f"{calls}:writes"), incarnation, limit=services.limit),
            DependencyLoader(store, services.codecs),
            self._threads,
            self._slots,
            patience=patience, dice=dice, services=services,
            alone=caller_id is not None, leaves=link is not None,
            exceptions=exceptions if exceptions is not None else deque(maxlen=_KEPT),
            over=lambda kind, count: self.processor.attempts_over(kind, count),  # noqa: PLW0108
            news=coalescer.hurry, refer=self.referrer.take,
        )  # fmt: skip
        with contextlib.suppress(RuntimeError):  # otherwise when it begins
            self.runner.attach(asyncio.get_running_loop())

        # What fetches, and what says when not to.
        self.scheduler = Scheduler(store, Caller(f"{calls}:schedules"))
        self.forwarder = Forwarder(store, self.scheduler)
        capacity = Capacity(
            registry, self.inflight, concurrency=concurrency, threads=threads,
            processes=0 if self._slots is None else slots,
        )  # fmt: skip
        self.processor = Processor(
            store, self.syncer, self.inflight, self.runner, self._threads, self.forwarder,
            capacity, self.subscriber, coalescer, order=self._order(), patience=patience,
        )  # fmt: skip
        stop = self._end_by_order if link is None else link.ordered.set
        self.orders = Orders(self.inflight, self.processor, stop)
        self.heartbeater = Heartbeater(
            store, incarnation=incarnation, answered=lambda: self.inflight.answered,
            held=self.inflight.leases, describe=self.describe, heard=self.orders.on_heartbeat,
        )  # fmt: skip
        self.lease_watch = LeaseWatch(
            self.inflight, lease=lambda: self.processor.lease, hand_back=self.processor.hand_back,
            kept_at=lambda: max((link or self.heartbeater).kept_at, self.syncer.lent_at),
        )  # fmt: skip

        # Upkeep, for all workers.
        self._hooks = HookRunner(store, services.hooks, dice=dice)
        self.declarer = Declarer(services.declare)
        self.recoverer = Recoverer(store, dice, services.outcomes)
        self.janitor = Janitor(store, dice)
        self.healthchecker = Healthchecker(store, self.syncer, self.declarer.declare)
        self.queue_watch = QueueWatch(
            store, registry, lambda: self._order().order(), incarnation,
            is_first=link is None or link.is_first,
        )  # fmt: skip
        catalog = services.catalog and partial(services.catalog, task_timeout)
        self.publisher = Publisher(store, incarnation, catalog, dice)

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

    async def __aexit__(self, *error: Any) -> bool | None:
        life, self._life = self._life, None
        if life is None:
            return None
        try:
            return await life.__aexit__(*error)
        finally:
            self._alive = False

    async def drain(self, *, limit: int | None = _DRAINED) -> int:
        """Run all that is due now, with what handlers enqueue meanwhile; the number of attempts.

        Needs no ``async with``, and is no good inside of it: a worker that runs is never done.
        Retries get their full backoff, whatever the jitter, so that two drains of the same tasks
        do the same.

        Args:
            limit: More attempts raise an error; None is no limit. Default: 10,000.
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
            self.publisher.prepare()
            # A child of a supervisor has waited before: it can be told to stop meanwhile.
            waits = self.outcomes is not None and self._link is None
            await prepared(self._prepare, waits=waits)
            # The order of stopping is from the inside out. Whoever serves attempts goes last.
            async with (
                self._handing_back(),
                serving(*self._keepers(self.publisher), self.subscriber),
                serving(self.forwarder, self.recoverer, self.janitor, self.healthchecker),
                serving(self.queue_watch, self.referrer),
                serving(self.processor, self._hooks),
            ):
                try:
                    yield
                finally:
                    await self._end(self.grace)

    @asynccontextmanager
    async def _serve_once(self) -> AsyncIterator[None]:
        async with self._lifespan:
            await self._prepare()
            async with self._handing_back(), serving(*self._keepers(), self.subscriber):
                try:
                    yield
                finally:
                    await self._end(0.0)  # nothing is left unless drain() was cancelled

    async def _prepare(self) -> None:
        hello = await self._store.hello()
        lease = self._lease if self._lease is not None else hello.lease
        order = self._order()
        self._ending = None
        self._ended.clear()
        self.orders.forget()
        self.processor.restart()
        self.processor.order, self.processor.lease = order, lease
        self.heartbeater.lease = lease
        self.started_at = hello.now
        if self.outcomes is not None:  # first: a lease that is given back is lost to its outcome
            await self.outcomes.adopt(self._store)
        self.syncer.enter()
        await self.recoverer.reclaim()
        await self.declarer.declare(hello)
        await self._hooks.prepare()
        if self._link is not None:
            self.runner.number([spec.name for spec in self.registry])
            self._link.introduce(self, introduction_of(self))

    async def _end(self, grace: float) -> None:
        """Stop, or wait for the end of the stop that an operator ordered."""
        await (self._ending or self.processor.stop(grace))
        self._ended.set()

    def _end_by_order(self) -> None:
        if self._ending is None and not self.processor.halting:  # else something was first
            self._ending = asyncio.ensure_future(self.processor.stop(self.grace))
            self._ending.add_done_callback(lambda _: self._ended.set())

    def pause(self) -> None:
        """Fetch no more, until ``resume``; what runs goes on. As the signal TSTP does."""
        self.processor.be_quiet()

    def resume(self) -> None:
        """Fetch again after ``pause``, unless an operator ordered this worker to rest."""
        self.processor.be_quiet(False)

    async def stop(self, *, drain: bool = False) -> None:
        """Run no more tasks, as when the block ends; return once nothing runs here.

        Args:
            drain: True goes on until nothing is queued that it may fetch now. Default: False.
        """
        if self._life is None:
            raise InvalidInput(f"worker {self.incarnation!r} does not run: async with it first")
        if drain:
            await until_empty(self._store, self.processor)
        self._end_by_order()
        await self._ended.wait()

    async def stopped(self) -> None:
        """Return once nothing runs here any more, by ``stop`` or because an operator ordered it.

        The block goes on until the program leaves it: ``async with app.worker() as worker: await
        worker.stopped()``.
        """
        await self._ended.wait()

    def _keepers(self, *others: Component) -> list[Component]:
        """Who keeps the leases, and what else a supervisor does for its children.

        With a spool an outage is survived, and so attempts that would be doubled in it are ended.
        """
        watch = [] if self.outcomes is None else [self.lease_watch]
        return [*watch, self.heartbeater, *others] if self._link is None else [*watch]

    def describe(self) -> WorkerRecord:
        """This worker as the registry shows it."""
        return worker_record(self)

    @property
    def state(self) -> WorkerState:
        """What it does, in a word."""
        ending = self._ending
        return state_of(
            quiet="signal" in self.processor.resting, paused=self.orders.is_paused,
            stopping=self.processor.halting or ending is not None,
            stopped=ending is not None and ending.done(),
        )  # fmt: skip

    @property
    def abandoned(self) -> int:
        """Handlers that go on although they were told to end."""
        return self._threads.abandoned + abandoned()

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
            kept = await self.syncer.hand_over()  # whose leases are for those that settle them
            if not (kept or self.inflight.left):  # else the supervisor does it after our end
                await give_back_soon(self._store, self.incarnation)

    def _order(self) -> QueueOrder:
        return queue_order(
            self._queues, self.registry, strict=self._strict, largest_fetch=self.concurrency
        )

    def _begin(self) -> None:
        self.used.append(True)
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
        self.runner.attach(loop)
