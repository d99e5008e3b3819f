"""What handlers raise to say how their attempt ended: ``Retry``, ``Snooze``, ``Reject``."""

from __future__ import annotations

from typing import Any

from fairlead.model.durations import Duration, duration_rule, in_seconds
from fairlead.model.errors import InvalidOption
from fairlead.model.exception_copies import copied


class Signal(Exception):
    """Raised by a handler to say how its attempt ended; not an error."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copied(self)


class Retry(Signal):
    """This attempt failed: try again after ``delay`` (default: the task's backoff)."""

    def __init__(self, delay: Duration | None = None, message: str = "") -> None:
        """Ask for another attempt.

        Args:
            delay: How long to wait, a duration. Default: as the task's backoff says.
            message: What is kept as the error of the attempt. Default: that a retry was asked for.
        """
        super().__init__(message or "the handler asked for a retry")
        self.delay = None if delay is None else _delay(delay)
        """Seconds until the next attempt; None: as the task's backoff says."""


class Snooze(Signal):
    """Not now: run again after ``delay``, without using up an attempt."""

    def __init__(self, delay: Duration) -> None:
        self.delay = _delay(delay)
        """Seconds until it runs again."""
        super().__init__(f"the handler asked to run again in {self.delay:g} s")


class Reject(Signal):
    """Never: the task is dead at once, with the reason ``rejected``."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


def _delay(value: object) -> float:
    """The delay in seconds, refused where the handler gives it rather than where it is stored."""
    number = in_seconds(value)
    if number is None:
        raise InvalidOption("delay", value, duration_rule())
    return number
