"""Guards of due tasks and revived flows."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, lua, memory

__all__ = ("GUARDS",)

_RETRIES = SUITE + "test_flow_retries.py::"
_DUE = SUITE + "test_due.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "edges taken back",
        "after the retry of a flow one that still waits does not run before its revived parents",
        _RETRIES + "test_one_that_still_waits_waits_again_for_parents_that_were_put_back",
        (
            memory("flowing.py", ("return 0, _take_back(shard, task, member)", "return 0, 0")),
            lua("lib/revive.lua", ("return 0, take_back(task, edges) end", "return 0, 0 end")),
        ),
    ),
    Guard(
        "none is released during a retry",
        "one that the retry of a flow has not come to yet does not run before its revived parents",
        _RETRIES + "test_none_is_released_before_a_retry_has_seen_to_all",
        (
            memory("release.py", ('task.flow.work == "retry"', "False")),
            lua("lib/outcome.lua", ("local retried = flows.retried(task.h)", "local retried")),
        ),
    ),
    Guard(
        "tenants take turns",
        "a tenant of which much is due does not keep others from being promoted",
        _DUE + "test_tenants_of_which_much_is_due_take_turns",
        (
            memory("shard.py", ("max(first[0], min(at, self.now))", "first[0]")),
            lua(
                "lib/asleep.lua",
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
            lua("lib/promote.lua", ("if M.next <= now and t[COUNT", "if false and t[COUNT")),
        ),
    ),
)
