"""The next runs of schedules, without holding up a server.

To find the next 29th of February takes up to 50 ms, and a page may have 200 schedules that anybody
with the scope may have made. So what was found is remembered until the first of it has passed, and
a page that has taken its time shows of the rest only what the broker knows: the next run of each.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from fairlead.broker.schedules import ScheduleRecord
from fairlead.model.schedule import Timing, slots

RUNS = 5
_BUDGET = 0.1  # seconds for one page
_REMEMBERED = 2_000  # timings

#: By timing: what was asked for last, and the runs after that.
_known: OrderedDict[Timing, tuple[float, tuple[float, ...]]] = OrderedDict()


class NextRuns:
    """Finds the next runs for the schedules of one answer."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._spent, self._clock = 0.0, clock

    def of(self, timing: Timing, record: ScheduleRecord, now: float) -> list[float]:
        """The next five runs; of one for which there was no time, the first."""
        after = max(now, record.last_slot or 0.0)
        found = _known.get(timing)
        if found is not None and found[0] <= after and (not found[1] or found[1][0] > after):
            _known.move_to_end(timing)
            return list(found[1])
        if self._spent > _BUDGET:
            return [] if record.next_at is None else [record.next_at]
        began = self._clock()
        runs = tuple(slots(timing, after, math.inf, RUNS))
        self._spent += self._clock() - began
        _known[timing] = after, runs
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
        return list(runs)
