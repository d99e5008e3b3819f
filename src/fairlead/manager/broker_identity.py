"""Which servers the broker is made of, by what they say of themselves.

A server of the same generation was not emptied, and one of the same replication has not lost its
memory since, nor handed over to another. So whatever it was told before it still knows, unless it
ended and was forgotten.
"""

from __future__ import annotations

from fairlead.broker.records import Hello

_AWAY = "?"  # a shard that was never heard of


def identity_of(hello: Hello) -> dict[str, str]:
    """Return the replication of each shard by its generation; those never heard of are left out."""
    pairs = zip(hello.generation.split("+"), hello.replication.split("+"), strict=True)
    return {
        generation: replication
        for generation, replication in pairs
        if _AWAY not in (generation, replication)
    }
