"""Guards of what a broker that is away, or one of its servers, costs the ledger's tasks."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "spooled tasks looked up",
        "a task that is sent while it is looked up is known to one of the two",
        "tests/api/test_outage.py::"
        "test_a_task_that_is_sent_while_it_is_looked_up_is_not_said_to_be_none",
        _at(
            "fairlead/api/task_lookup.py",
            "if record is None and is_spooled:",
            "if record is None and request.service.is_spooled(id):",
        ),
    ),
    Guard(
        "servers that are away",
        "one server that is away keeps no manager from sending to the others",
        "tests/broker/redis/test_shards_away.py::"
        "test_the_first_call_of_a_later_term_needs_no_shard_that_is_away",
        _at(
            "fairlead/broker/sharded/session.py",
            "self.most({shard: partial(configure",
            "self.all({shard: partial(configure",
        ),
    ),
)
