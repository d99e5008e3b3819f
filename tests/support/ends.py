"""Every way in which a task can end, from a queued one named t1 with a deadline of 10 seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, completed, dead, failed

__all__ = ("ENDS", "End")

End = Callable[[Client], Awaitable[None]]


async def complete(c: Client) -> None:
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease))


async def forget_at_once(c: Client) -> None:
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease, keep=0))


async def die(c: Client) -> None:
    (lease,) = await c.fetch(1)
    await c.settle(dead(lease))


async def cancel(c: Client) -> None:
    await c.cancel("t1")


async def cancel_while_running(c: Client) -> None:
    (lease,) = await c.fetch(1)
    await c.cancel("t1")
    await c.settle(failed(lease))


async def expire(c: Client) -> None:
    await c.broker.promote(now=NOW + 11)


async def expire_at_fetch(c: Client) -> None:
    assert await c.fetch(1, now=NOW + 11) == []


async def purge(c: Client) -> None:
    await c.purge()


async def crash_three_times(c: Client) -> None:
    for _ in range(3):
        await c.fetch(1)
        await c.broker.give_back("w1", now=NOW)


ENDS: tuple[tuple[End, State], ...] = (
    (complete, State.COMPLETED),
    (forget_at_once, State.COMPLETED),
    (die, State.DEAD),
    (cancel, State.CANCELLED),
    (cancel_while_running, State.CANCELLED),
    (expire, State.DEAD),
    (expire_at_fetch, State.DEAD),
    (purge, State.CANCELLED),
    (crash_three_times, State.DEAD),
)
