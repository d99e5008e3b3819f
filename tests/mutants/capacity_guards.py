"""Guards of what a worker may lease and for how long."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_WORKER = "fairlead/worker/"
_CAPACITY = "tests/worker/test_capacity.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "idle outcome",
        "an outcome of a worker that was idle does not wait for others",
        "tests/worker/test_coalescer.py::test_nothing_waits_that_follows_a_rest",
        (
            Mutant(
                _WORKER + "coalescer.py",
                (("if now - self._busy_since < _AGE or", "if"),),
            ),
        ),
    ),
    Guard(
        "hurry",
        "an exchange that has more to say than outcomes does not wait",
        "tests/worker/test_coalescer.py::test_a_hurry_lasts_until_the_next_exchange",
        (
            Mutant(
                _WORKER + "coalescer.py",
                (("self._may_wait = not more", "self._may_wait, self._hurries = not more, False"),),
            ),
        ),
    ),
    Guard(
        "threads",
        "a worker leases no more sync tasks than it has threads for",
        _CAPACITY + "test_two_workers_share_what_neither_has_threads_for_alone",
        (
            Mutant(
                _WORKER + "capacity.py",
                (("return min(free, self._limits[kind] - inflight.kinds[kind])", "return free"),),
            ),
        ),
    ),
    Guard(
        "look behind",
        "an async task does not wait behind sync ones that have no thread",
        _CAPACITY + "test_an_async_task_runs_at_once_behind_sync_ones_without_a_thread",
        (
            Mutant(
                _WORKER + "capacity.py",
                (
                    (
                        "            now >= queue.look_at\n",
                        "            now >= queue.look_at + 60\n",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "empty queues",
        "a worker whose threads are busy hears of all queues, and does not ask without an end",
        _CAPACITY + "test_all_queues_are_heard_while_threads_are_busy",
        (Mutant(_WORKER + "capacity.py", (("if queue.empty or limit >=", "if limit >="),)),),
    ),
    Guard(
        "one clock",
        "a worker that rests knows of every look that is still to come",
        _CAPACITY + "test_a_look_that_falls_due_while_a_worker_decides_to_rest_is_not_missed",
        (
            Mutant(
                _WORKER + "processor.py",
                (("self._capacity.look_in(now)", "self._capacity.look_in(self._runner.now())"),),
            ),
        ),
    ),
    Guard(
        "pace by kind",
        "sync tasks are not held where only async ones end fast",
        _CAPACITY + "test_sync_tasks_are_not_held_by_one_whose_async_ones_are_fast",
        (
            Mutant(
                _WORKER + "capacity.py",
                (
                    ("self.paces[kind].ended += count", "self.paces['thread'].ended += count"),
                    ("return stale", "return []"),
                ),
            ),
        ),
    ),
    Guard(
        "did not run",
        "a hand-back of what did not run ends no row of crashes",
        SUITE + "test_crashes.py::test_what_did_not_run_ends_no_row_of_crashes",
        (
            memory("fairlead/model/lifecycle.py", ("return self.burn or", "return True or")),
            lua("lib/settle.lua", ("burn or run_time > 0 or", "true or")),
        ),
    ),
    Guard(
        "tokens of rates",
        "what is dispatched in vain uses up no rate",
        SUITE + "test_limits.py::test_what_did_not_run_gives_its_rate_tokens_back[*-0]",
        (
            memory("limits.py", ("            self._gone -= 1\n", "            pass\n")),
            lua("lib/settle.lua", ("if not ran then return_rates(task, tenant) end", "")),
        ),
    ),
    Guard(
        "given back in order",
        "what goes back because it cannot begin keeps its order",
        _CAPACITY + "test_what_has_no_thread_begins_in_the_order_of_its_line",
        (
            Mutant(
                _WORKER + "processor.py",
                (("for lease in reversed(leases):", "for lease in leases:"),),
            ),
        ),
    ),
    Guard(
        "waits on",
        "a task that goes back before it began has waited since it could run",
        SUITE
        + "test_stats.py::test_a_task_that_goes_back_before_it_began_has_waited_since_it_could_run"
        "[*-released]",
        (
            memory("transitions.py", ("        if not waits_on:\n", "        if True:\n")),
            lua("lib/accept.lua", ("if not held and task.state", "if task.state")),
        ),
    ),
    Guard(
        "crashes use up attempts",
        "nothing runs more often than max_retries + 1, crashes included",
        SUITE
        + "test_crashes.py::test_nothing_runs_more_often_than_its_message_allows_crashes_included"
        "[*-swept]",
        (
            memory("fairlead/model/retries.py", ("and attempts >= runs else", "and False else")),
            lua("lib/lease.lua", ("if runs > 0 and task.attempts >= runs", "if false")),
        ),
    ),
    Guard(
        "last run",
        "what may not run once more is taken for begun, if nobody saw what its worker had begun",
        SUITE
        + "test_crashes.py::test_what_may_not_run_once_more_is_taken_for_begun_if_nobody_saw_it"
        "[*-swept]",
        (
            memory("recovery.py", ("_may_have_run(task) if", "task.started_at is not None if")),
            lua("lib/lease.lua", ("lay and may_have_run(task)", "lay and task.started > 0")),
        ),
    ),
    Guard(
        "behind its neighbors",
        "what blocked the loop does not come first again",
        SUITE + "test_crashes.py::test_what_blocked_its_neighbors_goes_behind_them_and_runs_alone",
        (
            memory("recovery.py", ("front=not blocked", "front=True")),
            lua("lib/lease.lua", ("queue_up(task, not blocked)", "queue_up(task, true)")),
        ),
    ),
    Guard(
        "runs alone",
        "what blocked the loop runs alone from its next attempt on",
        SUITE + "test_crashes.py::test_what_blocked_its_neighbors_goes_behind_them_and_runs_alone",
        (
            memory("fairlead/model/retries.py", ("ALONE) if blocked", "ALONE) if False")),
            lua("lib/lease.lua", ("blocked and ALONE or 0", "0")),
        ),
    ),
    Guard(
        "overdue",
        "a thread that is over its time keeps its room in limits until it has ended",
        "tests/worker/run/test_overdue.py::"
        "test_a_thread_that_is_over_its_time_keeps_its_room_in_limits",
        (
            Mutant(
                _WORKER + "run/attempt.py",
                (('if self.why != "release" and not env.abandons:', "if False:"),),
            ),
        ),
    ),
)
