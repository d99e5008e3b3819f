"""How long the bytes of a call may take on their way: what is large is not silent."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.broker.verbs import Submission

__all__ = ("transfer_time",)

_FREE = 64 * 1024  # bytes that take no time of their own
_SPEED = 256 * 1024  # bytes in a second that any link and any broker is expected to take


def transfer_time(submissions: Iterable[Submission]) -> float:
    """Return the seconds to add to the usual silence of a broker."""
    size = sum(len(each.message.body) for each in submissions)
    return max(size - _FREE, 0) / _SPEED
