"""Long-running parts of a process: what they look like, and how they start, repeat and stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from fairlead.model.errors import BrokerError

_FIRST_PAUSE = 0.1  # seconds after a failed step, doubled with each further failure
_LONGEST_PAUSE = 5.0  # seconds
_FIRST_REPEAT = 5.0  # seconds until an outage that goes on is said again, doubled each time
_LONGEST_REPEAT = 300.0  # seconds

log = logging.getLogger("fairlead.runtime")


class Component(Protocol):
    """One role of a process: ``run()`` lasts until it is cancelled."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None: ...


@asynccontextmanager
async def serving(*components: Component) -> AsyncIterator[None]:
    """Run components for as long as the block lasts; if one crashes, the block is cancelled.

    Blocks are nested, and the nesting is the order of stopping: the inner ones stop first. An error
    of the block comes out as it is, a crash of components as an ExceptionGroup.
    """
    error: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run(part), name=part.name) for part in components]
        try:
            yield
        except Exception as caught:
            if any(map(_crashed, tasks)):
                raise  # they belong together
            error = caught
        finally:
            for task in tasks:
                task.cancel()
    if error is not None:
        raise error


async def _run(part: Component) -> None:
    try:
        await part.run()
    except Exception as error:
        # Said here: whoever entered the block in a task that has ended since hears of it nowhere.
        fields = {"component": part.name, "error": type(error).__name__}
        log.exception("component crashed: %s", part.name, extra=fields)
        raise


def _crashed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def every(
    interval: float | Callable[[], float],
    step: Callable[[], Awaitable[object]],
    *,
    wake: asyncio.Event | None = None,
) -> None:
    """Take a step at once and then after each interval, or as soon as ``wake`` is set; for ever.

    A step that the broker fails is logged and soon tried again: an outage ends, and whoever gave
    up before would have to be restarted by hand. Any other error is a mistake of ours and ends
    the loop.
    """
    task = asyncio.current_task()
    outage = Outage(task.get_name() if task is not None else "")
    failures = 0
    while True:
        pause = interval() if callable(interval) else interval
        if wake is not None:
            wake.clear()
        try:
            await step()
        except BrokerError as error:
            outage.failed(error)
            pause = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE, max(pause, _FIRST_PAUSE))
            failures = min(failures + 1, 16)
        else:
            outage.over()
            failures = 0
        if wake is None or failures:
            await asyncio.sleep(pause)
        elif not wake.is_set():
            await within(pause, wake)


async def within(seconds: float, event: asyncio.Event) -> bool:
    """Whether the event comes within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Outage:
    """Says that the broker fails, and why, and when it answers again; not one line for each try.

    With ``repeats`` the failure is said again while it lasts, after a pause that doubles each time.
    """

    def __init__(self, component: str, *, repeats: bool = False) -> None:
        self._component = component
        self._repeats = repeats
        self._pause = _FIRST_REPEAT
        self._told_at = 0.0  # by the monotonic clock
        self.since: float | None = None  # by the same, while it lasts

    def failed(self, error: BrokerError) -> None:
        """The broker did not do what it was asked."""
        now = time.monotonic()
        if self.since is None:
            self.since, self._pause = now, _FIRST_REPEAT
            self._tell("broker failed: %s", error)
        elif self._repeats and now - self._told_at >= self._pause:
            self._pause = min(self._pause * 2, _LONGEST_REPEAT)
            self._tell("broker still fails: %s", error, seconds=round(now - self.since, 1))

    def _tell(self, text: str, error: BrokerError, **more: object) -> None:
        self._told_at = time.monotonic()
        fields = {"component": self._component, "error": type(error).__name__, **more}
        # Errors of brokers name servers and settings, never what a task carries.
        log.warning(text, " ".join(str(error).split()), extra=fields)

    def over(self) -> None:
        """The broker did what it was asked."""
        if self.since is not None:
            log.info("broker answers again", extra={"component": self._component})
        self.since = None
