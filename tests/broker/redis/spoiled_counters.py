"""Ways to spoil the counters of the shard of ``sample``, each with what the audit says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broker.redis.sample import Spoiler

__all__ = ("COUNTED",)

LIVE_BYTES = 109  # where a tenant counts bytes of tasks that are not finished: see lua/lib/queue
COUNTERS = 121  # where the counters of a queue stand: see lua/lib/stats
TALLY = "tally:brief:500000"

COUNTED: dict[str, tuple[Callable[[Spoiler], Any], str]] = {
    "counters that are cut off": (
        lambda s: s.do("HSET", "queues", "default", s.do("HGET", "queues", "default")[:-1]),
        "'queues' holds what cannot be read for 'default'",
    ),
    "a counter that is no number": (
        lambda s: s.poke("queues", "default", COUNTERS, "d", float("nan")),
        "'queues' holds what cannot be read for 'default'",
    ),
    "an attempt too many": (
        lambda s: s.poke("queues", "default", COUNTERS + 8, "d", 1_000),
        "queue default counts 1000 attempts that began and",
    ),
    "an attempt too few": (
        lambda s: s.poke("queues", "default", COUNTERS + 8, "d", 0),
        "queue default counts more run times than the 0 attempts that began",
    ),
    "attempts that are repeated after nothing": (
        lambda s: s.poke("queues", "default", COUNTERS + 48, "d", 1_000),
        "queue default counts more attempts that are repeated than attempts that failed",
    ),
    "a tenant that is cut off": (
        lambda s: s.do("HSET", "tenants:default", "r", s.do("HGET", "tenants:default", "r")[:-1]),
        "'tenants:default' holds what cannot be read for 'r'",
    ),
    "bytes of unfinished tasks": (
        lambda s: s.poke("tenants:default", "q", LIVE_BYTES, "d", 7),
        "tenant q of default counts 7 bytes of unfinished tasks, there are",
    ),
    "bytes of XCom values": (
        lambda s: s.do("HSET", "xcom-bytes", "r", 7),
        "tenant r counts 7 bytes of XCom values, there are",
    ),
    "bytes that are reserved in all": (
        lambda s: s.number("reserved", 7),
        "'meta' counts 7 bytes that are reserved, there are",
    ),
    "garbage for a tally": (
        lambda s: s.do("HSET", TALLY, "a", "?"),
        f"'{TALLY}' holds what cannot be read for 'a'",
    ),
    "a tally that stays": (
        lambda s: s.do("DEL", "tallies"),
        f"'{TALLY}' will never be forgotten",
    ),
    "no tally": (
        lambda s: s.do("DEL", TALLY),
        "'tallies' holds brief:500000, which does not exist",
    ),
    "a tally that goes too soon": (
        lambda s: s.do("ZADD", "tallies", 1, "brief\x1f500000"),
        "'tallies' keeps brief:500000 until 1",
    ),
    # -- what tidy looks at ----------------------------------------------------------------
    "a queue that tidy forgot": (
        lambda s: s.do("ZREM", "trims", "default"),
        "queue default is looked at by tidy at another moment than it says",
    ),
    "a queue that nobody looks at": (
        lambda s: s.look("default", 0.0),
        "queue default is never looked at by tidy",
    ),
    "a queue that tidy looks at too late": (
        lambda s: s.look("default", 9e9),
        "queue default keeps a task that is over before tidy looks at it",
    ),
    "a look at nothing": (
        lambda s: s.do("ZADD", "trims", 1, "no"),
        "tidy looks at queue no, which does not exist",
    ),
}
