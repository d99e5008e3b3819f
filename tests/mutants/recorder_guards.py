"""Guards of the recorder and the history: each event once, nothing older over newer."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_RECORDER = "tests/manager/test_recorder.py::"
_SQL = "fairlead/ledger/sql/recorder.sql"

GUARDS = (
    Guard(
        "place of the recorder",
        "of two recorders at one place only one writes",
        _RECORDER + "test_of_two_recorders_at_one_place_one_writes",
        (
            Mutant(
                _SQL,
                (
                    (
                        "where p.entry = %(was_entry)s and p.index = %(was_index)s"
                        " and p.generation = %(was_generation)s",
                        "where %(was_entry)s + %(was_index)s >= -1 and"
                        " %(was_generation)s is not null",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "events that were read before",
        "an event that is in the row is not counted again",
        "tests/manager/test_event_changes.py::test_pages_and_repeats_make_no_difference",
        (
            Mutant(
                "fairlead/manager/event_changes.py",
                (("if id in known and (entry, index) <= known[id]:", "if False:"),),
            ),
        ),
    ),
    Guard(
        "gap in the events",
        "rows follow the broker where events were lost, before the place moves on",
        _RECORDER + "test_after_a_gap_unfinished_rows_follow_the_broker[memory]",
        (Mutant("fairlead/manager/recorder.py", (("if ready.read.gap:\n", "if 0:\n"),)),),
    ),
    Guard(
        "rows that were never sent",
        "events of another task with the same id do not end a task that waits to be sent",
        _RECORDER + "test_rows_that_were_sent_move_and_rows_that_were_not_stay",
        (
            Mutant(
                _SQL,
                (
                    (
                        "  and not (t.state = 'pending' and t.pushes = 0 and t.last_entry = 0)\n",
                        "",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "workers in the history of a tenant",
        "a tenant is not told which machines run its tasks",
        "tests/api/test_history.py::test_a_tenant_sees_its_own_and_no_workers",
        (
            Mutant(
                "fairlead/api/routes/history.py",
                (('        fields |= {"worker": "", "host": "", "pid": 0}\n', "        pass\n"),),
            ),
        ),
    ),
)
