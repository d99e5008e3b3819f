"""Finished tasks of one queue, kept by age, count and bytes, whichever comes first.

Nobody loses anything because of another: a tenant that holds much of the room has an order of its
own, and beyond the caps of the queue the one that holds most loses its oldest. Only where nobody
holds more than a small part the oldest of all goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.broker.memory.records import Task
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.model.lifecycle import State

if TYPE_CHECKING:
    from fairlead.broker.memory.fair import Tenant

_OWN = 64  # the part of the room (a 64th) from which on a tenant has an order of its own
_LEAST = 32  # the part (a 32nd) beyond which a tenant gives before others


class Shelf:
    """The next to be forgotten is the one whose time is over first, of whoever has to give."""

    def __init__(
        self, *, states: Sequence[State], keep: float, count: float = math.inf, size: int
    ) -> None:
        self.keep = keep  # seconds
        self.max_count = count
        self.max_bytes = size
        self.bytes = 0
        self._states = states
        self._count = 0
        self._held: dict[str, int] = {}  # bytes by tenant
        self._common: TimeIndex[str] = TimeIndex()
        self._whose: dict[str, str] = {}  # of those
        self._own: dict[str, TimeIndex[str]] = {}  # of tenants that hold much
        self._large: TimeIndex[Tenant] = (
            TimeIndex()
        )  # the same by the share they hold, largest first
        self._heads: TimeIndex[str] = TimeIndex()  # and by when the first of that order is over
        self._moved: dict[str, Tenant] = {}  # whose places in these two have to be worked out anew

    def __len__(self) -> int:
        return self._count

    def __contains__(self, task: Task) -> bool:
        own = self._own.get(task.tenant.name)
        return (task.id in self._common) != (own is not None and task.id in own)

    def held(self, tenant: Tenant) -> int:
        """Bytes that count for a tenant."""
        return self._held.get(tenant.name, 0)

    def add(self, task: Task, now: float, keep: float | None) -> float:
        """Keep a finished task for the shelf's time, or for its own; until when that is."""
        ends = task.expires_at = now + (self.keep if keep is None else keep)
        size = task.size = task.counted_bytes()
        tenant, name = task.tenant, task.tenant.name
        held = self._held[name] = self._held.get(name, 0) + size
        self.bytes += size
        self._count += 1
        own = self._own.get(name)
        if self._is_large(tenant, held):
            if own is None:
                own = self._own[name] = TimeIndex()
            own.set(task.id, ends)
        else:
            self._common.set(task.id, ends)
            self._whose[task.id] = name
        if own is not None:
            self._moved[name] = tenant
        return ends

    def remove(self, task: Task) -> None:
        """Take a task off, because it is put to work again or forgotten."""
        tenant, name = task.tenant, task.tenant.name
        held = self._held[name] - task.size
        if held:
            self._held[name] = held
        else:
            del self._held[name]
        self.bytes -= task.size
        self._count -= 1
        task.size = 0
        task.expires_at = None
        if self._whose.pop(task.id, None) is not None:
            self._common.discard(task.id)
        own = self._own.get(name)
        if own is not None:
            own.discard(task.id)
            self._moved[name] = tenant
            if not own:
                self._rank_moved()

    def rank(self, tenant: Tenant) -> None:
        """What a tenant holds has changed: it stands elsewhere among those that give."""
        if tenant.name in self._own:
            self._moved[tenant.name] = tenant

    def _rank_moved(self) -> None:
        """Work out places when they are asked for: seldom, where one tenant holds all there is."""
        for name, tenant in self._moved.items():
            first = self._own[name].first()
            if first is not None:
                self._large.set(tenant, -self._share(tenant))
                self._heads.set(name, first[0])
            else:
                del self._own[name]
                self._large.discard(tenant)
                self._heads.discard(name)
        self._moved.clear()

    def first_over(self) -> float | None:
        """When the first that is kept is over."""
        self._rank_moved()
        firsts = [order.first() for order in (self._common, self._heads)]
        return min((first[0] for first in firsts if first is not None), default=None)

    def pop(self) -> str | None:
        """The id of the next task to forget, whatever its time; ``remove`` must follow."""
        return self._oldest().pop()

    def pop_overdue(self, now: float) -> str | None:
        """The id of the next task to forget, if there is one too many; ``remove`` must follow."""
        over = self._count > self.max_count or self.bytes > self.max_bytes
        order = self._of_giver() if over and self._own else None
        if order is None:
            order = self._oldest()
        return order.pop() if over else order.pop_due(now)

    def _of_giver(self) -> TimeIndex[str] | None:
        first = self._large.first()
        if first is None or len(self._own) > 1:  # among one there is no order
            self._rank_moved()
            first = self._large.first()
        if first is None or self._share(first[1]) <= 1 / _LEAST:
            return None
        name = first[1].name
        if self._whose:
            head = self._common.first()
            if head is not None and self._whose[head[1]] == name:
                return self._common  # what it had before it held much is older
        return self._own[name]

    def _oldest(self) -> TimeIndex[str]:
        if not self._own:
            return self._common
        self._rank_moved()
        head, own = self._common.first(), self._heads.first()
        if own is None or (head is not None and head[0] <= own[0]):
            return self._common
        return self._own[own[1]]

    def _tasks(self, tenant: Tenant) -> int:
        return sum(map(tenant.counts.__getitem__, self._states))

    def _is_large(self, tenant: Tenant, held: int) -> bool:
        """Whether what it holds is kept in an order of its own from now on."""
        return held >= self.max_bytes / _OWN or self._tasks(tenant) >= self.max_count / _OWN

    def _share(self, tenant: Tenant) -> float:
        """What part of the room it holds, by tasks or by bytes, whichever is more."""
        by_count = self._tasks(tenant) / (self.max_count or 1)
        by_bytes = self._held.get(tenant.name, 0) / (self.max_bytes or 1)
        return by_count if by_count > by_bytes else by_bytes
