"""Guards of what a broker that is away, or one of its servers, costs the ledger's tasks."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/acceptance/test_seed_001.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "servers that are away",
        "one server that is away keeps no manager from sending to the others",
        _TESTS + "test_a_server_that_is_away_blocks_none_but_its_own_tasks",
        _at(
            "fairlead/broker/sharded/frame.py",
            "self._most({shard: partial(configure",
            "self._all({shard: partial(configure",
        ),
    ),
)
