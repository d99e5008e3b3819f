"""The guards that must not go: where each stands, how it is taken out, which test must notice.

A mutant is a list of replacements in one file. Each ``old`` text must stand there exactly once, so
that a guard which is rewritten cannot slip out of this list unseen.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("GUARDS", "Guard")

MEMORY = "fairlead/broker/memory/"
SUITE = "tests/broker/conformance/"


class Guard(NamedTuple):
    """One guard of the product and the test that stands for it."""

    name: str
    protects: str
    file: str  # below src
    edits: tuple[tuple[str, str], ...]  # old, new
    test: str  # node id


GUARDS = (
    Guard(
        "token",
        "a worker that lost its lease cannot write",
        MEMORY + "records.py",
        ((" and self.token == token", ""),),
        SUITE + "test_xcom.py::test_a_write_with_an_earlier_lease_of_the_same_task_is_fenced",
    ),
    Guard(
        "virtual clock",
        "newcomers cannot starve those who wait",
        MEMORY + "fair.py",
        (("if tenant.tag < self.clock:", "if False:"),),
        SUITE
        + "test_fairness.py::test_new_tenants_without_end_do_not_starve_the_one_that_sorts_last",
    ),
    Guard(
        "local heap of the fetch",
        "a fetch of n serves tenants as n fetches of one would",
        MEMORY + "exchange.py",
        (
            (
                "    now = shard.now\n    while len(taken)",
                "    seen = set()\n    now = shard.now\n    while len(taken)",
            ),
            (
                "tenant = queue.first()\n        if tenant is None:\n            return\n",
                "line = sorted((t.tag, t.name, t) for t in queue.tenants.values()\n"
                "                      if t.status == 'ready')\n"
                "        if not line:\n            return\n"
                "        if all(t.name in seen for _, _, t in line):\n            seen.clear()\n"
                "        tenant = next(t for _, _, t in line if t.name not in seen)\n"
                "        seen.add(tenant.name)\n",
            ),
        ),
        SUITE + "test_fairness.py::test_weights_of_3_1_1_are_served_3_1_1",
    ),
    Guard(
        "cap",
        "a full queue refuses",
        MEMORY + "enqueue.py",
        (("queue.depth >= queue.max_waiting", "False"),),
        SUITE + "test_backlog.py::test_a_queue_that_is_at_its_limit_refuses",
    ),
    Guard(
        "jump guard",
        "a frozen server does not take everyone for dead",
        MEMORY + "recovery.py",
        (("if now < shard.guard_until:", "if False:"),),
        SUITE
        + "test_leases.py::test_after_a_silence_longer_than_a_heartbeat_no_lease_is_ended_for_one",
    ),
    Guard(
        "exchange number",
        "a call whose reply was lost can be asked again",
        MEMORY + "frame.py",
        (("if call.number == last.number:", "if False:"),),
        SUITE + "test_calls.py::test_the_last_number_again_gives_the_same_answers_and_changes"
        "_nothing",
    ),
    Guard(
        "trim",
        "finished work does not grow without end",
        MEMORY + "shard.py",
        (("while trimmed < most and (id :=", "while False and (id :="),),
        SUITE
        + "test_results.py::test_finished_tasks_beyond_the_queues_count_are_forgotten_oldest_first",
    ),
    Guard(
        "cycle check",
        "tasks never wait for each other",
        "fairlead/model/graph.py",
        (("raise DependencyCycle(error.args[1][::-1]) from None", "return list(edges)"),),
        "tests/model/test_graph.py::test_a_cycle_is_refused_with_its_path",
    ),
    Guard(
        "crash count",
        "a task that kills its process is taken out",
        "fairlead/model/lifecycle.py",
        (("State.DEAD if crashes >= CRASH_LIMIT else State.QUEUED", "State.QUEUED"),),
        SUITE + "test_leases.py::test_the_third_crash_in_a_row_is_poison",
    ),
    Guard(
        "unique",
        "one task at a time for a key",
        MEMORY + "enqueue.py",
        (("        if holder is not None:\n", "        if False:\n"),),
        SUITE + "test_unique.py::test_a_unique_key_that_is_held_makes_a_duplicate_that_names_the"
        "_holder",
    ),
    Guard(
        "TTL",
        "an XCom value is gone when its time is over",
        MEMORY + "orders.py",
        (("ends is not None and ends > shard.now", "ends is not None"),),
        SUITE + "test_xcom.py::test_pull_answers_none_where_the_ttl_is_over",
    ),
    Guard(
        "pause",
        "a paused queue hands nothing out",
        MEMORY + "exchange.py",
        (("queue is not None and not queue.paused and", "queue is not None and"),),
        SUITE + "test_limits.py::test_a_paused_queue_is_passed_over_and_takes_tasks_in",
    ),
)
