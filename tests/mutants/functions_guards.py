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
    Guard(
        "libraries load",
        "no part needs more than a library may use while it loads",
        _FUNCTIONS + "test_every_library_loads_and_every_call_goes_through_one",
        (
            Mutant(
                LUA + "lib/fair.lua",
                (("\nfair = {}\n", "\nfair = { tag = string.rep('x', 2) }\n"),),
            ),
        ),
    ),
    Guard(
        "faults of libraries are told",
        "who reads the log learns which line keeps a library from loading",
        _FUNCTIONS + "test_a_library_that_does_not_load_is_told_once_with_file_and_line",
        (
            Mutant(
                "fairlead/broker/redis/functions.py",
                (("understand(located(script, str(loaded)))", "understand(str(loaded))"),),
            ),
            Mutant(
                "fairlead/broker/redis/functions.py",
                (("if why not in (known for _, known in self._refused.values()):", "if True:"),),
            ),
            Mutant(
                "fairlead/broker/redis/functions.py",
                (
                    (
                        "            _warn_once(located(script, str(refused)))\n",
                        "            pass\n",
                    ),
                ),
            ),
        ),
    ),
)
