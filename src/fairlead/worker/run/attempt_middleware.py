"""Calls the middleware of an app around an attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fairlead.worker.app_services import AroundRun
from fairlead.worker.run.context import Context


async def surrounded(
    around: Sequence[AroundRun], context: Context, handle: Callable[[], Awaitable[Any]]
) -> Any:
    """Return what ``handle`` returns, with middleware around it, the first of which is outermost.

    None if one of them swallows what ``handle`` raises.
    """
    async with AsyncExitStack() as stack:
        for each in around:
            await stack.enter_async_context(each(context))
        return await handle()
