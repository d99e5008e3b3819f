"""Guards of what a broker that is away, or one of its servers, costs the ledger's tasks."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/acceptance/test_seed_001.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "time of a push",
        "a broker that is away is noticed before the lease is over, so rows are pending again",
        _TESTS + "test_3_an_outage_of_the_broker_leaves_tasks_pending",
        _at("fairlead/manager/leader.py", "min(limit, ttl / 3)", "limit"),
    ),
    Guard(
        "servers that are away",
        "one server that is away keeps no manager from sending to the others",
        _TESTS + "test_a_server_that_is_away_blocks_none_but_its_own_tasks",
        _at(
            "fairlead/broker/sharded/broker.py", "        if not changes:\n", "        if False:\n"
        ),
    ),
)
