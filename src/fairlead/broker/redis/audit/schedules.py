"""What must hold for schedules: whoever has something to fire is looked at, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.broker.redis.audit.walk import Shard
from fairlead.broker.schedules import ScheduleRecord

__all__ = ("check_schedules",)


def check_schedules(shard: Shard) -> Iterator[str]:
    """Everything that is wrong with schedules; the twin of ``_schedules`` in ``memory/audit``."""
    ticks = shard.order("ticks")
    known: dict[str, ScheduleRecord] = shard.hash("schedules")
    token = shard.meta.get("token", 0.0)
    for name, record in known.items():
        at, tick = None if record.paused else record.next_at, ticks.get(name)
        if at is None and tick is not None:
            yield f"schedule {name} is looked at although it has nothing to fire"
        if at is not None and (tick is None or tick < at):
            yield f"schedule {name} is due at {at} and looked at {tick}"
        if record.revision > token:
            yield f"schedule {name} has revision {record.revision}, which was never given"
    for name in ticks.keys() - known.keys():
        yield f"schedule {name} is looked at, but is not stored"
