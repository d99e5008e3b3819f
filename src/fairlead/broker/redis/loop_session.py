"""What belongs to one event loop, of a broker on a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.broker.redis.connection import Server, Value
from fairlead.broker.requests import Call
from fairlead.runtime.event_loop import outlasted

OnStray = Callable[[Any], Coroutine[Any, Any, None]]

_TURNS = 3  # of the loop, until all who were woken have heard of it
_STEP, _STEPS = 0.002, 500  # seconds between two looks at who is still there, and how many looks


class LoopSession:
    """What belongs to one event loop: its connections, and its own line of numbered calls."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.closing: asyncio.Future[None] = self.loop.create_future()
        self.tasks: set[asyncio.Task[Any]] = set()  # blocked calls, and what they left to do
        self.calls = 0  # under way
        self.is_over = False  # its connections are closed: nobody may open others to tidy up
        self._name = os.urandom(8).hex()
        self._numbers: dict[str, int] = {}
        self._lines: dict[str, asyncio.Lock] = {}

    def line(self, verb: str) -> asyncio.Lock:
        """Held by the one call of a verb that is in flight: numbers must arrive in order."""
        return self._lines.setdefault(verb, asyncio.Lock())

    def next(self, verb: str, until: float | None = None) -> Call:
        """The next number of this loop's own calls of a verb."""
        number = self._numbers[verb] = self._numbers.get(verb, 0) + 1
        return Call(f"{self._name}:{verb}", number, until)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something beside the verbs; ``close`` waits for it."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def block(
        self,
        *command: Value,
        seconds: float,
        is_whole: bool = False,
        on_stray: OnStray | None = None,
    ) -> Any:
        """Issue a blocking command, see ``Server.block``; None when it ends or all are woken.

        What it brings in the very moment in which it is given up goes to ``on_stray``.
        """
        call = self.start(self._freed(*command, seconds=seconds, is_whole=is_whole, stray=on_stray))

        def save(call: asyncio.Task[Any]) -> None:
            came = not call.cancelled() and call.exception() is None and call.result() is not None
            if came and on_stray is not None and not self.is_over:
                _ = self.start(on_stray(call.result()))

        try:
            await asyncio.wait((call, self.closing), return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
        except asyncio.CancelledError:
            call.cancel()
            call.add_done_callback(save)
            raise
        call.cancel()
        call.add_done_callback(save)
        return None

    async def _freed(
        self, *command: Value, seconds: float, is_whole: bool, stray: OnStray | None
    ) -> Any:
        """Issue it; when it is given up, end once the server knows."""
        try:
            return await self.server.block(
                *command, seconds=seconds, is_whole=is_whole, on_stray=stray
            )
        except asyncio.CancelledError:
            for chore in tuple(self.server.chores):
                await outlasted(chore)
            raise

    async def settle(self) -> None:
        """Let calls under way come to their end, for a while: those who wait were woken."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for _ in range(_STEPS):  # calls end within milliseconds, and none should pay for saying so
            if not (self.calls or self.tasks):
                return
            await asyncio.sleep(_STEP)

    async def end(self) -> None:
        """Close the connections; nobody opens others to tidy up."""
        self.is_over = True
        await self.server.close()

    def wake(self) -> None:
        """Wake everyone who waits here, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody waits on it
            return

    def _wake(self) -> None:
        if not self.closing.done():
            self.closing.set_result(None)
