"""What must hold for documents and trails: each can be found, ends in time, and is counted."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fairlead.broker.documents import MAX_NOTES, MAX_TRAIL_BYTES
from fairlead.broker.redis.audit.walk import Shard

__all__ = ("check_documents", "check_trails")


def check_documents(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with documents; the twin of ``_documents`` in ``memory/audit``."""
    stored = dict(shard.family("documents:"))
    named, timed = dict(shard.family("document-names:")), dict(shard.family("document-ends:"))
    looks, token = shard.order("document-ends"), shard.meta.get("token", 0.0)
    for kind in {**stored, **named, **timed, **looks}:
        known, ends = stored.get(kind, {}), timed.get(kind, {})
        for name in known.keys() ^ named.get(kind, {}).keys():
            what = "not listed" if name in known else "listed, but is not stored"
            yield f"document {name} of kind {kind} is {what}"
        for name, (revision, till) in known.items():
            if revision > token:
                yield f"document {name} of kind {kind} has a revision that was never given"
            if till != ends.get(name, 0.0):
                yield f"document {name} of kind {kind} ends at {till}, looked at {ends.get(name)}"
        for name in ends.keys() - known.keys():
            yield f"document {name} of kind {kind} has an end, but is not stored"
        first = min(ends.values(), default=math.inf)
        if (kind in looks) != bool(ends) or looks.get(kind, -math.inf) > first:
            yield f"documents of kind {kind} are looked at {looks.get(kind)}, not at {first}"


def check_trails(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with trails."""
    said, token = shard.hash("trails"), shard.meta.get("token", 0.0)
    trails = dict(shard.family("trail:"))
    for name in said.keys() - trails.keys():
        yield f"trail {name} is counted, but has no notes"
    for name, notes in trails.items():
        rows = [row.split("\x1f") for row in notes]
        size = sum(int(length) for _, length in rows)
        if said.get(name) != str(size):
            yield f"trail {name} has {size} bytes, 'trails' says {said.get(name)}"
        if len(notes) > MAX_NOTES or size > MAX_TRAIL_BYTES:
            yield f"trail {name} keeps {len(notes)} notes of {size} bytes"
        for (number, _), score in zip(rows, notes.values(), strict=True):
            if not int(number) == score <= token:
                yield f"trail {name} has note {number} under {score:.0f}"
