"""What the demo computes from what it saw: waits, shares, and the same run first in, first out.

Nothing here reads a clock: moments are arguments, in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least ``percent`` of them do not exceed; 0 if none."""
    if not values:
        return 0.0
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


class Journal:
    """What happened in a run: arrivals and starts, in the order in which they happened.

    A tenant *waits* from the arrival of a task of its own until the start of its last one. A start
    is *contested* if at least two tenants were waiting; only those say anything about fairness.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = dict(weights)
        self.done: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {tenant: [] for tenant in weights}
        self._arrived: dict[str, list[int]] = {tenant: [] for tenant in weights}  # places below
        self._arrivals: list[float] = []
        self._starts: list[float] = []
        self._waiting: Counter[str] = Counter()
        self._contested: Counter[str] = Counter()  # starts while the tenant and another waited
        self._served: Counter[str] = Counter()  # and those of them that were its own
        self._due = dict.fromkeys(weights, 0.0)  # and how many its weight would give it
        self._against: Counter[tuple[str, str]] = Counter()  # starts of one while both waited

    # -- what happens ---------------------------------------------------------------------------

    def arrive(self, tenant: str, at: float) -> int:
        """A task of the tenant is enqueued; its number among the tenant's tasks."""
        places = self._arrived[tenant]
        places.append(len(self._arrivals))
        self._arrivals.append(at)
        self._waiting[tenant] += 1
        return len(places) - 1

    def start(self, tenant: str, number: int, at: float) -> None:
        """The tenant's task of that number begins to run."""
        self.waits[tenant].append(at - self._arrivals[self._arrived[tenant][number]])
        self._starts.append(at)
        self._contest(tenant)
        self._waiting[tenant] -= 1

    def finish(self, tenant: str) -> None:
        """A task of the tenant is done."""
        self.done[tenant] += 1

    def _contest(self, tenant: str) -> None:
        rivals = [name for name, count in self._waiting.items() if count > 0]
        if len(rivals) < 2:
            return
        total = sum(self.weights[name] for name in rivals)
        self._served[tenant] += 1
        for name in rivals:
            self._contested[name] += 1
            self._due[name] += self.weights[name] / total
            if name != tenant:
                self._against[tenant, name] += 1

    # -- what it comes to -----------------------------------------------------------------------

    @property
    def started(self) -> int:
        """How many tasks have begun to run."""
        return len(self._starts)

    def arrived(self, tenant: str) -> int:
        """How many tasks of the tenant were enqueued."""
        return len(self._arrived[tenant])

    def waiting(self, tenant: str) -> int:
        """How many tasks of the tenant are enqueued and not begun."""
        return self._waiting[tenant]

    def share(self, tenant: str) -> float:
        """The tenant's part of the contested starts while it was waiting, from 0 to 1."""
        return self._served[tenant] / (self._contested[tenant] or 1)

    def fair_share(self, tenant: str) -> float:
        """What that part should have been: its weight among the weights of all that waited."""
        return self._due[tenant] / (self._contested[tenant] or 1)

    def ratio(self, tenant: str, other: str) -> float | None:
        """How many starts the tenant had for each one of the other, while both were waiting.

        None if the other had none, so that nothing can be said.
        """
        theirs = self._against[other, tenant]
        return self._against[tenant, other] / theirs if theirs else None

    def fifo_waits(self, tenants: Sequence[str]) -> list[float]:
        """How long tasks of these tenants would have waited, first in, first out.

        The n-th task to arrive is given the n-th start of the same run. The worker was never idle
        while work waited, so it would have started tasks at the same moments in any order, as
        long as they take equally long.
        """
        return [
            self._starts[place] - self._arrivals[place]
            for tenant in tenants
            for place in self._arrived[tenant]
            if place < len(self._starts)
        ]
