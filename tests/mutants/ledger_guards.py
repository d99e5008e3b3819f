"""Guards of the ledger: terms, the order of events, doubt, one migration at a time."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_LEDGER = "fairlead/ledger/"
_TESTS = "tests/ledger/"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "term",
        "a manager that was replaced claims nothing any more",
        _TESTS + "test_outbox.py::test_an_effect_of_an_older_term_changes_nothing",
        (
            Mutant(
                _LEDGER + "sql/dispatcher.sql",
                (
                    (
                        "t.due_at <= statement_timestamp() and exists (select from holds)",
                        "t.due_at <= statement_timestamp()",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "cancelled for a connection",
        "a task that is cancelled while it waits for a connection to the ledger ends",
        _TESTS + "test_pool.py::"
        "test_a_cancellation_that_comes_together_with_something_else_is_not_lost",
        (
            Mutant(
                _LEDGER + "pool.py",
                (("if _cancellations() > cancelled:\n", "if False:\n"),),
            ),
        ),
    ),
    Guard(
        "share of a batch",
        "nobody waits in the ledger behind the flood of another",
        _TESTS + "test_outbox.py::test_a_flood_of_one_tenant_does_not_hold_up_the_others",
        (Mutant(_LEDGER + "sql/dispatcher.sql", (("where c.tenants > 1", "where false"),)),),
    ),
    Guard(
        "size of a batch",
        "large tasks do not fill the memory of a manager",
        _TESTS + "test_outbox.py::test_a_batch_is_limited_by_its_size_too",
        (Mutant(_LEDGER + "sql/dispatcher.sql", (("where w.before < 16777216", ""),)),),
    ),
    Guard(
        "name in a listing",
        "a task is found by what its row says",
        _TESTS + "test_listings.py::test_every_task_is_listed_from_its_enqueue_to_its_removal",
        (
            Mutant(
                _LEDGER + "migrations/0001_tasks.sql",
                (("tenant = new.tenant, name = new.name", "tenant = new.tenant"),),
            ),
        ),
    ),
    Guard(
        "share lock",
        "a new leader begins behind the last effect of the one before",
        _TESTS + "test_leadership.py::test_an_effect_in_flight_delays_the_next_leader",
        (
            Mutant(
                _LEDGER + "sql/recorder.sql",
                (
                    (
                        "for share\n)\ninsert into fairlead.places",
                        "\n)\ninsert into fairlead.places",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "newer event",
        "an older event never covers a newer one",
        _TESTS
        + "test_record_writer.py::test_tasks_come_in_and_older_events_never_cover_newer_ones",
        (
            Mutant(
                _LEDGER + "sql/recorder.sql",
                ((" and (t.last_entry, t.last_index) < (g.last_entry, g.last_index)", ""),),
            ),
        ),
    ),
    Guard(
        "same place",
        "what two recorders read is written once",
        _TESTS
        + "test_record_writer.py::test_rows_and_the_place_are_written_together_or_not_at_all",
        (Mutant(_LEDGER + "sql/recorder.sql", (("where p.entry = %(was_entry)s", "where true"),)),),
    ),
    Guard(
        "doubt in the commit",
        "a commit whose answer was lost may have been done",
        _TESTS + "test_errors.py::test_a_connection_lost_in_the_commit_leaves_doubt",
        (Mutant(_LEDGER + "pool.py", (("is_in_doubt=True", "is_in_doubt=False"),)),),
    ),
    Guard(
        "one migrates",
        "processes that migrate at once do not come into each other's way",
        _TESTS + "test_migrator.py::test_several_at_once_apply_each_once",
        (Mutant(_LEDGER + "migrator.py", (("await _lock(connection, pool, timeout)", "pass"),)),),
    ),
)
