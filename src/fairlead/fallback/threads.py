"""Calls that wait for the disk, beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fairlead.runtime.native_threads import are_threads_patched

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread; here, where gevent has replaced the threads."""
    return function() if are_threads_patched() else await asyncio.to_thread(function)
