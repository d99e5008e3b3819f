"""Handlers that run spooled tasks in this process while the broker is away.

The same code as in a worker runs them: middleware, resources, time limits, threads. What is missing
is the broker: calls of a context that need it raise ``Unreachable`` at once, and an attempt that
ends with that is handed back. See ``fairlead.fallback.local_tasks`` for the rest.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from fairlead.broker import Store
from fairlead.broker.requests import LeaseRef, Write
from fairlead.fallback.local_tasks import Finished
from fairlead.model.errors import Unreachable
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased, Message
from fairlead.model.registry import Registry
from fairlead.runtime.daemon_loops import stand_still_at_the_end
from fairlead.runtime.event_loop import new_runner
from fairlead.runtime.randomness import generator
from fairlead.worker.app_services import AppServices, Enqueueable, H
from fairlead.worker.handler_router import Assignment, Router
from fairlead.worker.inflight import Inflight
from fairlead.worker.run.attempt import Attempt
from fairlead.worker.run.dependency_loader import DependencyLoader
from fairlead.worker.run.threads import Threads
from fairlead.worker.runner import Raised, Runner

log = logging.getLogger("fairlead.worker")

_PATIENCE = 0.4  # seconds that a handler has to stop when it is told to
_AWAY = "this attempt runs without the broker, which is away: "


class LocalHandlers:
    """Runs attempts in a thread with a loop of its own, from the first one until ``close``."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        finished: Finished,
        *,
        services: AppServices,
        concurrency: int,
        task_timeout: float | None = None,
        exceptions: deque[Raised],
    ) -> None:
        self._finished = finished
        self._lifespan = services.lifespan
        codecs = services.codecs
        # Of whoever asks what can run.
        self._router = Router(registry, timeout=task_timeout, codecs=codecs)
        self._threads = Threads(concurrency)
        self._inflight = Inflight("local")
        self._settler = _Settler(self._over)
        self._news = asyncio.Event()
        self._runner = Runner(
            self._settler,
            self._inflight,
            Router(registry, timeout=task_timeout, codecs=codecs),
            _NoWrites(services.limit),
            DependencyLoader(store, codecs),
            self._threads,
            patience=_PATIENCE,
            dice=generator.random,
            exceptions=exceptions,
            over=lambda _kind, _count: self._news.set(),
            services=AppServices(
                enqueuer=_NoChildren(),
                around=services.around,
                lifespan=services.lifespan,
                limit=services.limit,
                counters=services.counters,
                codecs=codecs,
            ),
        )
        self._lock = threading.Lock()
        self._waiting: dict[str, Leased] = {}  # given, and no outcome so far
        self._new: deque[Leased] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = self._is_broken = False
        self._thread: threading.Thread | None = None

    def can_run(self, message: Message) -> bool:
        """Whether a handler here can run a task, in this process and without another's result."""
        if self._is_broken:
            return False
        route = self._router.route(Leased(message=message, token=0, attempt=1))
        return isinstance(route, Assignment) and not (route.spec.isolation or route.reads)

    def start(self, leases: Sequence[Leased]) -> None:
        """Begin attempts. From any thread."""
        with self._lock:
            self._waiting |= {lease.message.id: lease for lease in leases}
            self._new.extend(leases)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="fairlead-local")
                self._thread.daemon = True
                self._thread.start()
        self._wake()

    def close(self, timeout: float) -> None:
        """Hand back what runs, and wait so many seconds for the end of it. Blocks."""
        self._is_closing = True
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:  # it has ended
                return

    def _main(self) -> None:
        try:
            with new_runner() as runner:
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001 - code of the app, at its start or end
            _tell(error)
        finally:
            self._is_broken = True
            with self._lock:
                left, self._waiting = list(self._waiting), {}
            for id in left:
                self._finished(id, None)

    async def _serve(self) -> None:
        async with self._lifespan:
            self._loop = asyncio.get_running_loop()
            stand_still_at_the_end(self._loop)
            self._runner.attach(self._loop)
            try:
                while not self._is_closing:
                    self._news.clear()
                    while self._new:
                        self._runner.start(self._new.popleft())
                    if not self._is_closing:
                        await self._news.wait()
                await self._stop()
            finally:
                self._runner.close()
                self._threads.close()

    async def _stop(self) -> None:
        """Hand back what runs; a handler that goes on is abandoned after its patience."""
        self._inflight.stop_all("release")
        try:
            async with asyncio.timeout(2 * _PATIENCE):
                while len(self._inflight):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("handlers go on in this process: %d", len(self._inflight))

    def _over(self, settlement: Settlement) -> None:
        with self._lock:
            known = self._waiting.pop(settlement.id, None)
        if known is not None:
            self._finished(settlement.id, settlement)


def _tell(error: Exception) -> None:
    log.error("tasks cannot run in this process", exc_info=error)


class _Settler:
    """Passes on what follows from attempts."""

    def __init__(self, over: Callable[[Settlement], None]) -> None:
        self.fenced = 0
        self._over = over

    def add(self, settlement: Settlement) -> None:
        self._over(settlement)

    def mark(self, attempt: Attempt) -> bool:
        return False  # there is no broker to be told


class _NoWrites:
    """What the context of an attempt can do without a broker: drop progress and lines."""

    incarnation = "local"

    def __init__(self, limit: float) -> None:
        self.limit = limit

    async def write(self, write: Write, limit: float | None = None) -> None:
        raise Unreachable(f"{_AWAY}it cannot write the {write.kind} value {write.key!r}")

    async def report(self, write: Write) -> bool:
        return False

    async def pull(self, tenant: str, key: str) -> bytes | None:
        raise Unreachable(f"{_AWAY}it cannot read the xcom value {key!r}")

    async def checkpoint(self, id: str) -> bytes | None:
        raise Unreachable(f"{_AWAY}it cannot read the checkpoint of task {id!r}")


class _NoChildren:
    """Refuses what handlers enqueue as children: the broker accepts these under a lease only."""

    def limit(self, calls: Iterable[object]) -> float:
        return 1.0

    async def one(self, call: Enqueueable[H], fence: LeaseRef) -> H:
        raise Unreachable(_NO_CHILDREN)

    async def many(self, calls: Iterable[Enqueueable[H]], fence: LeaseRef) -> list[H]:
        raise Unreachable(_NO_CHILDREN)


_NO_CHILDREN = f"{_AWAY}ctx.enqueue needs a lease; enqueue with the task itself instead"
