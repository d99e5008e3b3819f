"""Waiting for work: to be woken, and then to fetch it, or to be handed a task.

``Takes`` is for brokers that only wake: a wait that the next exchange of its incarnation ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, cast

from fairlead.broker.checks import check_lease
from fairlead.broker.requests import Call, Taken
from fairlead.model.errors import InvalidOption

#: Called when there may be something to fetch.
Woken = Callable[[], None]


class WaitVerbs(Protocol):
    """The part of the contract that workers wait with."""

    async def wait(self, queues: Sequence[str], timeout: float, *, mail_for: str = "") -> bool:
        """Return when there may be something to fetch: at once, at the next item, when due.

        Never polls. False after ``timeout`` seconds without any. A wake-up goes to one waiter at a
        time; whoever fetches and leaves work behind wakes the next. ``mail_for`` is an incarnation:
        return as well when there is mail for it that was not collected.
        """
        ...

    async def take(
        self,
        call: Call,
        queues: Sequence[str],
        timeout: float,
        woken: Woken,
        *,
        lease: float = 30.0,
        mail_for: str = "",
    ) -> Taken:
        """Wait as ``wait`` does, ready to be lent a task meanwhile: it comes with the answer.

        ``woken`` may be called when there may be something to fetch; until the caller fetches it
        may still be lent a task, so the answer comes when it has. Otherwise the answer says it.

        A broker may hand the next task over that is enqueued, in the same step; or only wake the
        caller, as ``wait`` does. It hands over one task at most, and only what a fetch of one from
        these queues would lend and start at that moment, if nothing else waited in any of them. It
        does not if a limit, a pause or something due could have a say.

        What is handed over belongs to this number, as if an exchange had lent it: a ``beat`` whose
        ``answered`` has reached it takes back what is not named, and ``give_back`` all of it. From
        the next exchange of the incarnation on nothing is handed over under it, and the call
        returns soon after that exchange is answered. What nobody has collected goes back, charged
        to nobody, with ``sweep`` at the latest.
        """
        ...


class Takes:
    """The waits of a broker that hands nothing over, by incarnation."""

    def __init__(self) -> None:
        self._waits: dict[str, asyncio.Task[Any]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    async def take(self, call: Call, lease: float, wait: Coroutine[Any, Any, bool]) -> Taken:
        """Wait until ``wait`` is over or ``end`` is called."""
        try:
            check_lease("lease", lease)
        except InvalidOption:
            wait.close()
            raise
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._waits[call.incarnation] = task
        try:
            return Taken(found=await wait)
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel() > 0:
                raise
            return Taken()
        finally:
            self._ended.discard(task)
            if self._waits.get(call.incarnation) is task:
                del self._waits[call.incarnation]

    def end(self, call: Call) -> None:
        """Have the wait of an incarnation end: it makes another call."""
        task = self._waits.pop(call.incarnation, None)
        if task is not None:
            self._ended.add(task)
            task.cancel()
