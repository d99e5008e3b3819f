"""What handlers asked to be done when they have ended: each in turn, whatever the others do."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.worker.run.context import Context

log = logging.getLogger("fairlead.worker")


async def clean_up(context: Context) -> None:
    """Call them on the loop, the last one first. Only Ctrl-C, and the end of the loop, get out."""
    while context._cleanups:
        callback, args = context._cleanups.pop()
        try:
            found = callback(*args)
            if inspect.isawaitable(found):
                await found
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - logged, and the others have their turn
            _tell(context, callback, error)


def clean_up_in_thread(context: Context) -> None:
    """Call them in the thread of the handler; what has to be awaited is, on the worker's loop."""
    while context._cleanups:
        callback, args = context._cleanups.pop()
        try:
            found = callback(*args)
            if inspect.isawaitable(found):
                asyncio.run_coroutine_threadsafe(_awaited(found), context._loop).result()
        except BaseException as error:  # noqa: BLE001 - logged, and the others have their turn
            _tell(context, callback, error)


async def _awaited(found: Awaitable[Any]) -> None:
    await found


def _tell(context: Context, callback: Callable[..., Any], error: BaseException) -> None:
    """Where and what kind of error; its text may repeat an argument."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    kind = type(error).__name__
    fields = {**context.fields(), "callback": name, "error": kind, "where": where}
    log.error(
        "cleanup failed: %s %s, %s at %s", context.task, context.id, kind, where, extra=fields
    )
