"""Guards of what a worker may lease and for how long."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_WORKER = "fairlead/worker/"
_CAPACITY = "tests/worker/test_capacity.py::"

GUARDS: tuple[Guard, ...] = (
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
                (("            len(queue.kinds) > 1\n", "            len(queue.kinds) > 9\n"),),
            ),
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
            memory("shard.py", ("        if not waits_on:\n", "        if True:\n")),
            lua("lib/queued.lua", ("if not held and task.state", "if task.state")),
        ),
    ),
)
