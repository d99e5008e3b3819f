"""The broker's time, and the numbers that are made of it.

Time follows a clock that people and machines may set. It never goes back, and it does not leap with
that clock either: see ``follow``. ``lua/lib/call`` is the twin of this file.
"""

from __future__ import annotations

SILENCE = 20.0  # seconds that a clock may leap ahead at once; workers call more often than that
SLEW = 0.1  # by which part time goes slower or faster until it agrees with the clock again

_MICROSECONDS = 1_000_000


def follow(now: float, ahead: float, clock: float, seen: float) -> tuple[float, float]:
    """Return what time it is when the clock says ``clock``, and how far that is ahead of it.

    ``now`` and ``ahead`` are those of the moment before, and ``seen`` is how long ago that was at
    most, by somebody who counts seconds and does not look at clocks. A clock that went back, or
    more than 20 seconds further than anybody saw pass, was set: time goes on by what was seen. From
    then on it goes a tenth slower or faster, until it agrees with the clock.
    """
    passed = clock - (now - ahead)
    if not 0.0 <= passed <= seen + SILENCE:
        ahead += seen - passed
        passed = 0.0
    less = SLEW * passed
    ahead = max(ahead - less, 0.0) if ahead > 0.0 else min(ahead + less, 0.0)
    return max(now, clock + ahead), ahead


def next_number(last: int, now: float) -> int:
    """Return a number above the last one that is a moment in microseconds as well.

    A server that was emptied, or a promoted one that lost its last writes, knows a last number that
    is too low. Its clock goes on all the same, so it gives no number out again.
    """
    return max(last + 1, int(now * _MICROSECONDS))
