"""Room under limits: for a tenant, a queue, or by a name that several queues share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fairlead.broker.memory.agenda import Agenda
from fairlead.model.limits import PRECISION, UNLIMITED, Limit, counted, room_at

if TYPE_CHECKING:
    from fairlead.broker.memory.fair import Queue, Tenant

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
    """A named limit, with the tenants whose next task waits for room in it, queue by queue.

    When there is room, one tenant of *each* queue is woken: tags of different queues cannot be
    compared, and a queue that is paused or not served must not keep the room from the others. A
    woken tenant takes the room or passes the wake-up on inside its queue (``Tenant.woken_by``), so
    that room and a waiter never stay beside each other.
    """

    __slots__ = ("_waiting", "name", "used")

    def __init__(self, name: str) -> None:
        super().__init__(UNLIMITED)
        self.name = name
        self.used = 0
        self._waiting: dict[Queue, Agenda[str]] = {}  # tenants by tag

    def add_waiter(self, tenant: Tenant) -> None:
        """Let a tenant wait; of a queue's tenants the one with the lowest tag is woken first."""
        waiting = self._waiting.get(tenant.queue)
        if waiting is None:
            waiting = self._waiting[tenant.queue] = Agenda()
        waiting.set(tenant.name, tenant.tag)

    def remove_waiter(self, tenant: Tenant) -> None:
        """A tenant waits no longer."""
        waiting = self._waiting.get(tenant.queue)
        if waiting is not None:
            waiting.discard(tenant.name)
            if not waiting:
                del self._waiting[tenant.queue]

    def next_waiters(self, queue: Queue | None) -> list[Tenant]:
        """The first tenant of one queue, or of each; they still wait here."""
        queues = self._waiting if queue is None else (queue,) if queue in self._waiting else ()
        firsts = ((each, self._waiting[each].first()) for each in queues)
        return [each.tenants[first[1]] for each, first in firsts if first is not None]

    def room(self, now: float) -> float | None:
        """As ``closed_until``, by its own count."""
        return self.closed_until(self.used, now)

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost by forgetting this limiter."""
        return self.used == 0 and not self._waiting and self.limit is UNLIMITED
