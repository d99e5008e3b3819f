"""Guards of what workers tell of their tasks, and of orders to them."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_ARGUMENTS = "tests/model/test_argument_types.py::"
_NAMED = "tests/client/test_named_call.py::"
_ORDERS = "tests/worker/test_orders.py::"
_REAL = "tests/acceptance/test_worker_orders.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "lenient tags",
        "arguments that the worker takes are not refused before it",
        _ARGUMENTS + "test_a_class_is_taken_without_its_tag_as_the_worker_does",
        (
            Mutant(
                "fairlead/model/argument_types.py",
                (("if name not in value and not _is_tag(properties.get(name)):",
                  "if name not in value:"),),
            ),
            Mutant(
                "fairlead/model/parameters.py",
                (("_opened(schema) if schema.get(\"title\") in open_names else _cleaned(schema)",
                  "_cleaned(schema)"),),
                test="tests/model/test_parameters.py::"
                "test_an_enum_names_its_members_unless_it_takes_more",
            ),
        ),
    ),
    Guard(
        "bounded look",
        "a schema of a stranger does not hold up the loop",
        _ARGUMENTS + "test_large_arguments_are_looked_at_in_part_only",
        (Mutant("fairlead/model/argument_types.py", (("_PARTS = 10_000", "_PARTS = 10**9"),)),),
    ),
    Guard(
        "own digest",
        "a document that pretends to be a catalog changes nothing",
        _NAMED + "test_documents_that_are_no_catalogs_are_passed_over",
        (
            Mutant(
                "fairlead/client/catalog.py",
                (("if digest_of(data) != name:", "if False:"),),
            ),
        ),
    ),
    Guard(
        "any worker may run it",
        "a call that fits all releases is not kept for the latest",
        _NAMED + "test_arguments_that_fit_all_releases_may_be_run_by_any",
        (
            Mutant(
                "fairlead/client/catalog.py",
                (("            fitting = entry\n", "            fitting = fitting or entry\n"),),
            ),
        ),
    ),
    Guard(
        "both ask for rest",
        "a signal to go on does not take an order to pause back",
        _ORDERS + "test_it_takes_the_end_of_both_a_signal_and_an_order_to_fetch_again[signal]",
        (
            Mutant(
                "fairlead/worker/processor.py",
                (("self.resting | {by} if quiet else self.resting - {by}",
                  "frozenset({by}) if quiet else frozenset()"),),
            ),
        ),
    ),
    Guard(
        "dismissed",
        "a child that an operator stopped is not replaced",
        _REAL + "test_children_that_are_stopped_are_not_replaced_and_the_last_ends_the_worker",
        (
            Mutant(
                "fairlead/worker/process/supervisor.py",
                (("            if child.dismissed.is_set():\n                self._dismissed += 1",
                  "            if False:\n                self._dismissed += 1"),),
            ),
        ),
    ),
)  # fmt: skip
