"""Ways to spoil the pins of the shard of ``sample``, each with what the audit has to say of it."""

from __future__ import annotations

from tests.broker.redis.sample import CHILDREN, Spoiler
from tests.broker.redis.spoiled import EXPIRES, Spoil

__all__ = ("SPOILED_PINS",)

PIN_BYTES = -9  # where a tenant counts them: see lua/lib/queue
FLAGS, USES = 1, 32  # where they stand in a record, and one of them
READ = "read-0".ljust(32, "-")  # pinned by "user", and still by "reader", which is over
LAST = f"read-{CHILDREN - 1}".ljust(32, "-")


def _use_by_one_that_is_over(s: Spoiler) -> None:
    s.poke("records", "pinned", FLAGS, "B", USES)
    s.do("HSET", "uses", "pinned", "x\x1f0")


SPOILED_PINS: dict[str, tuple[Spoil, str]] = {
    "pins that are gone": (
        lambda s: s.do("HDEL", "pins", "pinned"),
        "task pinned counts 0 pins, there are 1",
    ),
    "pins too many": (
        lambda s: s.do("HSET", "pins", LAST, "3\x1f"),
        f"task {LAST} counts 3 pins, there are 1",
    ),
    "pins that are no number": (
        lambda s: s.do("HSET", "pins", LAST, "?"),
        f"'pins' holds what cannot be read for '{LAST}'",
    ),
    "no pins": (
        lambda s: s.do("HSET", "pins", LAST, "0\x1f"),
        f"'pins' holds what cannot be read for '{LAST}'",
    ),
    "pins of nobody": (
        lambda s: s.do("HSET", "pins", "nobody", "1\x1f"),
        "'pins' holds nobody, which no longer exists",
    ),
    "a pin that no tie tells of": (
        lambda s: s.do("HDEL", "ties", "pinned"),
        "task pinned is pinned, or is not, but its ties say otherwise",
    ),
    "bytes of pinned tasks": (
        lambda s: s.poke("tenants:pins", "a", PIN_BYTES, "d", 7),
        "tenant a of pins counts 7 bytes of pinned tasks, there are",
    ),
    "a task beyond the room for pins that is taken for one within": (
        lambda s: s.do("HSET", "ties", "beyond", "p"),
        "task beyond is pinned but has a time to be forgotten",
    ),
    "a pinned task that is taken for one beyond the room": (
        lambda s: s.do("HSET", "ties", "pinned", "o"),
        "tenant a of pins counts",
    ),
    "a pinned task that would be forgotten": (
        lambda s: s.poke("records", "pinned", EXPIRES, "d", 1.0),
        "task pinned is pinned but has a time to be forgotten",
    ),
    "a pinned task on a shelf": (
        lambda s: s.do("ZADD", "done:pins", 0, "pinned"),
        "task pinned is completed but is kept on ['done:pins']",
    ),
    "a task that uses nothing": (
        lambda s: s.do("HDEL", "uses", "user"),
        "task user has no uses, its record says otherwise",
    ),
    "uses that cannot be read": (
        lambda s: s.do("HSET", "uses", "user", "?"),
        "'uses' holds what cannot be read for 'user'",
    ),
    "uses of nobody": (
        lambda s: s.do("HSET", "uses", "nobody", "pinned\x1f0"),
        "'uses' holds nobody, which no longer exists",
    ),
    "uses of a task that is over": (
        _use_by_one_that_is_over,
        "task pinned is completed and still has uses",
    ),
    "a pin in transit that cannot be read": (
        lambda s: s.do("RPUSH", "unpins", "-?"),
        "'unpins' holds what cannot be read: '-?'",
    ),
    "a pin in transit that nobody counts": (
        lambda s: s.do("RPUSH", "unpins", "-nobody\x1f0"),
        "'meta' counts 1 under 'unpins', there are 2",
    ),
    "a wrong number of tasks aside": (
        lambda s: s.do("HSET", "aside", "pins", "7"),
        "queue pins counts 7 tasks aside, there are 22",
    ),
    "tasks aside that are not counted": (
        lambda s: s.number("aside", 7),
        "'meta' counts 7 under 'aside', there are 22",
    ),
    "an XCom value that cannot be read": (
        lambda s: s.do("HSET", "xcom", "r\x1fkey", "?"),
        "'xcom' holds what cannot be read for 'r\\x1fkey'",
    ),
    "an XCom value that would end early": (
        lambda s: s.do("ZADD", "xcom-ends", 1, "r\x1fkey"),
        "the XCom value key of r would be looked at before its end",
    ),
}
