"""How many tasks may be held in hand: as many as the handlers finish in ten milliseconds."""

from __future__ import annotations

from fairlead.broker.requests import MAX_EXCHANGE

_AHEAD = 0.01  # seconds: no more is held than handlers finish in that time
_LONG = 0.1  # seconds
_MOST = 3 * MAX_EXCHANGE  # whatever the rate: there are rows for that many beyond the slots


class Prefetch:
    """Counts attempts that end, and forgets what is longer ago than a few of these times."""

    def __init__(self) -> None:
        self.ended = 0  # since the last look
        self.rate = 0.0  # a second
        self.since = 0.0  # when that look was, by the loop's clock

    def ahead(self, now: float) -> int:
        """How many tasks the handlers finish in ten milliseconds."""
        elapsed = now - self.since
        if elapsed >= _AHEAD:
            rate = self.ended / elapsed
            # A look after a long time says it all: what was before is over.
            self.rate = rate if elapsed > _LONG else (self.rate + rate) / 2
            self.since, self.ended = now, 0
        return min(int(self.rate * _AHEAD), _MOST)
