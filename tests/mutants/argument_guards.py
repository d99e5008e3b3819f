"""Guards of the arguments of calls: what does not fit is refused early, and never retried."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = (
    Guard(
        "argument-types",
        "the short way takes only arguments whose types are known to fit",
        "tests/client/test_argument_types.py::"
        "test_the_short_way_takes_only_types_that_are_known_to_fit[1]",
        (
            Mutant(
                "fairlead/client/template.py",
                (("known = known[type(value)]", "known = next(iter(known.values()))"),),
            ),
        ),
    ),
    Guard(
        "stored-misfits",
        "stored arguments that do not fit are rejected without retries",
        "tests/worker/run/test_executors.py::"
        "test_arguments_of_another_kind_are_rejected_without_retries",
        (
            Mutant(
                "fairlead/worker/run/attempt.py",
                ((" or (isinstance(error, InvalidArgument) and error.stored)", ""),),
            ),
        ),
    ),
    Guard(
        "own-dependency",
        "a task that depends on itself is refused",
        "tests/client/test_declared_dependencies.py::"
        "test_a_cycle_is_refused_before_anything_is_written[memory]",
        (
            Mutant(
                "fairlead/client/call.py",
                (
                    (
                        "if any(dependency.id == self.id for dependency in depends_on):",
                        "if False:",
                    ),
                ),
            ),
        ),
    ),
)
