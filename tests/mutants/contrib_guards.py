"""Guards of what joins Fairlead with web frameworks."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(f"fairlead/contrib/{file}", ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "end of a web server",
        "what is being enqueued is finished, and the app closed, when the server stops",
        "tests/contrib/test_starlette.py::test_the_end_of_the_server_closes_the_app",
        _at("starlette.py", "await stack.enter_async_context(app)\n", "pass\n"),
    ),
    Guard(
        "mounted API",
        "streams of a mounted API end with the server: nobody runs its lifespan",
        "tests/contrib/test_starlette.py::"
        "test_a_mounted_api_ends_with_the_server_and_may_begin_again",
        _at("starlette.py", "        api.drain()\n", "        pass\n"),
    ),
    Guard(
        "Django's commit",
        "a task of Django is not enqueued before its transaction commits, nor if it does not",
        "tests/contrib/test_django.py::test_the_backend_keeps_what_django_says_of_backends",
        _at("django/backend.py", "connections[database].in_atomic_block", "False"),
    ),
    Guard(
        "context of an attempt",
        "each attempt has an application context of Flask's of its own",
        "tests/contrib/test_flask.py::"
        "test_each_attempt_has_a_context_of_its_own_in_threads_and_on_the_loop",
        _at("flask.py", "        queue.around_run(self._in_context)\n", ""),
    ),
)
