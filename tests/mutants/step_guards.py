"""Guards of work in steps: a call ends when it has taken long enough, and nothing is left out."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/broker/redis/test_short_steps.py::"
_COLLECTOR = "tests/broker/redis/test_collector.py::"
_LINKER = "fairlead/broker/redis/linker.py"


def _lua(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, _TESTS + test, (Mutant(f"{LUA}{file}.lua", edits),))


GUARDS: tuple[Guard, ...] = (
    _lua(
        "steps: orders",
        "a call that has taken long enough carries out no more orders",
        "test_orders_that_a_call_has_no_time_for_are_given_again",
        "change_tasks",
        ("  if place > 1 and enough() then\n", "  if false then\n"),
    ),
    Guard(
        "steps: orders that are left",
        "orders that a call did not come to are given again",
        _TESTS + "test_orders_that_a_call_has_no_time_for_are_given_again",
        (
            Mutant(
                "fairlead/broker/orders.py",
                (('if answers[place].code == "later"] + left', "if False] + left"),),
            ),
        ),
    ),
    _lua(
        "steps: purge",
        "a call that has taken long enough cancels no more",
        "test_a_purge_goes_on_with_the_next_call",
        "purge",
        (" and not (count > 0 and enough()) end", " end"),
    ),
    _lua(
        "steps: deleted queue",
        "a call that has taken long enough forgets no more",
        "test_a_queue_is_deleted_in_as_many_calls_as_it_takes",
        "delete_queue",
        (" or count >= STEP or enough()", " or count >= STEP"),
    ),
    _lua(
        "steps: reads",
        "a call that has taken long enough reads no more tasks",
        "test_a_read_goes_on_with_the_next_call",
        "find",
        ("  if first > 3 and enough() then", "  if false then"),
    ),
    _lua(
        "steps: tenant everywhere",
        "a call gives a tenant what was set for it in a few queues",
        "test_a_tenant_is_paused_in_all_queues_a_few_in_each_call",
        "lib/settings",
        ("looked < MOST_SEEN and given < MOST_GIVEN", "true"),
    ),
    _lua(
        "steps: tenant everywhere, alone",
        "what was set for a tenant comes to all queues although its caller went away",
        "test_tidy_gives_a_tenant_what_a_caller_did_not_stay_for",
        "expire",
        ("local unset = done < STEP and configure.apply_on()", "local unset = false"),
    ),
    Guard(
        "steps: tenant everywhere, in doubt",
        "what was set for a tenant is not said to be undone if the server goes away meanwhile",
        _TESTS + "test_tidy_gives_a_tenant_what_a_caller_did_not_stay_for",
        (
            Mutant(
                "fairlead/broker/redis/broker.py",
                (('raise Ambiguous(f"it is set', 'raise type(error)(f"it is set'),),
            ),
        ),
    ),
    _lua(
        "steps: tenant everywhere, elsewhere",
        "on a server that was started again a tenant is given its settings from the first queue on",
        "test_a_tenant_is_given_it_everywhere_although_the_server_is_started_again",
        "lib/settings",
        ("if not run or call('HGET', prefix .. 'meta', 'run') == run then", "if true then"),
    ),
    Guard(
        "steps: collector",
        "no call frees what many calls left behind",
        _COLLECTOR + "test_no_call_frees_what_many_left_behind[valkey]",
        (Mutant(_LINKER, (("if not collect then", "if true then"),)),),
    ),
    Guard(
        "steps: collector behind errors",
        "what calls leave behind that end with an error is freed as well",
        _COLLECTOR + "test_calls_that_end_with_an_error_leave_nothing_behind",
        (Mutant(_LINKER, (("      if before then free(1024) end\n", ""),)),),
    ),
    Guard(
        "steps: collector behind others",
        "one call does not free what functions of others left behind",
        _COLLECTOR + "test_what_others_left_behind_an_error_of_ours_is_not_freed_by_one_call",
        (Mutant(_LINKER, (("free(1024)", "free()"),)),),
    ),
)
