"""Whose turn it is inside a tenant: level 0 first, and of eight others one to each lower level.

Tasks of level 0 (critical) go before all others. Of eight dispatches below it, each level from 2 to
7 has one turn if it has work; the others, and turns that no level takes, go to the highest level
that has. In a queue with strict priorities no level has a turn of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Of eight dispatches below level 0, which level has a turn of its own. Where only the first four
#: are in use, normal (2) has the fourth and low (3) the eighth. The twin of lua/lib/fair.
TURNS = {1: 4, 2: 6, 3: 2, 5: 5, 6: 7, 7: 3}


def level_at(turn: int, waiting: Sequence[int], *, strict: bool = False) -> int:
    """The level that is served next; there must be something in one of them."""
    if waiting[0]:
        return 0
    own = None if strict else TURNS.get(turn % 8)
    if own is not None and own < len(waiting) and waiting[own]:
        return own
    return next(level for level, count in enumerate(waiting) if count)


def goes_before(
    level: int, place: int, waiting: Sequence[int], turn: int, most: int, *, strict: bool = False
) -> int:
    """How many tasks of a tenant go before the one at ``place`` (from 0) of a level.

    ``waiting`` is how many there are in each level that is in use, ``turn`` how many below level 0
    went before. Counts up to ``most``, and as if nothing came in meanwhile.
    """
    left = list(waiting)
    for count in range(most):
        served = level_at(turn, left, strict=strict)
        if served == level:
            if place == 0:
                return count
            place -= 1
        left[served] -= 1
        turn += served > 0
    return most
