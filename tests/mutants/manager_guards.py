"""Guards of the manager: terms, doubt, and the order in which rows are compared and changed."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_MANAGER = "fairlead/manager/"
_SQL = "fairlead/ledger/sql/"
_TESTS = "tests/manager/"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "term of a claim",
        "a leader that was replaced claims no row",
        _TESTS + "test_leader.py::test_what_an_earlier_term_does_is_refused_by_ledger_and_broker",
        _at(
            _SQL + "dispatcher.sql",
            "t.due_at <= statement_timestamp() and exists (select from holds)",
            "t.due_at <= statement_timestamp()",
        ),
    ),
    Guard(
        "number of a term",
        "a leader that was replaced sends nothing to the broker",
        _TESTS + "test_leader.py::test_the_first_call_of_a_term_comes_before_anything_else",
        _at(
            _MANAGER + "leader_term.py", "Caller(LINE, first=number, ", 'Caller(f"{LINE}{number}", '
        ),
    ),
    Guard(
        "caught up before the release",
        "what ran and was forgotten under a claim is not sent again",
        _TESTS + "test_dispatcher.py::"
        "test_what_ran_and_was_forgotten_under_a_claim_is_not_sent_again",
        _at(_MANAGER + "dispatcher.py", "        await self._catch_up()\n", ""),
    ),
    Guard(
        "caught up before the change",
        "what ended before the broker was asked is not taken for lost",
        _TESTS + "test_auditor.py::test_what_ended_and_was_forgotten_before_the_look_stays_over",
        _at(
            _MANAGER + "comparison.py", "            await self.catch_up()\n", "            pass\n"
        ),
    ),
    Guard(
        "last event of a row",
        "a row that moved on since it was read is not sent again",
        _TESTS + "test_janitor.py::test_a_row_that_moved_on_since_it_was_read_stays",
        (
            Mutant(
                _SQL + "janitor.sql",
                (
                    (
                        "t.state = 'running' and (t.last_entry, t.last_index) = (g.entry, g.index)",
                        "t.state = 'running'",
                    ),
                ),
            ),
            Mutant(
                _SQL + "auditor.sql",
                (
                    (
                        "t.state not in ('pending', 'claimed')\n"
                        "  and (t.last_entry, t.last_index) = (g.entry, g.index)",
                        "t.state not in ('pending', 'claimed')",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "page of the auditor",
        "a page that could not be compared is not passed over",
        _TESTS + "test_auditor.py::test_a_page_that_could_not_be_compared_comes_again",
        _at(
            _MANAGER + "auditor.py",
            "        rows, states, behind = await self._next_rows()\n",
            "        rows, states, behind = await self._next_rows()\n"
            "        self._states, self._behind = states, behind\n",
        ),
    ),
    Guard(
        "claim of a confirmation",
        "a row that the recorder moved on stays as it is",
        _TESTS + "test_dispatcher.py::test_only_what_is_still_claimed_is_confirmed",
        _at(
            _SQL + "dispatcher.sql",
            "t.id = any(%(ids)b) and t.state = 'claimed' and t.claimed_term = %(term)s\n",
            "t.id = any(%(ids)b)\n",
        ),
    ),
)
