"""Guards of budgets of calls in bytes and steps."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, lua, memory

__all__ = ("GUARDS",)

_GAPS = "tests/broker/redis/test_gaps.py::"
_COSTS = "tests/broker/redis/test_call_costs.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "unclaimed",
        "what a worker does not know of does not stay on loan to it",
        SUITE + "test_unclaimed.py::test_what_an_answered_exchange_lent_and_nobody_names_goes_back"
        "_uncharged",
        (
            memory("recovery.py", ("        if answered is not None:\n", "        if False:\n")),
            lua("heartbeat.lua", ("local count = min(#ids, STEP)", "local count = 0")),
        ),
    ),
    Guard(
        "answered",
        "a loan whose reply is on its way stays with its worker",
        SUITE + "test_unclaimed.py::test_what_a_later_exchange_lent_stays_its_reply_may_be_on_its"
        "_way",
        (
            memory("recovery.py", ("if task.lent_by <= answered and ", "if ")),
            lua("heartbeat.lua", ("if number <= answered and not", "if not")),
        ),
    ),
    Guard(
        "bytes of a fetch",
        "large tasks do not hold up a worker's link, nor the server",
        SUITE + "test_bytes.py::test_the_task_that_fills_4_mib_is_the_last_of_a_fetch",
        (
            memory(
                "exchange.py", ("        self.bytes = MAX_BYTES\n", "        self.bytes = 2**60\n")
            ),
            lua("lib/lease.lua", ("bytes = BUDGET, counted", "bytes = 2 ^ 50, counted")),
        ),
    ),
    Guard(
        "bytes of a cancel",
        "ending many large tasks does not read them all",
        SUITE + "test_bytes.py::test_cancelled_tasks_drop_their_bodies_up_to_1_mib_in_a_call",
        (
            memory("state.py", ("if self.digested <= _DIGESTED or", "if True or")),
            lua("lib/retention.lua", ("if digested > DIGESTED and", "if false and")),
        ),
    ),
    Guard(
        "room of a snapshot",
        "counts of many tenants do not hold up the server",
        _COSTS + "test_no_call_of_a_snapshot_tells_of_more_than_its_share",
        (
            lua(
                "snapshot.lua",
                ("if count > room and room < ROOM then", "if false then"),
            ),
            lua(
                "snapshot.lua",
                ("prefix .. 'queues', ARGV[3], QUEUES,", "prefix .. 'queues', ARGV[3], 1000000,"),
            ),
            lua(
                "snapshot.lua",
                (
                    "prefix .. 'lobby:' .. name\n  local size",
                    "prefix .. 'lobby:' .. name\n  local size = 0 --",
                ),
                test=_COSTS + "test_what_limiters_are_told_of_is_shared_between_calls",
            ),
        ),
    ),
    Guard(
        "left for later",
        "a queue for which a call had no room is in the snapshot all the same",
        SUITE + "test_snapshots.py::test_the_snapshot_has_the_tenants_of_many_queues",
        (lua("snapshot.lua", ("    left[#left + 1] = name\n", "")),),
    ),
    Guard(
        "workers by parts",
        "thousands of workers do not hold up the server",
        _COSTS + "test_thousands_of_queues_and_workers_are_read_in_short_calls[workers]",
        (lua("workers.lua", ("'COUNT', PART)", "'COUNT', 1000000)")),),
    ),
    Guard(
        "queues by parts",
        "figures of thousands of queues do not hold up the server",
        _COSTS + "test_thousands_of_queues_and_workers_are_read_in_short_calls[stats]",
        (lua("stats.lua", ("ARGV[4], 'COUNT', QUEUES)", "ARGV[4], 'COUNT', 1000000)")),),
    ),
    Guard(
        "step of gaps",
        "a tenant that cancels much does not hold up the server",
        _GAPS + "test_entries_of_earlier_tasks_with_the_same_id_are_gaps",
        (
            lua("lib/queue.lua", ("place + LOOKED - 1)", "place + 1000000)")),
            lua(
                "lib/queue.lua",
                ("if bytes > LOOKED_BYTES and i > 1 then", "if false then"),
                test=_GAPS
                + "test_closing_gaps_reads_few_messages_at_a_time_however_large_they_are",
            ),
        ),
    ),
    Guard(
        "place in gaps",
        "gaps behind tasks that wait are found",
        _GAPS
        + "test_gaps_are_closed_step_by_step_behind_tasks_that_wait_and_while_some_are_fetched"
        "[made]",
        (
            lua("lib/queue.lua", ("found[1] + passed + close_gap(", "found[1] + 0 * close_gap(")),
            lua("lib/queue.lua", ("-gone or gone, GONE)", "-gone or gone, key)")),
        ),
    ),
)
