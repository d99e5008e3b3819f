"""Calls the function of a hook, wherever it wants to run, and counts the calls that do not end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

MOST_HANGING = 4  # calls of one hook that were given up and go on: each may hold a thread


class HookCalls:
    """The calls of one function. One that was given up counts until it has really ended."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._room = asyncio.Semaphore(MOST_HANGING)

    @property
    def is_full(self) -> bool:
        """Whether so many hang that the next has to wait for one of them."""
        return self._room.locked()

    async def begin(self, event: Any) -> asyncio.Task[None]:
        """Begin the next, once there is room for it; the task ends with the call."""
        await self._room.acquire()
        if inspect.iscoroutinefunction(self._function):
            task = asyncio.ensure_future(_awaited(self._function(event)))
            task.add_done_callback(lambda _: self._room.release())
            return task
        return asyncio.ensure_future(self._call_in_thread(event))

    async def _call_in_thread(self, event: Any) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def tell(result: Any, error: Exception | None) -> None:
            self._room.release()
            if ended.done():
                return
            if error is None:
                ended.set_result(result)
            else:
                ended.set_exception(error)

        def work() -> None:
            result, failure = None, None
            try:
                result = context.run(self._function, event)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this call only
                failure = _harmless(error)
            try:
                loop.call_soon_threadsafe(tell, result, failure)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        # Not of a pool: one that hangs must keep neither another hook nor the process from going
        # on.
        thread = threading.Thread(target=work, name="hook", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more of them
            self._room.release()
            raise
        result = await ended
        if inspect.isawaitable(result):
            await _awaited(result)


async def _awaited(work: Awaitable[object]) -> None:
    try:
        await work
    except SystemExit as error:  # it would end the loop, and the process with it
        raise _harmless(error) from None


def _harmless(error: BaseException) -> Exception:
    """The error, or one in its place if a future or a loop would take it for a sign."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(type(error).__name__).with_traceback(error.__traceback__)
