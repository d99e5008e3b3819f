"""What a worker opens before it fetches and closes when nothing runs any more.

Every function has a task of its own for as long as the worker lives: what an async generator opens,
such as a TaskGroup, must be closed by the task that opened it. For the same reason all sync ones
share one thread. Both can be given up on, so that nothing that hangs keeps a worker from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from queue import SimpleQueue
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NamedTuple, Self

from fairlead.model.errors import InvalidInput

log = logging.getLogger("fairlead.worker")

_PATIENCE = 10.0  # seconds that one function may take to close what it opened
_LAST = 1.0  # seconds that it has after it was cancelled
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Entry(NamedTuple):
    when: Literal["startup", "shutdown"]
    name: str
    function: Callable[[], Any]


class Lifespan:
    """The functions of an app that run before the first task is fetched and after the last ended.

    Workers that run at the same time on one event loop share what is open: the first opens it, and
    the last one closes it. Each loop has resources of its own.
    """

    def __init__(self, *, patience: float = _PATIENCE) -> None:
        self._entries: list[_Entry] = []
        self._lives: dict[asyncio.AbstractEventLoop, _Life] = {}
        self._patience = patience

    def add(self, when: Literal["startup", "shutdown"], function: Callable[[], Any]) -> None:
        """Run the function then; in the order given, and at the end the other way round."""
        name = _checked(function)
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if when == "shutdown" and yields:
            raise InvalidInput(
                f"{name}() yields, which is for on_startup: what comes after the yield runs at "
                "shutdown"
            )
        if when == "startup" and any(entry[:2] == (when, name) for entry in self._entries):
            raise InvalidInput(
                f"a resource {name!r} is registered already; give the function another name"
            )
        self._entries.append(_Entry(when, name, function))

    @property
    def resources(self) -> Mapping[str, Any]:
        """What is open, by the names of the functions that opened it; that of the running loop."""
        try:
            return self.of(asyncio.get_running_loop())
        except RuntimeError:
            pass
        for life in list(self._lives.values()):  # a thread of a handler: nearly always one loop
            return life.resources
        return _NOTHING

    def of(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Any]:
        """What is open for the workers of one loop."""
        life = self._lives.get(loop)
        return _NOTHING if life is None else life.resources

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        life = self._lives.get(loop)
        if life is None:
            for closed in [each for each in self._lives if each.is_closed()]:
                del self._lives[closed]
            life = self._lives[loop] = _Life(self._patience)
        life.users += 1
        try:
            await life.open(self._entries)
        except BaseException:
            self._leave(loop, life)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        life = self._lives[loop]
        try:
            if life.users == 1:
                await life.close()
        finally:
            self._leave(loop, life)

    def _leave(self, loop: asyncio.AbstractEventLoop, life: _Life) -> None:
        life.users -= 1
        if life.users == 0:
            del self._lives[loop]


class _Life:
    """What is open on one loop."""

    def __init__(self, patience: float) -> None:
        self.users = 0
        self._open: dict[str, Any] = {}
        self.resources: Mapping[str, Any] = MappingProxyType(self._open)
        self._held: list[_Held] | None = None  # None: closed
        self._line = asyncio.Lock()
        self._thread = _Thread()
        self._patience = patience

    async def open(self, entries: list[_Entry]) -> None:
        """Start everything in order, unless somebody has; after an error nothing is open."""
        async with self._line:
            if self._held is not None:
                return
            self._held = []
            self._thread = _Thread()  # the last one may have been left hanging
            try:
                for entry in list(entries):
                    held = _Held(entry, self._thread)
                    value = await held.open()
                    self._held.append(held)
                    if entry.when == "startup":
                        self._open[entry.name] = value
            except BaseException:
                await self._close()
                raise

    async def close(self) -> None:
        """Stop everything, the last first."""
        async with self._line:
            if self.users == 1:  # nobody came while we waited
                await self._close()

    async def _close(self) -> None:
        cancelled: asyncio.CancelledError | None = None
        while self._held:
            held = self._held.pop()
            try:
                await held.close(self._patience)
            except asyncio.CancelledError as error:  # the others are closed all the same
                cancelled = error
            self._open.pop(held.name, None)
        self._held = None
        self._thread.end()
        if cancelled is not None:
            raise cancelled


class _Held:
    """One function, in a task of its own from its start to its end."""

    def __init__(self, entry: _Entry, thread: _Thread) -> None:
        self.name = entry.name
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Any] = loop.create_future()
        self._over = asyncio.Event()
        manager = _manager(entry, thread)
        self._task = loop.create_task(self._hold(manager), name=f"lifespan {entry.name}")

    async def open(self) -> Any:
        """Wait until it is open; what it opened."""
        try:
            await asyncio.wait([self._task, self._opened], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_LAST)
            raise
        if self._opened.done():
            return self._opened.result()
        error = None if self._task.cancelled() else self._task.exception()
        raise error or RuntimeError(f"{self.name}() ended before it had started")

    async def close(self, patience: float) -> None:
        """Have it close what it opened. Never raises its errors: they are logged."""
        self._over.set()
        try:
            await asyncio.wait([self._task], timeout=patience)
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task], timeout=_LAST)
                log.error("shutdown given up: %s", self.name, extra={"resource": self.name})
        if self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                fields = {"resource": self.name, "error": type(error).__name__}
                log.error("shutdown failed: %s", self.name, exc_info=error, extra=fields)

    async def _hold(self, manager: AbstractAsyncContextManager[Any]) -> None:
        async with manager as value:
            self._opened.set_result(value)
            await self._over.wait()


@asynccontextmanager
async def _manager(entry: _Entry, thread: _Thread) -> AsyncIterator[Any]:
    """Any kind of function as an async context manager."""
    function = entry.function
    if entry.when == "shutdown":
        yield None
        await _called(function, thread)
    elif inspect.isasyncgenfunction(function):
        async with asynccontextmanager(function)() as value:
            yield value
    elif inspect.isgeneratorfunction(function):
        manager = contextmanager(function)()
        value = await thread.run(manager.__enter__)
        yield value
        await thread.run(lambda: manager.__exit__(None, None, None))
    else:
        yield await _called(function, thread)


async def _called(function: Callable[[], Any], thread: _Thread) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function()
    value = await thread.run(function)
    return await value if inspect.isawaitable(value) else value


class _Thread:
    """One thread, made when first needed. A daemon: what hangs in it ends with the process."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._alive = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call the function in the thread and wait for it."""
        if not self._alive:
            self._alive = True
            threading.Thread(target=self._serve, name="fairlead-lifespan", daemon=True).start()
        job = _Job(function)
        self._jobs.put(job)
        return await asyncio.wrap_future(job.future)

    def end(self) -> None:
        """Let the thread end once it has nothing to do."""
        if self._alive:
            self._alive = False
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job


class _Job:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except StopIteration as error:  # which no future takes
            self.future.set_exception(RuntimeError(f"{error!r} was raised"))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for it
            self.future.set_exception(error)


def _checked(function: object) -> str:
    name = getattr(function, "__name__", "")
    if not callable(function) or not name:
        raise InvalidInput(f"{function!r} is no function")
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise InvalidInput(f"{name}() is called without arguments, but asks for some") from None
    except ValueError:  # it hides its parameters
        pass
    return str(name)
