"""Guards of a repair beside workers, and of what is said when a shard is away."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant, lua

__all__ = ("GUARDS",)

_DOUBT = "tests/broker/redis/test_shards_doubt.py::"
_LIVE = "tests/broker/redis/test_repair_live.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "stands there",
        "a task that stands in its line is not put there again",
        _LIVE + "test_a_task_that_stands_in_a_long_line_is_not_put_there_again",
        (lua("repair.lua", ("call('LPOS', key, entry, 'MAXLEN', length) ~= false", "false")),),
    ),
    Guard(
        "one moment",
        "a repair leaves a sound shard alone while workers go on",
        _LIVE + "test_what_is_right_is_not_counted_as_mended",
        (
            lua("repair.lua", ("if tenant and not is_well(tenant) then", "if tenant then")),
            lua("repair.lua", ("if queue and same(queue.counts, counts) and", "if false and")),
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
                    "if (call('HGET', prefix .. 'tenants:' .. queue, name) or '') ~= ARGV[8] then",
                    "if false then",
                ),
            ),
        ),
    ),
    Guard(
        "about to hear",
        "a task whose parent completed is not ended because the parent is forgotten",
        "tests/broker/redis/test_orphans.py::"
        "test_a_task_that_is_about_to_hear_of_an_end_is_not_told_of_a_loss",
        (
            lua(
                "lib/dependency_release.lua",
                ("if sub(found[i], 1, #begin) == begin then", "if false then"),
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
    Guard(
        "half a batch",
        "a batch of which a part was accepted is not said to be refused",
        _DOUBT + "test_a_batch_of_which_a_part_was_accepted_is_not_said_to_be_refused",
        (
            Mutant(
                "fairlead/broker/sharded/enqueue.py",
                (("partly=bool(line.kept)", "partly=False"),),
            ),
        ),
    ),
    Guard(
        "own parents",
        "a batch needs no shard that has nothing to do with it",
        _DOUBT + "test_a_batch_does_not_need_shards_that_have_nothing_to_do_with_it",
        (
            Mutant(
                "fairlead/broker/sharded/enqueue.py",
                (("(id for id in others if id not in entered)", "others"),),
            ),
        ),
    ),
    Guard(
        "in doubt",
        "an outcome that was applied by an exchange without an answer is not fenced",
        _DOUBT + "test_an_outcome_whose_answer_was_lost_is_applied_once_and_never_fenced[reply]",
        (
            Mutant(
                "fairlead/broker/sharded/exchange.py",
                (("if doubt is None or doubt.number == call.number:", "if True:"),),
            ),
        ),
    ),
)
