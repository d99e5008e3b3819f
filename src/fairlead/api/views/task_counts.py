"""How many tasks there are, by state: of a queue, or of a tenant's part of one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fairlead.api.views.paging import about
from fairlead.broker.records import Counts


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks there are, by state."""

    depth: Annotated[int, about("All that wait: ready, scheduled, retrying and deferred.")] = 0
    ready: Annotated[int, about("Waiting for nothing but their turn (state queued).")] = 0
    scheduled: int = 0
    retrying: int = 0
    deferred: Annotated[int, about("Waiting for other tasks.")] = 0
    running: int = 0
    completed: Annotated[int, about("Completed and still kept.")] = 0
    dead: Annotated[int, about("Dead letters that are kept.")] = 0
    cancelled: int = 0


def counts_of(counts: Counts) -> dict[str, Any]:
    """The counts by state, of whatever has them."""
    return {name: getattr(counts, name) for name in Counts.__struct_fields__}
