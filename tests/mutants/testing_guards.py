"""Guards of the testing kit: a kit that is not empty, or forgives a crash, makes tests lie."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/testing/test_kit.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(f"fairlead/{file}", ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "no fallback in tests",
        "a test of an app with a spool writes nothing to the spool of the program",
        _TESTS + "test_an_app_with_any_url_is_tested_in_memory",
        _at(
            "client/clients.py",
            "self._use(store, ledger, None)",
            "self._use(store, ledger, self.fallback)",
        ),
    ),
    Guard(
        "app as it was",
        "after a test the app has its own broker again",
        _TESTS + "test_an_app_with_any_url_is_tested_in_memory",
        _at("client/clients.py", "                self._use(*kept)\n", "                pass\n"),
    ),
    Guard(
        "outcome of a dead worker",
        "a worker that died with an outcome in hand settles nothing",
        _TESTS + "test_a_worker_may_die_at_each_transition",
        _at("testing/recording_broker.py", 'crashes.ends(settlements, "finished", who)', "False"),
    ),
    Guard(
        "whom a crash is charged to",
        "a crash while a task runs uses up one of its attempts",
        _TESTS + "test_a_task_that_takes_three_workers_down_is_dead",
        _at("testing/crashes.py", "self._die(incarnation, hit)", "self._die(incarnation, ())"),
    ),
    Guard(
        "errors that were told before",
        "a drain raises what happened in it, not what an earlier one met",
        _TESTS + "test_errors_of_an_earlier_drain_are_not_raised_again",
        _at(
            "app/drain.py",
            "if all(each is not old for old in before)]",
            "if before or True]",
        ),
    ),
)
