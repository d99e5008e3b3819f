"""Guards of server functions, reads and repair."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_FUNCTIONS = "tests/broker/redis/test_functions.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "entry tried first",
        "a stream that refuses an entry leaves nothing half written",
        "tests/broker/redis/test_each_command.py::"
        "test_an_entry_that_the_stream_refuses_changes_nothing",
        (Mutant(LUA + "lib/call.lua", (("    take_back(#pushes)\n", ""),)),),
    ),
    Guard(
        "reads are reads",
        "a server that refuses writes can be looked into",
        _FUNCTIONS + "test_a_server_that_refuses_writes_can_be_looked_into[known]",
        (
            Mutant(
                "fairlead/broker/redis/scripts.py",
                (("[(verb, \"'no-writes'\"),", "[(verb, \"'allow-oom'\"),"),),
            ),
        ),
    ),
    Guard(
        "scripts instead",
        "a full server is drained by a release that it has never seen",
        _FUNCTIONS + "test_a_full_server_that_never_saw_this_release_is_drained_and_steered_by_it",
        (
            Mutant(
                "fairlead/broker/redis/functions.py",
                (
                    (
                        'reply = await send(_instead(packed, script, "EVALSHA", form.sha))',
                        "return loaded",
                    ),
                ),
            ),
        ),
    ),
)
