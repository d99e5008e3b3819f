"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from fairlead.broker import Clock
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidOption
from fairlead.model.options import seconds


class ManualClock(Clock):
    """The time of a broker in memory: due times, retries, schedules, rates and retention follow.

    Time limits of handlers, and waits for results, are measured in real seconds all the same.
    """

    def __init__(self, start: float | datetime | None = None) -> None:
        """Begin at a moment, in unix seconds or with a time zone; without one, now."""
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise InvalidOption("start", str(start), "a datetime with a time zone")
            start = start.timestamp()
        self._now = time.time() if start is None else start

    @property
    def now(self) -> datetime:
        """What time it is for the broker, in UTC."""
        return datetime.fromtimestamp(self._now, UTC)

    def advance(self, duration: Duration) -> None:
        """Let time pass at once: seconds, "90s", "5m", "1h", "7d" or a timedelta.

        Nothing runs by that; drain afterwards, or call ``elapse`` of the kit instead.
        """
        self._now += seconds("duration", duration)

    def wall(self) -> float:
        """Return unix seconds."""
        return self._now

    def steady(self) -> float:
        """Return the same: what passes here is never a clock that was set."""
        return self._now
