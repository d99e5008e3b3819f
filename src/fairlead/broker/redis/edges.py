"""Who waits for whom, as it is stored; ``lua/lib/before`` and ``lua/lib/dependents`` write it."""

from __future__ import annotations

__all__ = ("read_edges", "read_ties")


def read_edges(stored: bytes) -> dict[tuple[str, str], int]:
    """What a deferred task waits for: parent, and its life or ``@`` and its shard; edge numbers.

    Nothing for one that waits for much: a sorted set has it.
    """
    found: dict[tuple[str, str], int] = {}
    for edge in stored.decode().split("\x1d")[1:]:
        parent, where, number = edge.split("\x1f")
        found[parent, where] = int(number)
    return found


def read_ties(stored: bytes) -> tuple[str, dict[tuple[str, str], int]]:
    """Who waits for a task: the letters, and its dependents if they are few, by its life.

    Of a dependent the value is the number of the edge; one of another shard is, by US, that shard,
    id, life and policy.
    """
    letters, *few = stored.decode().split("\x1d")
    found: dict[tuple[str, str], int] = {}
    for each in few:
        life, _, rest = each.partition("\x1f")
        member, _, number = rest.rpartition("\x1f")
        found[life, member] = int(number)
    return letters, found
