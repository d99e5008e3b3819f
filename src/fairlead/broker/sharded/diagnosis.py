"""What is to be said of several shards: what each server says, and tasks that no route leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fairlead.broker.sharded.places import Places
from fairlead.broker.topology import LEVELS_SUFFIX, with_shard
from fairlead.broker.views import Finding, Snapshot

__all__ = ("joined", "unserved")


def joined(
    findings: Mapping[str, Sequence[Finding]], addresses: Mapping[str, str]
) -> list[Finding]:
    """Return the findings of all shards; of several servers each says whose it is.

    What shards of one server say alike is said once.
    """
    several = len(set(addresses.values())) > 1
    found: list[Finding] = []
    for shard, part in findings.items():
        for each in part:
            finding = each
            if several and shard in addresses:
                text = f"{addresses[shard]}: {each.text}"
                finding = msgspec.structs.replace(each, text=text)
            if finding not in found:
                found.append(finding)
    return found


def unserved(
    snapshots: Mapping[str, Snapshot], places: Places, addresses: Mapping[str, str]
) -> Iterator[Finding]:
    """Tell of tasks in shards where no fetch for their queue looks: those of a former route."""
    for shard, snapshot in snapshots.items():
        for queue, counts in snapshot.queues.items():
            if not counts.depth or shard in places.shards_of(queue):
                continue
            where = addresses.get(shard, f"shard {shard}")
            base = shard.removesuffix(LEVELS_SUFFIX)
            target = where if base == places.default else with_shard(where, base)
            tasks = f"{counts.depth:,} task{'' if counts.depth == 1 else 's'}"
            yield Finding(
                name="routes",
                status="warn",
                text=f"queue {queue} has {tasks} on {where}, where no route of it leads to: "
                "workers do not look for them there",
                hint=f'add the route "drain:{base}" = "{target}", with user and password if it '
                "has any, until they are done",
            )
