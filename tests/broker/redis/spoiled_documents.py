"""Ways to spoil documents, trails, leaders and orders of ``sample``, with what the audit says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broker.redis.sample import Spoiler

__all__ = ("SPOILED_DOCUMENTS",)

SPOILED_DOCUMENTS: dict[str, tuple[Callable[[Spoiler], Any], str]] = {
    "garbage for a document": (
        lambda s: s.do("HSET", "documents:token", "stays", "?"),
        "'documents:token' holds what cannot be read for 'stays'",
    ),
    "a document that is not listed": (
        lambda s: s.do("ZREM", "document-names:token", "stays"),
        "document stays of kind token is not listed",
    ),
    "a document that is listed only": (
        lambda s: s.do("HDEL", "documents:token", "stays"),
        "document stays of kind token is listed, but is not stored",
    ),
    "a document without its end": (
        lambda s: s.do("ZREM", "document-ends:token", "brief"),
        "document brief of kind token ends at ",
    ),
    "the end of no document": (
        lambda s: s.do("ZADD", "document-ends:token", 5, "ghost"),
        "document ghost of kind token has an end, but is not stored",
    ),
    "documents that nobody looks at": (
        lambda s: s.do("ZREM", "document-ends", "token"),
        "documents of kind token are looked at None",
    ),
    "documents that are looked at too late": (
        lambda s: s.do("ZADD", "document-ends", 9e15, "token"),
        "documents of kind token are looked at 9000000000000000.0",
    ),
    "a document of a revision to come": (
        lambda s: s.poke("documents:token", "stays", 0, "d", 9e15),
        "document stays of kind token has a revision that was never given",
    ),
    "an order for nobody": (
        lambda s: s.do("HSET", "orders", "ghost", "p"),
        "'orders' has 'p' for ghost, which cannot be",
    ),
    "an order that is none": (
        lambda s: s.do("HSET", "orders", "w1", "?"),
        "'orders' has '?' for w1, which cannot be",
    ),
    "a note that is none": (
        lambda s: s.do("ZADD", "trail:audit", 5, "?"),
        "'trail:audit' holds what cannot be read",
    ),
    "a trail that miscounts": (
        lambda s: s.do("HSET", "trails", "audit", 5),
        "trail audit has 6 bytes, 'trails' says 5",
    ),
    "a trail without notes": (
        lambda s: s.do("DEL", "trail:audit"),
        "trail audit is counted, but has no notes",
    ),
    "garbage for a leader": (
        lambda s: s.do("HSET", "leaders", "manager", "?"),
        "'leaders' holds what cannot be read for 'manager'",
    ),
    "a leader of a term to come": (
        lambda s: s.do("HSET", "leaders", "manager", "9000000000000000\x1f1\x1fm1"),
        "manager is led in term 9000000000000000, which was never given",
    ),
    "a leader for ever": (
        lambda s: s.do("HSET", "leaders", "manager", "1\x1finf\x1fm1"),
        "manager is led until inf, longer than anybody may ask for",
    ),
    "too many leaders": (
        lambda s: s.do("HSET", "leaders", *(x for n in range(100) for x in (n, "1\x1f1\x1fm1"))),
        "'leaders' has 101 names, at most 100",
    ),
    "a note under another number": (
        lambda s: s.do("ZINCRBY", "trail:audit", 1, s.do("ZRANGE", "trail:audit", 0, 0)[0]),
        "trail audit has note ",
    ),
}
