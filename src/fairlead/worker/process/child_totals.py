"""What is left of children that have ended: the figures that others go on from."""

from __future__ import annotations

from collections import Counter

import msgspec

from fairlead.telemetry.counters import Counted, Totals
from fairlead.worker.process.child import Child


class ChildTotals:
    """The sum of what ended children did."""

    def __init__(self) -> None:
        self.starts = 0  # of children, living ones among them
        self.counters: Counter[str] = Counter()
        self.counted = Counted()
        self._totals = Totals()

    def add(self, child: Child) -> None:
        """Take over the figures of a child that has ended."""
        self.counters.update(child.counters)
        ended = msgspec.structs.replace(child.counted, spools=())  # its spool is adopted
        self.counted = self._totals.of([self.counted, ended])
