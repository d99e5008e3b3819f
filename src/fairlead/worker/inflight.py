"""What is running here: the only object that the components of a worker change together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal, Protocol

from fairlead.broker.verbs import LeaseRef
from fairlead.model.message import Leased

__all__ = ("Inflight", "Running", "Stop")

#: Why an attempt has to stop: out of time, cancelled by somebody, handed back because the worker
#: stops, or no longer ours.
Stop = Literal["timeout", "cancel", "release", "lost"]


class Running(Protocol):
    """An attempt that is under way."""

    @property
    def lease(self) -> Leased: ...

    def stop(self, why: Stop) -> None:
        """Ask it to stop. Whatever it does, it counts as finished soon after."""
        ...

    def withdraw(self) -> None:
        """Hand it back if its handler has not begun."""
        ...


class Inflight:
    """Attempts by task id and token: a task may come back while its last attempt still ends."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._running: dict[tuple[str, int], Running] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self._running.values()))

    def add(self, attempt: Running) -> None:
        """It takes a slot from now on."""
        self._running[attempt.lease.message.id, attempt.lease.token] = attempt
        self._some.set()

    def remove(self, attempt: Running) -> None:
        """Its slot is free again."""
        self._running.pop((attempt.lease.message.id, attempt.lease.token), None)
        if not self._running:
            self._some.clear()

    async def some(self) -> None:
        """Return as soon as there is an attempt."""
        await self._some.wait()

    def stop(self, id: str, token: int, why: Stop) -> bool:
        """Stop one attempt; False if it is not running here any more."""
        attempt = self._running.get((id, token))
        if attempt is None:
            return False
        attempt.stop(why)
        return True

    def stop_all(self, why: Stop) -> None:
        """Stop every attempt."""
        for attempt in self:
            attempt.stop(why)

    def withdraw_all(self) -> None:
        """Hand back every attempt that has not begun."""
        for attempt in self:
            attempt.withdraw()

    def held(self) -> list[LeaseRef]:
        """The leases of all attempts under way."""
        return [LeaseRef(id, self._incarnation, token) for id, token in self._running]
