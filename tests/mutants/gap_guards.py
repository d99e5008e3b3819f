"""Guards of events that are lost, of large bodies, and of rows that others hold."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/manager/test_gaps.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(f"fairlead/{file}", ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "end in a gap",
        "what ended unseen and was forgotten does not run again",
        _TESTS + "test_what_ended_in_a_gap_and_was_forgotten_does_not_run_again",
        _at(
            "manager/resync.py",
            "            if unknown and await is_same():\n",
            "            if False:\n",
        ),
    ),
    Guard(
        "another server",
        "what another server does not know may be lost, and is sent again",
        _TESTS + "test_after_a_gap_of_another_server_what_is_unknown_is_sent_again",
        _at(
            "manager/resync.py",
            "            if unknown and await is_same():\n",
            "            if unknown:\n",
        ),
    ),
    Guard(
        "place in another generation",
        "rows that were not compared with a new server do not count as forgotten there",
        _TESTS + "test_in_another_generation_nothing_counts_as_forgotten_until_all_was_compared",
        _at(
            "ledger/sql/recorder.sql",
            "then p.replication else '' end",
            "then p.replication else p.replication end",
        ),
    ),
    Guard(
        "flow that ended unseen",
        "a flow that the broker has forgotten is sent again only if its end is not recorded",
        _TESTS + "test_a_flow_that_ended_and_was_not_recorded_yet_is_not_sent_again",
        _at(
            "manager/auditor.py",
            "            await self._comparison.catch_up()\n",
            "            pass\n",
        ),
    ),
    Guard(
        "body that is cut",
        "a task is sent again with all of its body, or not at all",
        "tests/manager/test_recorder.py::test_a_body_that_is_cut_is_never_stored",
        _at("manager/recorder.py", "is_whole=id in details.whole", "is_whole=True"),
    ),
    Guard(
        "rows that others hold",
        "only the recorder waits for rows: no two wait for each other",
        "tests/manager/test_dispatcher.py::test_only_the_recorder_waits_for_rows_that_others_hold",
        _at(
            "ledger/sql/dispatcher.sql",
            "for update of t skip locked\n)\nupdate fairlead.tasks t\nset state = %(state)s,",
            "for update of t\n)\nupdate fairlead.tasks t\nset state = %(state)s,",
        ),
    ),
)
