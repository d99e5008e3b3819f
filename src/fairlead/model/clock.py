"""The broker's time, and the numbers that are made of it."""

from __future__ import annotations

__all__ = ("next_number",)

_MICROSECONDS = 1_000_000


def next_number(last: int, now: float) -> int:
    """Return a number above the last one that is a moment in microseconds as well.

    A server that was emptied, or a promoted one that lost its last writes, knows a last number that
    is too low. Its clock goes on all the same, so it gives no number out again.
    """
    return max(last + 1, int(now * _MICROSECONDS))
