"""Guards of a repair beside workers."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant, lua

__all__ = ("GUARDS",)

_LIVE = "tests/broker/redis/test_repair_live.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "stands there",
        "a task that stands in its line is not put there again",
        _LIVE + "test_a_task_that_stands_in_a_long_line_is_not_put_there_again",
        (lua("repair.lua", ("call('LPOS', key, entry) ~= false", "false")),),
    ),
    Guard(
        "one moment",
        "a repair leaves a sound shard alone while workers go on",
        _LIVE + "test_what_is_right_is_not_counted_as_mended",
        (
            lua("repair.lua", ("if t and not is_well(t) then", "if t then")),
            lua("repair.lua", ("if q and same(q.counts, counts) and", "if false and")),
        ),
    ),
    Guard(
        "unmoved",
        "counts of a tenant that moved since they were taken are not written",
        "tests/broker/redis/test_repair.py::test_a_step_that_comes_too_late_changes_nothing",
        (
            lua(
                "repair.lua",
                (
                    "if (call('HGET', P .. 'tenants:' .. queue, name) or '') ~= ARGV[8] then",
                    "if false then",
                ),
            ),
        ),
    ),
    Guard(
        "from the end",
        "a line is read whole while tasks are taken from it",
        _LIVE + "test_a_line_that_moves_is_read_without_gaps_and_without_doubles[30-30]",
        (
            Mutant(
                "fairlead/broker/redis/audit/walk.py",
                (("new = page[moved + 1 :]", "new = page[1:]"),),
            ),
        ),
    ),
)
