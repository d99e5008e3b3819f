"""A worker in this process: builds the components and nests them. No logic of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Self

from msgspec import UNSET

from fairlead.broker import Caller, Store
from fairlead.broker.verbs import MAX_EXCHANGE
from fairlead.model.errors import BrokerError, InvalidInput, InvalidOption
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.model.ordering import QueueOrder, StrictOrder, WeightedOrder
from fairlead.model.registry import Registry
from fairlead.runtime.component import serving
from fairlead.worker.forwarder import Forwarder
from fairlead.worker.heartbeater import Heartbeater
from fairlead.worker.inflight import Inflight
from fairlead.worker.janitor import Janitor
from fairlead.worker.processor import Processor
from fairlead.worker.recoverer import Recoverer
from fairlead.worker.router import Router
from fairlead.worker.runner import Raised
from fairlead.worker.subscriber import Subscriber
from fairlead.worker.syncer import Syncer
from fairlead.worker.threads import Threads
from fairlead.worker.writer import Writer

__all__ = ("Worker",)

log = logging.getLogger("fairlead.worker")

_MAX_SLOTS = 10_000
_KEPT = 100  # exceptions of handlers, for tests
_DRAINED = 10_000  # attempts after which a drain gives up
_MOST_DRAINED = 10**9


class Worker:
    """Runs tasks while its ``async with`` block lasts, or once with ``drain``.

    ``queues`` are weights by name, or names in order; without any, ``default`` and every queue that
    a registered task names. ``strict`` empties earlier queues before it looks into later ones (of a
    mapping the heaviest first); otherwise the worker is shared by weight.

    ``incarnation`` belongs to this worker alone. On leaving the block it stops fetching, lets what
    runs finish for ``grace`` seconds, cancels the rest and hands it back without using up an
    attempt. ``patience`` is how long a handler may take to obey before it is abandoned.
    ``lease`` is in seconds; None leaves it to the broker. ``exceptions`` takes what handlers raise.
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
        dice: Callable[[], float] = random.random,
        exceptions: deque[Raised] | None = None,
    ) -> None:
        _check_count("concurrency", concurrency, 1, _MAX_SLOTS)
        _check_count("threads", threads, 1, _MAX_SLOTS)
        _check_seconds("grace", grace)
        _check_seconds("patience", patience)
        if lease is not None:
            _check_seconds("lease", lease, least=0.01)
        self.incarnation = incarnation
        self._store = store
        self._registry = registry
        self._queues = queues
        self._strict = strict
        self._grace = grace
        self._lease = lease
        self._largest_fetch = min(concurrency, MAX_EXCHANGE)
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first life
        self._alive = False  # from entering until all has stopped
        self._life: AbstractAsyncContextManager[None] | None = None
        self._threads = Threads(threads)

        caller = Caller(incarnation)
        self.inflight = Inflight(incarnation)
        self.syncer = Syncer(store, caller)
        self.forwarder = Forwarder(store)
        self.recoverer = Recoverer(store, dice)
        self.janitor = Janitor(store, dice)
        self.subscriber = Subscriber(store, self.inflight, incarnation=incarnation)
        self.heartbeater = Heartbeater(
            store,
            self.inflight,
            self.syncer,
            incarnation=incarnation,
            tasks=lambda: tuple(spec.name for spec in registry),
            concurrency=concurrency,
        )
        self.processor = Processor(
            store,
            self.syncer,
            self.inflight,
            Router(registry),
            Writer(store, caller),
            self._threads,
            self.forwarder,
            order=self._order(),
            concurrency=concurrency,
            patience=patience,
            dice=dice,
            exceptions=exceptions if exceptions is not None else deque(maxlen=_KEPT),
        )

    @property
    def exceptions(self) -> deque[Raised]:
        """The last 100 exceptions that handlers raised, for tests; retries are not errors here."""
        return self.processor.exceptions

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
            _check_count("limit", limit, 0, _MOST_DRAINED)
        self._begin()
        try:
            async with self._serve_once():
                return await self.processor.drain(limit)
        finally:
            self._alive = False

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        await self._prepare()
        # The order of stopping is from the inside out. Whoever serves attempts goes last.
        async with (
            self._handing_back(),
            serving(self.heartbeater, self.subscriber),
            serving(self.forwarder, self.recoverer, self.janitor),
            serving(self.processor),
        ):
            try:
                yield
            finally:
                await self.processor.stop(self._grace)

    @asynccontextmanager
    async def _serve_once(self) -> AsyncIterator[None]:
        await self._prepare()
        async with self._handing_back(), serving(self.heartbeater, self.subscriber):
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
        self.heartbeater.queues, self.heartbeater.lease = order.order(), lease
        self.heartbeater.started_at = hello.now

    @asynccontextmanager
    async def _handing_back(self) -> AsyncIterator[None]:
        """Leave nothing behind: no thread, and no lease that a lost reply kept from us."""
        try:
            yield
        finally:
            self._threads.close()
            try:
                more = True
                while more:
                    more = (await self._store.give_back(self.incarnation, [])).more
            except BrokerError as error:  # the sweep of another worker will do it
                log.warning("leases not given back", extra={"error": type(error).__name__})

    def _order(self) -> QueueOrder:
        queues = self._queues
        if queues is None:
            queues = {DEFAULT_QUEUE: 1.0}
            for spec in self._registry:
                if spec.options.queue is not UNSET:
                    queues[spec.options.queue] = 1.0
        elif isinstance(queues, str):
            raise InvalidOption("queues", queues, "a list of names, or weights by name")
        if self._strict:
            if isinstance(queues, Mapping):
                return StrictOrder(sorted(queues, key=queues.__getitem__, reverse=True))
            return StrictOrder(queues)
        if not isinstance(queues, Mapping):
            queues = dict.fromkeys(StrictOrder(queues).order(), 1.0)  # which checks the list
        if len(queues) == 1:
            WeightedOrder(queues)
            return StrictOrder(queues)  # there is nothing to share
        return WeightedOrder(queues, largest_fetch=self._largest_fetch)

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


def _check_count(option: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOption(option, value, f"a whole number from {least} to {most}")


def _check_seconds(option: str, value: object, least: float = 0.0) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (math.isfinite(value) and value >= least)
    ):
        raise InvalidOption(option, value, f"a number of seconds, {least:g} or more")
