"""Waking those who wait, on whatever event loop they wait. Never polls.

Everything here is called with the broker's lock held, except ``Sleeper.sleep``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Sleeper:
    """One coroutine that waits, on the loop it runs on."""

    __slots__ = ("_future", "_loop", "gone", "rung")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self.rung = False  # woken for work, rather than to look at the time again
        self.gone = False  # its coroutine was thrown away with its loop

    @property
    def listens(self) -> bool:
        """Whether somebody would hear a wake-up."""
        return not self.gone and not self._loop.is_closed()

    async def sleep(self, seconds: float) -> None:
        """Until woken, or for so long. May be called again."""
        timer = self._loop.call_later(seconds, self._finish)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = self._loop.create_future()

    def wake(self) -> bool:
        """Wake it from any thread; false if its loop is gone and nobody will hear it."""
        if self.gone:
            return False
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:  # the loop was closed under it
            return False
        return True

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Wakeups:
    """Who waits for work, by queue. The first of all also holds the alarm for what is due later."""

    def __init__(self) -> None:
        self._sleepers: dict[Sleeper, tuple[str, ...]] = {}
        self._by_queue: dict[str, dict[Sleeper, None]] = {}

    def __len__(self) -> int:
        return len(self._sleepers)

    def add(self, sleeper: Sleeper, queues: Iterable[str]) -> None:
        """Let a sleeper wait for these queues."""
        names = tuple(dict.fromkeys(queues))
        self._sleepers[sleeper] = names
        for name in names:
            self._by_queue.setdefault(name, {})[sleeper] = None

    def remove(self, sleeper: Sleeper) -> None:
        """Forget a sleeper; if it held the alarm, the next one is woken to take it over."""
        held_alarm = self.holds_alarm(sleeper)
        self._drop(sleeper)
        if held_alarm:
            self.rearm()

    def holds_alarm(self, sleeper: Sleeper) -> bool:
        """Whether this sleeper has to wake up when something becomes due."""
        return next(iter(self._sleepers), None) is sleeper

    def rearm(self) -> None:
        """Have the holder of the alarm look at the time again."""
        while (holder := next(iter(self._sleepers), None)) is not None and not holder.wake():
            self._drop(holder)

    def ring(self, queue: str) -> None:
        """Wake one that waits for this queue and was not woken yet."""
        waiting = self._by_queue.get(queue, {})
        deaf: list[Sleeper] = []
        for sleeper in waiting:
            if not sleeper.rung:
                sleeper.rung = True
                if sleeper.wake():
                    break
                deaf.append(sleeper)
        for sleeper in deaf:
            self.remove(sleeper)

    def ring_all(self) -> None:
        """Wake everyone."""
        for sleeper in self._sleepers:
            sleeper.rung = True
            sleeper.wake()

    def _drop(self, sleeper: Sleeper) -> None:
        for name in self._sleepers.pop(sleeper, ()):
            waiting = self._by_queue[name]
            waiting.pop(sleeper, None)
            if not waiting:
                del self._by_queue[name]
