"""Which of the spooled tasks that may run here is next: tenants take turns."""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Candidate(NamedTuple):
    """A task in the spool. Those of one tenant go by level, then in the order of their calls."""

    level: int
    sequence: int
    id: str
    tenant: str


class LocalQueue:
    """Tasks that wait for their turn, and those that are due later."""

    def __init__(self) -> None:
        self._tenants: dict[str, list[Candidate]] = {}  # heaps, in the order of their turns
        self._later: list[tuple[float, Candidate]] = []  # a heap by when they are due
        self._count = 0

    def __len__(self) -> int:
        """How many wait for their turn; those that are due later do not."""
        return self._count

    def add(self, candidate: Candidate) -> None:
        """Put a task into the line of its tenant; a tenant that is new is last."""
        heapq.heappush(self._tenants.setdefault(candidate.tenant, []), candidate)
        self._count += 1

    def add_later(self, due: float, candidate: Candidate) -> None:
        """Keep a task until it is due."""
        heapq.heappush(self._later, (due, candidate))

    def next(self, now: float) -> Candidate | None:
        """Take the next task out, of the tenant whose turn it is; None if there is none now."""
        while self._later and self._later[0][0] <= now:
            self.add(heapq.heappop(self._later)[1])
        if not self._tenants:
            return None
        tenant = next(iter(self._tenants))
        line = self._tenants.pop(tenant)
        candidate = heapq.heappop(line)
        if line:
            self._tenants[tenant] = line
        self._count -= 1
        return candidate

    def next_due(self) -> float | None:
        """Return when something is due that is not yet."""
        return self._later[0][0] if self._later else None
