"""When a child has done enough: another takes its place, and with it ends what it leaked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from fairlead.model.errors import InvalidInput
from fairlead.runtime.process_memory import resident
from fairlead.runtime.randomness import generator

_SPREAD = 0.1  # of tasks and age, so that children that began together do not all end together


class Retirement:
    """Limits of a child; 0 is none. Tasks and age may be exceeded by up to a tenth, by dice."""

    def __init__(
        self,
        *,
        max_tasks: int = 0,
        max_rss: int = 0,
        max_age: float = 0.0,
        dice: Callable[[], float] = generator.random,
        measure: Callable[[], int] = lambda: resident(os.getpid()),
    ) -> None:
        share = 1.0 + _SPREAD * dice()
        self._max_tasks = int(max_tasks * share) if max_tasks else math.inf
        self._max_rss = max_rss or math.inf
        self._max_age = max_age * share if max_age else math.inf
        self._measure = measure
        self._born = 0.0  # by the loop's clock

    def begin(self, now: float) -> None:
        """It begins to work. Raises ``InvalidInput`` where it would have to be replaced at once."""
        self._born = now
        if self._max_rss < math.inf and (size := self._measure()) >= self._max_rss:
            raise InvalidInput(
                f"--max-rss is {_shown(self._max_rss)}, but the app takes {_shown(size)} before it "
                "has run a task; give it more"
            )

    def why(self, settled: int, now: float) -> str:
        """Why it should be replaced; empty as long as it should not."""
        if settled >= self._max_tasks:
            return f"{settled} tasks are done"
        if now - self._born >= self._max_age:
            return f"it is {now - self._born:.0f} seconds old"
        if self._max_rss < math.inf and (size := self._measure()) >= self._max_rss:
            return f"it takes {_shown(size)}"
        return ""


def _shown(size: float) -> str:
    return f"{size / 1024**2:.0f} MB"
