"""Runs what belongs to one connection until the first part of it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

__all__ = ("first_of",)


async def first_of(works: Mapping[str, Coroutine[Any, Any, object]]) -> str:
    """Run all of them until one ends, and cancel the others. Return its name, or raise its error.

    Of several that end at once the first one counts.
    """
    tasks = {name: asyncio.ensure_future(work) for name, work in works.items()}
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        name = next(name for name, task in tasks.items() if task.done())
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        for task in tasks.values():  # of those that failed too, nobody else will ask
            if not task.cancelled():
                task.exception()
    tasks[name].result()
    return name
