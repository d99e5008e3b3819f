"""How long callers wait for the end of something, and what they get when it does not come."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairlead.broker.repeats import Limit, Rounds, repeated
from fairlead.model.errors import BrokerError, InvalidInput, ResultTimeout
from fairlead.model.options import Duration, seconds

__all__ = ("limit_of", "refuse_to_block", "until_answered")

T = TypeVar("T")


def limit_of(timeout: Duration | None) -> float | None:
    """A caller's timeout in seconds; None: no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and timeout < 0:
        return 0.0  # what is left of a longer wait may come out negative
    return seconds("timeout", timeout)


def refuse_to_block(limit: float | None, what: str) -> None:
    """Waiting on the thread of a running loop would keep it from ever ending; looking is fine."""
    if limit == 0.0:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(
        f"result() of {what} would block the event loop that runs in this "
        "thread; in async code use: await handle.aresult()"
    )


async def until_answered(id: str, limit: float | None, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, and again after whatever passes by itself: only for what may be repeated.

    The time is the caller's: an outage, a server that loads its data or has no replica ends it no
    sooner than a task that takes long.
    """
    lost: BrokerError | None = None

    def failed(error: BrokerError) -> None:
        nonlocal lost
        lost = error

    async def round(_: Rounds) -> T:
        return await ask()

    try:
        async with asyncio.timeout(limit):
            return await repeated(round, Limit(math.inf), failed=failed)
    except TimeoutError:
        raise ResultTimeout(id, limit or 0.0) from lost
