"""Room under limits: for a tenant, a queue, or by a name that several queues share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.standing import Room, room_of
from fairlead.model.limits import (
    NO_BREAKER,
    PRECISION,
    UNLIMITED,
    Breaker,
    Circuit,
    Limit,
    counted,
    room_at,
)

if TYPE_CHECKING:
    from fairlead.broker.memory.fair import Queue, Tenant

_CLOSED = Circuit()


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

    def return_one(self) -> None:
        """Take back the count of a dispatch that came to nothing."""
        if self.limit.rate is not None and self._gone > 0:
            self._gone -= 1

    def shown(self, kind: Literal["queue", "tenant"], name: str, used: int, now: float) -> Room:
        """How it stands, for people."""
        return room_of(
            kind, name, self.limit, used=used, since=self._since, gone=self._gone, now=now
        )


class Limiter(Gate):
    """A named limit, with the tenants whose next task waits for room in it, queue by queue.

    When there is room, one tenant of *each* queue is woken: tags of different queues cannot be
    compared, and a queue that is paused or not served must not keep the room from the others. A
    woken tenant takes the room or passes the wake-up on inside its queue (``Tenant.woken_by``), so
    that room and a waiter never stay beside each other.
    """

    __slots__ = ("_waiting", "breaker", "circuit", "name", "used")

    def __init__(self, name: str) -> None:
        super().__init__(UNLIMITED)
        self.name = name
        self.used = 0
        self.breaker = NO_BREAKER
        self.circuit = _CLOSED
        self._waiting: dict[Queue, TimeIndex[str]] = {}  # tenants by tag

    def add_waiter(self, tenant: Tenant) -> None:
        """Let a tenant wait; of a queue's tenants the one with the lowest tag is woken first."""
        waiting = self._waiting.get(tenant.queue)
        if waiting is None:
            waiting = self._waiting[tenant.queue] = TimeIndex()
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

    @property
    def waiting(self) -> int:
        """How many tenants wait for room."""
        return sum(map(len, self._waiting.values()))

    def room(self, now: float) -> float | None:
        """As ``closed_until``, by its own count, and as its breaker allows."""
        until = self.closed_until(self.used, now)
        opens = self.circuit.closed_until(self.breaker, now)
        if until is None or opens is None:
            return until if opens is None else opens
        return max(until, opens)

    def take(self, now: float) -> None:
        """Let one through that found room."""
        self.used += 1
        self.pass_one(now)
        self.circuit = self.circuit.lent()

    def give_back(self, well: bool | None, token: int, *, now: float, last_token: int) -> None:
        """One that went under this token has ended, well or not, or neither."""
        self.used -= 1
        if self.breaker is not NO_BREAKER:
            self.circuit = self.circuit.after(
                well, token, self.breaker, now=now, last_token=last_token
            )

    def set_breaker(self, breaker: Breaker, *, now: float, last_token: int) -> None:
        """Change the settings of the breaker; they hold for its present state."""
        # The very object: that is how an unused limiter is known.
        self.breaker = NO_BREAKER if breaker == NO_BREAKER else breaker
        self.circuit = self.circuit.under(breaker, now=now, last_token=last_token)

    def standing(self, now: float, *, needed: bool) -> Room:
        """How it stands, for people."""
        return room_of(
            "limiter",
            self.name,
            self.limit,
            used=self.used,
            since=self._since,
            gone=self._gone,
            now=now,
            breaker=self.breaker,
            circuit=self.circuit,
            waiting=self.waiting,
            needed=needed,
        )

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost by forgetting this limiter."""
        unlimited = self.limit is UNLIMITED and self.breaker is NO_BREAKER
        return self.used == 0 and not self._waiting and unlimited
