"""Whose turn it is inside a tenant: critical first, and of eight others one each to the lower two.

Critical tasks go before all others. Of eight dispatches below critical one turn goes to normal and
one to low if they have work; the others, and turns nobody takes, go to the highest level that has.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.model.message import LEVELS

__all__ = ("TURNS", "goes_before", "level_at")

#: Of eight dispatches below critical, which level gets a turn of its own.
TURNS = {3: LEVELS.index("normal"), 7: LEVELS.index("low")}


def level_at(turn: int, waiting: Sequence[int]) -> int:
    """The level that is served next; there must be something in one of them."""
    if waiting[0]:
        return 0
    own = TURNS.get(turn % 8)
    if own is not None and waiting[own]:
        return own
    return next(level for level, count in enumerate(waiting) if count)


def goes_before(level: int, place: int, waiting: Sequence[int], turn: int, most: int) -> int:
    """How many tasks of a tenant go before the one at ``place`` (from 0) of a level.

    ``waiting`` is how many there are in each level, ``turn`` how many below critical went before.
    Counts up to ``most``, and as if nothing came in meanwhile.
    """
    left = list(waiting)
    for count in range(most):
        served = level_at(turn, left)
        if served == level:
            if place == 0:
                return count
            place -= 1
        left[served] -= 1
        turn += served > 0
    return most
