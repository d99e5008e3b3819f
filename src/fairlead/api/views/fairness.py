"""What tenants got of their queues, against what their weights say. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.broker.stats import TenantStats
from fairlead.model.fairness_stats import jain


class Shares(msgspec.Struct, frozen=True):
    """Of the attempts that began in a queue: the part that a tenant got, and its fair one."""

    got: float | None = None  # None: none began, or it is not known what others got
    fair: float | None = None  # None: it had no work
    total: int = 0  # attempts that began


def shares_of(tenants: Mapping[str, TenantStats]) -> dict[str, Shares]:
    """What each got in one queue, of all that began there in this hour and the last one.

    The fair part is that of its weight among those that had work: whoever started something, or
    has something that could start. A tenant that did not want its part leaves it to the others, so
    less than the fair part is no wrong by itself; with tasks that wait it is worth a look.
    """
    wanting = {name: each for name, each in tenants.items() if each.started or each.queued}
    started = sum(each.started for each in wanting.values())
    weights = sum(each.weight for each in wanting.values())
    return {
        name: Shares(
            each.started / started if started else None,
            each.weight / weights if name in wanting and weights else None,
            started,
        )
        for name, each in tenants.items()
    }


def jain_of(tenants: Mapping[str, TenantStats]) -> float | None:
    """Jain's index over tenants that have tasks queued now; None if there are not two of them."""
    wanting = {name: each for name, each in tenants.items() if each.queued}
    if len(wanting) < 2:
        return None
    return jain(
        {name: each.started for name, each in wanting.items()},
        {name: each.weight for name, each in wanting.items()},
    )
