"""Guards of tasks that are enqueued in a caller's transaction."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_OUTBOX = "tests/client/test_outbox.py::"
_HANDLE = "tests/client/test_ledger_handle.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "unsure handle",
        "a child does not run before a parent that the broker does not know yet",
        _OUTBOX + "test_what_a_transaction_enqueued_must_be_known_before_it_counts_as_done",
        (
            Mutant(
                "fairlead/client/call.py",
                ((" or (isinstance(item, Handle) and not item.is_accepted)", ""),),
            ),
            Mutant("fairlead/client/ledger_handle.py", (("known=self._is_seen", "known=True"),)),
        ),
    ),
    Guard(
        "parents first",
        "what a batch depends on is written, and so sent, before it",
        _OUTBOX + "test_a_batch_is_written_with_parents_first",
        (
            Mutant(
                "fairlead/client/outbox.py",
                (("written = ordered(submissions)", "written = list(submissions)"),),
            ),
        ),
    ),
    Guard(
        "statements at home",
        "a caller's connection is never used on another thread",
        _OUTBOX + "test_middleware_is_around_sync_enqueues_and_statements_stay_on_the_thread",
        (
            Mutant(
                "fairlead/client/outbox.py",
                (
                    (
                        "return await asyncio.wrap_future(written)",
                        "written.set_result(write(given))\n"
                        "            return await asyncio.wrap_future(written)",
                    ),
                    ("written.set_result(write(given))\n        except", "pass\n        except"),
                ),
            ),
        ),
    ),
    Guard(
        "claimed rows are not cancelled",
        "what a manager is sending is cancelled where it arrives",
        _HANDLE + "test_what_is_being_sent_is_cancelled_at_the_broker_once_it_is_there",
        (
            Mutant(
                "fairlead/ledger/sql/outbox.sql",
                (
                    (
                        "update fairlead.tasks\n"
                        "set state = 'cancelled', reason = 'cancelled', "
                        "updated_at = clock_timestamp(),\n"
                        "    finished_at = clock_timestamp()\n"
                        "where id = %(id)s and tenant = %(tenant)s and state = 'pending'",
                        "update fairlead.tasks\n"
                        "set state = 'cancelled', reason = 'cancelled', "
                        "updated_at = clock_timestamp(),\n"
                        "    finished_at = clock_timestamp(), claimed_term = null\n"
                        "where id = %(id)s and tenant = %(tenant)s",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "cancelled on both sides",
        "what a manager that died had sent does not run after its cancel",
        _HANDLE + "test_what_a_dead_manager_had_sent_is_cancelled_at_the_broker_too",
        (
            Mutant(
                "fairlead/client/ledger_handle.py",
                (("            if pushes:  # a manager", "            if False:  # a manager"),),
            ),
        ),
    ),
)
