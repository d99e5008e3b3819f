"""Chosen ids whose tasks were forgotten before their time: known for the rest of that time."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from fairlead.broker.memory.records import Task
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.requests import MAX_TOMBS
from fairlead.model.lifecycle import State
from fairlead.model.message import Message


class _Tomb(NamedTuple):
    till: float
    state: State
    message: Message  # without its body
    digest: bytes  # of the body


class Tombs:
    """By id: how the task ended, and what it would have done, without its body."""

    def __init__(self) -> None:
        self.by_id: dict[str, _Tomb] = {}
        self._orders: dict[str, TimeIndex[str]] = {}  # by tenant
        self._ends: TimeIndex[str] = TimeIndex()  # tenants

    def __len__(self) -> int:
        return len(self.by_id)

    def put(self, task: Task, till: float) -> None:
        """Remember the id of a task that is forgotten now, which somebody chose."""
        tenant = task.message.tenant
        before = self.by_id.get(task.id)
        if before is not None and before.message.tenant != tenant:  # its time is over
            self.remove(task.id)
        if not task.digest:
            task.drop_body()
        order = self._orders.setdefault(tenant, TimeIndex())
        order.set(task.id, till)
        self.by_id[task.id] = _Tomb(till, task.state, task.message, task.digest)
        if len(order) > MAX_TOMBS:
            oldest = order.pop()
            if oldest is not None:
                del self.by_id[oldest]
        self._rank(tenant, order)

    def find(self, message: Message, now: float) -> tuple[State, bool] | None:
        """How the task of this id ended, and whether the message asks for the same."""
        tomb = self.by_id.get(message.id)
        if tomb is None or tomb.till <= now:
            return None
        same = blake2b(message.body, digest_size=16).digest() == tomb.digest
        return tomb.state, same and tomb.message.same_content(message.without_body())

    def tenant(self, id: str, now: float) -> str | None:
        """Whose id it is, if it is still known."""
        tomb = self.by_id.get(id)
        return tomb.message.tenant if tomb is not None and tomb.till > now else None

    def remove(self, id: str) -> None:
        """Let the id be used again."""
        tenant = self.by_id.pop(id).message.tenant
        order = self._orders[tenant]
        order.discard(id)
        self._rank(tenant, order)

    def expire(self, most: int, now: float) -> int:
        """Forget up to so many whose time is over; how many."""
        done = 0
        while done < most and (first := self._ends.first()) is not None and first[0] <= now:
            id = self._orders[first[1]].first()
            if id is not None:
                self.remove(id[1])
                done += 1
        return done

    def _rank(self, tenant: str, order: TimeIndex[str]) -> None:
        first = order.first()
        if first is None:
            del self._orders[tenant]
            self._ends.discard(tenant)
        else:
            self._ends.set(tenant, first[0])
