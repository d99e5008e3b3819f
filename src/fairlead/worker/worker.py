"""A worker in this process: builds the components and nests them. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self

from fairlead.broker import Caller, Store
from fairlead.broker.verbs import BeatReply
from fairlead.broker.views import WorkerRecord
from fairlead.model.errors import InvalidInput
from fairlead.model.ordering import QueueOrder
from fairlead.model.registry import Registry
from fairlead.runtime.component import Component, serving
from fairlead.worker.capacity import Capacity
from fairlead.worker.channel import SlotPlan
from fairlead.worker.declarer import Declarer
from fairlead.worker.emptiness import until_empty
from fairlead.worker.execution import abandoned
from fairlead.worker.extras import NO_EXTRAS, Extras
from fairlead.worker.forwarder import Forwarder
from fairlead.worker.healthchecker import Healthchecker
from fairlead.worker.heartbeater import Heartbeater
from fairlead.worker.hooks import HookRunner
from fairlead.worker.inflight import Inflight
from fairlead.worker.intake import Intake
from fairlead.worker.janitor import Janitor
from fairlead.worker.lease_watch import LeaseWatch
from fairlead.worker.loading import Loader
from fairlead.worker.orders import Orders
from fairlead.worker.processor import Processor
from fairlead.worker.publisher import Publisher
from fairlead.worker.queue_watch import QueueWatch
from fairlead.worker.record import WorkerState, introduction_of, state_of, worker_record
from fairlead.worker.recoverer import Recoverer, give_back_soon
from fairlead.worker.referrer import Referrer
from fairlead.worker.router import Router
from fairlead.worker.runner import Raised, Runner
from fairlead.worker.scheduler import Scheduler
from fairlead.worker.setup import check_count, check_limits, prepared, queue_order
from fairlead.worker.slots import Slots
from fairlead.worker.subscriber import Subscriber
from fairlead.worker.syncer import Syncer
from fairlead.worker.tether import Tether
from fairlead.worker.threads import Threads
from fairlead.worker.writer import Writer

__all__ = ("Worker",)

_KEPT = 100  # exceptions of handlers, for tests
_DRAINED = 10_000  # attempts after which a drain gives up
_MOST_DRAINED = 10**9
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
        check_limits(
            concurrency=concurrency, threads=threads, slots=slots,
            grace=grace, patience=patience, lease=lease,
        )  # fmt: skip
        self.incarnation = incarnation
        self.concurrency = concurrency
        self._store = store
        self.registry = registry
        self._queues = queues
        self._strict = strict
        self.grace = grace
        self._lease = lease
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first life
        self._alive = False  # from entering until all has stopped
        self._life: AbstractAsyncContextManager[None] | None = None
        self._threads = Threads(threads)
        self._lifespan = extras.lifespan
        self._hooks = HookRunner(store, extras.hooks, dice=dice)
        self.declarer = Declarer(extras.declare)

        self._tether = tether
        self._own_process = tether is not None or line is not None
        self.started_at = 0.0  # the broker's clock
        board = None if tether is None else tether.board
        caller = Caller(line or incarnation)
        self.inflight = Inflight(incarnation, board)
        self.outcomes = extras.outcomes
        self.syncer = Syncer(store, caller, self.inflight, extras.outcomes)
        self.scheduler = Scheduler(store, Caller(f"{line or incarnation}:schedules"))
        self.forwarder = Forwarder(store, self.scheduler)
        self.recoverer = Recoverer(store, dice)
        self.janitor = Janitor(store, dice)
        self.queue_watch = QueueWatch(store, registry, lambda: self._order().order(), incarnation)
        intake = Intake(store, self.inflight)
        self.subscriber = Subscriber(store, self.inflight, intake, incarnation=incarnation)
        self.heartbeater = Heartbeater(
            store, incarnation=incarnation, answered=lambda: self.inflight.answered,
            held=self.inflight.leases, describe=self.describe, heard=self.heard,
        )  # fmt: skip
        self._slots: Slots | None = None
        if slots and slot_plan is not None:
            self._slots = Slots(
                _SLOT, slot_plan, incarnation,
                count=slots, dice=dice, patience=patience, task_timeout=task_timeout,
            )  # fmt: skip
        self.runner = Runner(
            self.syncer,
            self.inflight,
            Router(registry, timeout=task_timeout),
            Writer(store, Caller(f"{line or incarnation}:writes"), incarnation, limit=extras.limit),
            Loader(store),
            self._threads,
            self._slots,
            patience=patience, dice=dice, extras=extras,
            exceptions=exceptions if exceptions is not None else deque(maxlen=_KEPT),
        )  # fmt: skip
        self.referrer = Referrer(
            store, self.inflight, incarnation=incarnation, settle=self.runner.turn_down
        )
        self.runner.refer = self.referrer.take
        with contextlib.suppress(RuntimeError):  # otherwise when it begins
            self._attach(asyncio.get_running_loop())
        capacity = Capacity(
            registry, self.inflight, concurrency=concurrency, threads=threads,
            processes=0 if self._slots is None else slots,
        )  # fmt: skip
        self.processor = Processor(
            store, self.syncer, self.inflight, self.runner, self._threads, self.forwarder,
            capacity, self.subscriber, order=self._order(), patience=patience,
        )  # fmt: skip
        intake.take = self.processor.take_over
        self.lease_watch = LeaseWatch(
            self.inflight, lease=lambda: self.processor.lease, hand_back=self.processor.hand_back,
            kept_at=lambda: max((tether or self.heartbeater).kept_at, self.syncer.lent_at),
        )  # fmt: skip
        self.orders = Orders(self.processor, self._end_by_order)
        catalog = extras.catalog and partial(extras.catalog, task_timeout)
        self.publisher = Publisher(store, incarnation, catalog, dice)
        self._ending: asyncio.Future[None] | None = None  # the stop that an operator ordered
        self._ended = asyncio.Event()
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
            self.publisher.prepare()
            # A child of a supervisor has waited before: it can be told to stop meanwhile.
            waits = self.outcomes is not None and self._tether is None
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
        if self._tether is not None:
            self.runner.number([spec.name for spec in self.registry])
            self._tether.introduce(self, introduction_of(self))

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

        With ``drain`` go on until nothing is queued where it fetches from. What is due later stays,
        and so does what waits in a queue that is paused.
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
        return [*watch, self.heartbeater, *others] if self._tether is None else [*watch]

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
        self.orders.obey(reply.order)

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
            loop, own_process=self._own_process, leaves=self._tether is not None,
            abandons=self._own_process and self._tether is None,
        )  # fmt: skip
