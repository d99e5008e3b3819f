"""What must hold for leaders: their terms were given, and their time ends."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.broker.leadership import MAX_LEADERS, MAX_LEADERSHIP
from fairlead.broker.redis.audit.walk import Shard

__all__ = ("check_leaders",)


def check_leaders(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with leaders; the twin of ``_leaders`` in ``memory/audit``."""
    held, token = shard.hash("leaders"), shard.meta.get("token", 0.0)
    latest = shard.meta.get("now", 0.0) + MAX_LEADERSHIP
    if len(held) > MAX_LEADERS:
        yield f"'leaders' has {len(held)} names, at most {MAX_LEADERS}"
    for name, (term, till) in held.items():
        if term > token:
            yield f"{name} is led in term {term}, which was never given"
        if not till <= latest:
            yield f"{name} is led until {till}, longer than anybody may ask for"
