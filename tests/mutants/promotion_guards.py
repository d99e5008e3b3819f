"""Guards of due tasks and revived flows."""

from __future__ import annotations

from tests.mutants.mutant import MEMORY, SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_RETRIES = SUITE + "test_flow_retries.py::"
_DUE = SUITE + "test_due.py::"
_EIGHT = SUITE + "test_eight_levels.py::"
_BY_TIME = MEMORY + "time_index.py"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "edges taken back",
        "after the retry of a flow one that still waits does not run before its revived parents",
        _RETRIES + "test_one_that_still_waits_waits_again_for_parents_that_were_put_back",
        (
            memory("flows.py", ("return 0, _take_back(shard, task, member)", "return 0, 0")),
            lua(
                "lib/flow_members.lua", ("return 0, take_back(task, edges) end", "return 0, 0 end")
            ),
        ),
    ),
    Guard(
        "none is released during a retry",
        "one that the retry of a flow has not come to yet does not run before its revived parents",
        _RETRIES + "test_none_is_released_before_a_retry_has_seen_to_all",
        (
            memory("dependencies.py", ('task.flow.work == "retry"', "False")),
            lua(
                "lib/dependency_release.lua",
                ("local retried = flows.retried(task.fields)", "local retried"),
            ),
        ),
    ),
    Guard(
        "a turn for each lower level",
        "no level below the first starves, of however many",
        _EIGHT + "test_of_eight_dispatches_each_lower_level_has_one[*-5]",
        (
            memory("fairlead/model/priority_turns.py", ("5: 5, 6: 7, 7: 3}", "5: 5, 7: 3}")),
            lua("lib/fair.lua", ("{ 4, 6, 2, false, 5, 7, 3 }", "{ 4, 6, 2, false, 5, false, 3 }")),
        ),
    ),
    Guard(
        "strict queues have no turns",
        "in a strict queue the highest level that waits goes first",
        _EIGHT + "test_strict_levels_go_one_after_the_other[*-5]",
        (
            memory("fair.py", ("0 if self.queue.strict_priorities else", "")),
            lua("lib/fair.lua", (" and tenant[QUEUE].strict == 0", "")),
        ),
    ),
    Guard(
        "equal times go as they came",
        "tasks that are due at one moment run in the order in which they were accepted",
        _DUE + "test_a_batch_with_one_delay_runs_in_its_order",
        (
            memory("records.py", ("0 if is_made(self.id) else self.sequence", "0")),
            lua("lib/promote.lua", ("if chosen then order_by_lives(rows, from, place) end", "")),
            lua("lib/promote.lua", ("rows = firsts(index, most + 1 + ties)", "")),
        ),
    ),
    Guard(
        "order of time",
        "what is due earlier goes first, although it was set later",
        "tests/broker/memory/test_time_index.py::"
        "test_keys_come_in_the_order_of_time_however_they_were_set[3]",
        (
            Mutant(_BY_TIME, (("if line and entry < line[-1]:", "if False:"),)),
            Mutant(_BY_TIME, (("not (heap and heap[0] < line[0])", "True"),)),
        ),
    ),
    Guard(
        "a moment is the broker's",
        "tasks for one moment are due then, however long the calls took that brought them",
        _DUE + "test_tasks_for_one_moment_are_due_then_however_late_their_calls_came",
        (
            memory("enqueue.py", ("if submission.at is None else submission.at", "")),
            lua("lib/accept.lua", ("delay < 0 and -delay", "delay < 0 and now + 59")),
        ),
    ),
    Guard(
        "lower lines are the engine's",
        "the straight way leaves tenants with lower lines alone, and their entries are dropped",
        "tests/broker/redis/test_straight_small.py::"
        "test_tenants_with_more_than_four_levels_are_the_engines",
        (
            lua(
                "lib/fast_path/exchange_tenants.lua",
                (" or tenant[LOWER] or tenant[WOKEN]", " or tenant[WOKEN]"),
            ),
        ),
    ),
    Guard(
        "tenants take turns",
        "a tenant of which much is due does not keep others from being promoted",
        _DUE + "test_tenants_of_which_much_is_due_take_turns",
        (
            memory("transitions.py", ("max(first[0], min(at, self.now))", "first[0]")),
            lua(
                "lib/promote.lua",
                (
                    "  if more then set_at(due, key, now) elseif unsure",
                    "  drop(due, key)\n  if unsure",
                ),
            ),
        ),
    ),
    Guard(
        "goes on with what is due",
        "a tenant is served by its weight, however many tenants are due at once",
        _DUE + "test_a_tenant_that_runs_out_while_it_is_served_goes_on_with_what_is_due",
        (
            memory("exchange.py", ("    if tenant.due:", "    if False:")),
            lua(
                "lib/promote.lua",
                ("if meta.next <= now and tenant[COUNT", "if false and tenant[COUNT"),
            ),
        ),
    ),
    Guard(
        "passed over at once",
        "a call that put many tenants elsewhere finds out at once whether another is due",
        "tests/broker/redis/test_due_at_once.py::"
        "test_what_a_call_put_elsewhere_is_not_passed_over_one_by_one",
        (lua("lib/sorted_index.lua", ("start + step, 2 * step", "start + step, step")),),
    ),
)
