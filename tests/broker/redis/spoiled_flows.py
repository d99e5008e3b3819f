"""Ways to spoil the flows of ``sample``, each with what the audit has to say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broker.redis.sample import Spoiler

__all__ = ("SPOILED_FLOWS",)

Spoil = Callable[[Spoiler], Any]

# Where numbers stand in what is stored: see lua/lib/flow.
PHASE, WORK, ENDED = 0, 1, 19

SPOILED_FLOWS: dict[str, tuple[Spoil, str]] = {
    "garbage for a flow": (
        lambda s: s.do("HSET", "flows", "flow-done", "?"),
        "'flows' holds what cannot be read for 'flow-done'",
    ),
    "a phase that there is not": (
        lambda s: s.poke("flows", "flow-done", PHASE, "B", 9),
        "'flows' holds what cannot be read for 'flow-done'",
    ),
    "a flow that would never be removed": (
        lambda s: s.do("ZREM", "stages", "flow-staged"),
        "flow flow-staged is not in 'stages'",
    ),
    "a flow that nobody would lay out": (
        lambda s: s.do("ZREM", "layouts", "flow-laying"),
        "flow flow-laying is not in 'layouts'",
    ),
    "a flow that is laid out although it is not": (
        lambda s: s.poke("flows", "flow-laying", PHASE, "B", 3),
        "flow flow-laying will never be laid out",
    ),
    "a flow that is never forgotten": (
        lambda s: s.do("ZREM", "flow-ends", "flow-done"),
        "flow flow-done is not in 'flow-ends'",
    ),
    "a flow that is forgotten too early": (
        lambda s: s.do("ZADD", "flow-ends", 1, "flow-wide"),
        "flow flow-wide is in 'flow-ends'",
    ),
    "an end that was not counted": (
        lambda s: s.poke("flows", "flow-done", ENDED, "I", 0),
        "flow flow-done counts 0 members that ended, there are 1",
    ),
    "an end that was counted twice": (
        lambda s: s.poke("flows", "flow-done", ENDED, "I", 2),
        "flow flow-done counts 2 members that ended of 1",
    ),
    "a flow without its members": (
        lambda s: s.do("LPOP", "flow:flow-done"),
        "flow flow-done should have 1 members and 0 rows of edges",
    ),
    "a flow without its edges": (
        lambda s: s.do("LPOP", "edges:flow-wide"),
        "flow flow-wide should have 61 members and 1 rows of edges",
    ),
    "garbage for a member": (
        lambda s: s.do("LSET", "flow:flow-staged", 0, "?"),
        "'flow:flow-staged' holds what cannot be read",
    ),
    "a member that is cut off": (
        lambda s: s.do("LSET", "flow:flow-staged", 0, b"\1\0\x08\0staged-1"),
        "'flow:flow-staged' holds what cannot be read",
    ),
    "a member that is a task and is not": (
        lambda s: s.do("LSET", "flow:flow-laying", 0, b"\0\1\0a\0\0\0\0"),
        "flow flow-laying has 9 members that are no tasks yet, which is not so many",
    ),
    "a flow that forgot what was written": (
        lambda s: s.do("SREM", "staged:flow-staged", "staged-1"),
        "flow flow-staged does not know which members were written",
    ),
    "what was written of a flow that is gone": (
        lambda s: s.do("SADD", "staged:flow-done", "x"),
        "'staged:flow-done' belongs to no flow",
    ),
    "members of a flow that is gone": (
        lambda s: s.do("HDEL", "flows", "flow-done"),
        "'flow:flow-done' belongs to no flow",
    ),
    "the end of a flow that is gone": (
        lambda s: s.do("HDEL", "flows", "flow-done"),
        "'flow-ends' holds flow flow-done, which does not exist",
    ),
    "room for nobody": (
        lambda s: s.do("HSET", "reserved", "flow\x1fa", 7),
        "room for 7 tasks of a in flow is wrong",
    ),
    "no room for a flow": (
        lambda s: s.do("HDEL", "reserved", "flow\x1f"),
        "room for None tasks of all in flow is wrong",
    ),
    "bytes for nobody": (
        lambda s: s.do("HSET", "reserved", "flow\x1fa\x1f", 7),
        "room for 7 bytes of a in flow is wrong",
    ),
    "flows that nobody counts": (
        lambda s: s.number("laying", 0),
        "'meta' counts 0 for laying, there are 1",
    ),
    "finished flows that nobody counts": (
        lambda s: s.number("flows_kept", 5),
        "'meta' counts 5 for flows_kept, there are 1",
    ),
    "members that nobody counts": (
        lambda s: s.number("members_kept", 5),
        "'meta' counts 5 for members_kept, there are 1",
    ),
    "a member that nobody lets go": (
        lambda s: s.poke("flows", "flow-laying", WORK, "B", 2),
        "waits for \x1eflow-laying, which no longer exists",
    ),
    "a watcher of a flow that is not told": (
        lambda s: s.do("HDEL", "ties", "\x1eflow-wide"),
        "flow flow-wide does not know who has to be told of its end",
    ),
    "a watcher of a flow that is over": (
        lambda s: s.do("HSET", "watchers", "\x1eflow-done", "w2"),
        "somebody waits for flow flow-done, which is over",
    ),
    "members to let go that are not there": (
        lambda s: s.do("HSET", "ties", "\x1eflow-wide", "wd"),
        "flow flow-wide is said to have members to let go, but there are none",
    ),
    "edges that nobody takes away": (
        lambda s: s.do("ZADD", "undone:99999", 1, "x\x1f0"),
        "'undone:99999' holds edges that nobody would take away",
    ),
}
