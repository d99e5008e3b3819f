"""A clock that tests set."""

from __future__ import annotations

from fairlead.broker.clock import Clock
from tests.support.store import NOW

__all__ = ("SetClock",)


class SetClock(Clock):
    """Stands for the clocks of a broker and of its callers."""

    def __init__(self, wall: float = NOW) -> None:
        self.now = wall
        self.seconds = 1000.0

    def wall(self) -> float:
        return self.now

    def steady(self) -> float:
        return self.seconds

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.seconds += seconds

    def set_by(self, seconds: float) -> None:
        """Set the clock, forward or back."""
        self.now += seconds
