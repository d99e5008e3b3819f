"""Which shards a change of settings goes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.broker.sharded.places import Places
from fairlead.broker.verbs import Change, Declaration, LimiterChange

__all__ = ("split_changes",)


def split_changes(
    changes: Sequence[Change], places: Places, shards: Iterable[str]
) -> dict[str, list[Change]]:
    """Return the changes by shard: those of a queue go where it is, all others everywhere."""
    everywhere = list(shards)
    parts: dict[str, list[Change]] = {}
    for change in changes:
        target = change.change if isinstance(change, Declaration) else change
        queue = None if isinstance(target, LimiterChange) else target.queue
        for shard in everywhere if queue is None else places.shards_of(queue):
            parts.setdefault(shard, []).append(change)
    return parts
