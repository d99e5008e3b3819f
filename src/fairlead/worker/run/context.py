"""What a handler sees of its own attempt.

Whatever talks to the broker comes in two forms. Async handlers use the awaited one (``aprogress``,
``aenqueue``). Sync handlers run in threads and use the plain one (``progress``, ``enqueue``), which
goes through the worker's loop and blocks only its own thread. The plain form on the loop's
thread would wait for itself for ever, so it is refused there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar, cast

from fairlead.broker.requests import MAX_XCOM, LeaseRef, Write
from fairlead.model.argument_packing import pack, unpack
from fairlead.model.errors import Fenced, InvalidInput, TaskCancelled, Unreachable
from fairlead.model.message import Leased
from fairlead.model.schedule import SLOT_HEADER
from fairlead.telemetry.fields import running
from fairlead.worker.app_services import NO_SERVICES, AppServices, Enqueueable, Enqueuer
from fairlead.worker.run.broker_failures import BrokerFailures
from fairlead.worker.run.log_buffer import LogBuffer, TaskLog
from fairlead.worker.run.progress_writer import Writes
from fairlead.worker.run.results import NO_RESULTS, Results
from fairlead.worker.run.xcom import TOO_LARGE, XCom

T = TypeVar("T")
H = TypeVar("H")

_LOOK = 1.0  # seconds between two looks of a sync handler whether it still has the task
_DAY = 86_400.0
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_log = logging.getLogger("fairlead.task")
_making = threading.Lock()

#: Set inside handlers, and in threads and tasks that copy their context. Log lines read it too.
current: ContextVar[Context | None] = cast("ContextVar[Context | None]", running)


def current_context() -> Context | None:
    """Return the context of the attempt that this code runs in; None outside of handlers."""
    return current.get()


class Context:
    """One attempt, as its handler sees it."""

    __slots__ = (
        "_cancelled", "_cleanups", "_failures", "_headers", "_lease", "_lines", "_loop", "_over",
        "_results", "_services", "_writer", "correlation_id", "deadline", "task",
    )  # fmt: skip

    def __init__(
        self,
        lease: Leased,
        task: str,
        writer: Writes,
        loop: asyncio.AbstractEventLoop,
        correlation_id: str = "",
        headers: Mapping[str, str] = _NO_HEADERS,
        services: AppServices = NO_SERVICES,
    ) -> None:
        self.task = task
        """The name that the task is registered under."""
        self.correlation_id = correlation_id
        """Joins the task with all that its handler enqueues, which inherits it."""
        self.deadline: float | None = None
        """Unix seconds when the attempt is out of time; None: no limit."""
        self._lease = lease
        self._writer = writer
        self._loop = loop
        self._headers = headers
        self._services = services
        self._results = NO_RESULTS  # until they are read, which is before the handler starts
        self._cleanups: list[tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
        self._cancelled = False  # both are set by the attempt that owns this context
        self._over = False
        self._failures: BrokerFailures | None = None  # made with the first call
        self._lines: LogBuffer | None = None  # made with the first line

    @property
    def id(self) -> str:
        """The id of the task, the same for all its attempts."""
        return self._lease.message.id

    @property
    def attempt(self) -> int:
        """1 for the first run; runs that were not charged do not count."""
        return self._lease.attempt

    @property
    def generation(self) -> int:
        """How often an operator put the task back from the dead."""
        return self._lease.generation

    @property
    def tenant(self) -> str:
        """Whose work it is."""
        return self._lease.message.tenant

    @property
    def queue(self) -> str:
        """The queue it came through."""
        return self._lease.message.queue

    @property
    def token(self) -> int:
        """Greater than that of any earlier attempt: hand it to whatever must refuse late writes."""
        return self._lease.token

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop: cancelled, out of time, or no longer this worker's.

        Async handlers get a CancelledError as well. Sync ones cannot be interrupted: those that
        take long look here from time to time, or call ``raise_if_cancelled``.
        """
        return self._cancelled

    @property
    def headers(self) -> Mapping[str, str]:
        """What middleware around the enqueue sent along."""
        return MappingProxyType(self._headers) if self._headers else _NO_HEADERS

    @property
    def slot(self) -> datetime | None:
        """The moment for which a schedule enqueued the task, in UTC; None if none did."""
        text = self._headers.get(SLOT_HEADER)
        return None if text is None else datetime.fromisoformat(text)

    @property
    def resources(self) -> Mapping[str, Any]:
        """What the app opened when the worker started, by the names of its functions."""
        return self._services.lifespan.of(self._loop)

    @property
    def results(self) -> Results:
        """What the tasks in ``depends_on`` returned, by id, handle or name, as plain data.

        Read before the handler starts, if its first parameter is a Context or one of its arguments
        is an output.
        """
        return self._results

    @property
    def xcom(self) -> XCom:
        """Values that tasks of this tenant leave for each other."""
        return XCom(self)

    @property
    def log(self) -> TaskLog:
        """``ctx.log("text", count=3)`` keeps a line with the task; see ``handle.logs()``.

        It is also a logger (``ctx.log.info(...)``), whose lines go to the log of the worker. They
        name the task and the attempt; the arguments are never in them.
        """
        return TaskLog(_log, self.fields(), self._keep_line)

    def fields(self) -> dict[str, object]:
        """Return what a log line says of the attempt."""
        return {
            "task_id": self.id,
            "task": self.task,
            "attempt": self.attempt,
            "tenant": self.tenant,
            "queue": self.queue,
            "correlation_id": self.correlation_id,
        }

    def __repr__(self) -> str:
        where = f"tenant={self.tenant!r} queue={self.queue!r}"
        return f"<Context {self.task} {self.id} attempt={self.attempt} {where}>"

    def on_cleanup(self, callback: Callable[..., object], *args: Any) -> None:
        """Call this when the handler has ended, however it did; the last one given goes first.

        The outcome is reported after that, and no error of a callback changes it. A coroutine
        function is awaited on the worker's loop, any other is called where the handler ran.
        """
        if not callable(callback):
            raise InvalidInput(f"{type(callback).__name__} cannot be called for a cleanup")
        if self._cleanups is None:
            self._cleanups = []
        self._cleanups.append((callback, args))

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if the attempt should stop."""
        if self._cancelled:
            raise TaskCancelled(self.id)

    async def aprogress(self, value: Any) -> None:
        """Record how far the attempt has come: a number, a text, any small value.

        Best effort: if the broker cannot take it soon, the worker logs that, and the handler goes
        on. ``Fenced`` if the attempt is over, or another worker has the task.
        """
        self._check()
        data = pack(value, "progress", MAX_XCOM, codecs=self._services.codecs)
        write = Write(lease=self._fence(), kind="progress", key="", value=data, ttl=_DAY)
        await self._on_loop(self._writer.report(write))

    def progress(self, value: Any) -> None:
        """Record how far the attempt has come, from a sync handler; see ``aprogress``."""
        try:
            self._wait("progress", "aprogress", self.aprogress, value)
        except Unreachable as error:  # raised here only: the broker's own are logged on the loop
            self.log.warning("progress not written: %s", error)

    async def acheckpoint(self, value: Any) -> None:
        """Save how far the task has come, up to 64 KiB, for the attempt that follows a failure.

        It is stored once this returns; a later one takes its place. ``Fenced`` if the attempt is
        over, or another worker has the task.
        """
        self._check()
        codecs = self._services.codecs
        data = pack(value, "checkpoint", MAX_XCOM, advice=TOO_LARGE, codecs=codecs)
        write = Write(lease=self._fence(), kind="checkpoint", value=data)
        await self._on_loop(self._writer.write(write))

    async def alast_checkpoint(self, default: Any = None) -> Any:
        """Return what was saved last, in this attempt or before, as plain data; or ``default``.

        Args:
            default: What to return if nothing was saved. Default: None.
        """
        self._check()
        data = await self._on_loop(self._writer.checkpoint(self.id))
        return default if data is None else unpack(data, "the checkpoint", self._services.codecs)

    def checkpoint(self, value: Any) -> None:
        """Save how far the task has come, from a sync handler; see ``acheckpoint``."""
        self._wait("checkpoint", "acheckpoint", self.acheckpoint, value)

    def last_checkpoint(self, default: Any = None) -> Any:
        """Return what was saved last, from a sync handler; see ``alast_checkpoint``.

        Args:
            default: What to return if nothing was saved. Default: None.
        """
        return self._wait("last_checkpoint", "alast_checkpoint", self.alast_checkpoint, default)

    async def aenqueue(self, call: Enqueueable[H]) -> H:
        """Enqueue ``task.call(...)`` as a child of this attempt; return its handle.

        It is accepted only while this attempt holds its lease. Once the attempt is over, or another
        worker has the task, it raises ``Fenced``: the attempt that counts enqueues its own.
        """
        self._check()
        made: H = await self._on_loop(self._enqueuer().one(call, self._fence()))
        return made

    async def aenqueue_many(self, calls: Iterable[Enqueueable[H]]) -> list[H]:
        """Enqueue several, which may depend on each other, as ``aenqueue`` does one."""
        self._check()
        return await self._on_loop(self._enqueuer().many(calls, self._fence()))

    def enqueue(self, call: Enqueueable[H]) -> H:
        """Enqueue a call as a child of this attempt, from a sync handler; see ``aenqueue``."""
        limit = self._enqueuer().limit([call])
        made: H = self._wait("enqueue", "aenqueue", self.aenqueue, call, limit=limit)
        return made

    def enqueue_many(self, calls: Iterable[Enqueueable[H]]) -> list[H]:
        """Enqueue several calls as children, from a sync handler; see ``aenqueue_many``."""
        made = list(calls)  # here: a generator is code of the handler, and belongs in its thread
        limit = self._enqueuer().limit(made)
        return self._wait("enqueue_many", "aenqueue_many", self.aenqueue_many, made, limit=limit)

    def _enqueuer(self) -> Enqueuer:
        if self._services.enqueuer is None:
            raise InvalidInput(
                "this worker was made without an app, which is what children are enqueued with"
            )
        return self._services.enqueuer

    def _keep_line(self, text: str, fields: Mapping[str, Any]) -> None:
        with _making:  # threads of a handler may have their first line at the same time
            if self._lines is None:
                codecs = self._services.codecs
                self._lines = LogBuffer(self._loop, self._writer, self._fence(), codecs)
        self._lines.add(self.attempt, text, fields)

    def _fence(self) -> LeaseRef:
        return LeaseRef(self.id, self._writer.incarnation, self.token)

    async def _push(self, key: str, value: bytes, ttl: float) -> None:
        self._check()
        write = Write(lease=self._fence(), kind="xcom", key=key, value=value, ttl=ttl)
        await self._on_loop(self._writer.write(write))

    async def _pull(self, key: str) -> bytes | None:
        self._check()
        return await self._on_loop(self._writer.pull(self.tenant, key))

    async def _on_loop(self, call: Coroutine[Any, Any, T]) -> T:
        # A sync handler may run a loop of its own; what the attempts share belongs to the worker's.
        with self._watched().calling():
            if asyncio.get_running_loop() is self._loop:
                return await call
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def _watched(self) -> BrokerFailures:
        """What the broker costs this attempt."""
        if self._failures is None:
            self._failures = BrokerFailures()
        return self._failures

    def _check(self) -> None:
        # A handler that was given up on may still run: the broker would refuse what it writes.
        if self._over:
            raise Fenced(self.id, self.token)

    def _wait(
        self,
        name: str,
        better: str,
        call: Callable[..., Awaitable[T]],
        *args: Any,
        limit: float | None = None,
    ) -> T:
        """Carry out a call on the worker's loop and wait for it, in a thread of a handler.

        Its time limit is its own, once the loop has begun with it. A loop that does not begin in
        that time either is an outage to the handler: nothing was sent, and nothing will be.
        """
        self._check()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            raise InvalidInput(
                f"ctx.{name}() would block the event loop that it waits for; "
                f"in async code use: await ctx.{better}()"
            )

        turn = threading.Lock()  # of the loop, which keeps it, or of the thread that gives up

        async def awaited() -> T:
            if not turn.acquire(blocking=False):
                raise asyncio.CancelledError
            return await call(*args)

        limit = self._writer.limit if limit is None else limit
        until = time.monotonic() + limit
        future = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        while True:
            left = until - time.monotonic()
            try:
                return future.result(_LOOK if turn.locked() else min(_LOOK, max(left, 0.0)))
            except TimeoutError:
                if future.done():  # an error of the call itself, or it ended in this moment
                    return future.result()
            if self._over:
                future.cancel()  # the loop may have ended: nobody would answer
                self._check()
            if left <= 0.0 and turn.acquire(blocking=False):
                error = Unreachable(
                    f"the worker's event loop was blocked for {limit:g} s, so nothing was sent"
                )
                self._watched().note(error)
                raise error
