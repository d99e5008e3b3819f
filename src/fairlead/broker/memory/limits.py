"""Room under limits: for a tenant, a queue, or by a name that several queues share."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from fairlead.model.limits import PRECISION, UNLIMITED, Limit, counted, room_at

if TYPE_CHECKING:
    from fairlead.broker.memory.fair import Tenant

__all__ = ("Gate", "Limiter")


class Gate:
    """A limit, and what its rate needs to remember of the last dispatches."""

    __slots__ = ("_gone", "_since", "limit")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._since = 0.0
        self._gone = 0

    def closed_until(self, used: int, now: float) -> float | None:
        """None if there is room; else when there will be, infinity meaning: when one ends."""
        limit = self.limit
        if limit.concurrency is not None and used >= limit.concurrency:
            return math.inf
        if limit.rate is not None:
            at = room_at(self._since, self._gone, limit.rate, limit.burst)
            if at > now + PRECISION:
                return at
        return None

    def pass_one(self, now: float) -> None:
        """Count one dispatch against the rate."""
        if self.limit.rate is not None:
            self._since, self._gone = counted(self._since, self._gone, now, self.limit.rate)


class Limiter(Gate):
    """A named limit, with the tenants whose next task waits for room in it.

    A tenant that is woken either takes the room or passes the wake-up on to the next
    (``Tenant.woken_by``), so that room and a waiter never stay beside each other.
    """

    __slots__ = ("_waiters", "name", "used")

    def __init__(self, name: str) -> None:
        super().__init__(UNLIMITED)
        self.name = name
        self.used = 0
        self._waiters: list[tuple[float, str, str, Tenant]] = []

    def add_waiter(self, tenant: Tenant) -> None:
        """Let a tenant wait; tenants with the lowest tag are woken first."""
        heappush(self._waiters, (tenant.tag, tenant.queue.name, tenant.name, tenant))

    def next_waiter(self) -> Tenant | None:
        """Take out the first tenant that still waits here."""
        while self._waiters:
            tenant = heappop(self._waiters)[3]
            if tenant.parked_on is self:
                return tenant
        return None

    def room(self, now: float) -> float | None:
        """As ``closed_until``, by its own count."""
        return self.closed_until(self.used, now)

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost by forgetting this limiter."""
        return self.used == 0 and not self._waiters and self.limit is UNLIMITED
