"""Guards of due tasks and revived flows."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, lua, memory

__all__ = ("GUARDS",)

_RETRIES = SUITE + "test_flow_retries.py::"

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
)
