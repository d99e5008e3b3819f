"""Long-running parts of a process: what they look like, and how they start, repeat and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from fairlead.model.errors import BrokerError

__all__ = ("Component", "every", "serving")

_FIRST_PAUSE = 0.1  # seconds after a failed step, doubled with each further failure
_LONGEST_PAUSE = 5.0  # seconds

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
        tasks = [group.create_task(part.run(), name=part.name) for part in components]
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
    failures = 0
    while True:
        pause = interval() if callable(interval) else interval
        if wake is not None:
            wake.clear()
        try:
            await step()
        except BrokerError as error:
            if failures == 0:  # one line for an outage, not one for each try
                log.warning("broker failed", extra=_fields(error))
            pause = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE, max(pause, _FIRST_PAUSE))
            failures = min(failures + 1, 16)
        else:
            if failures:
                log.info("broker answers again", extra=_fields())
            failures = 0
        if wake is None or failures:
            await asyncio.sleep(pause)
        elif not wake.is_set():
            try:
                async with asyncio.timeout(pause):
                    await wake.wait()
            except TimeoutError:
                pass  # the interval is over, which is the usual reason to go on


def _fields(error: BrokerError | None = None) -> dict[str, str]:
    task = asyncio.current_task()
    fields = {"component": task.get_name() if task is not None else ""}
    return fields if error is None else {**fields, "error": type(error).__name__}
