"""Copies of exceptions, for programs that hand them from process to process.

Python makes a copy by calling the class with the arguments of the exception. Ours have one, the
message, and are made of others: without this, a process pool breaks when one of its processes
raises one, and ``multiprocessing.Pool`` waits for ever.
"""

from __future__ import annotations

from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


def copied(error: E) -> tuple[Any, tuple[type[E], tuple[Any, ...], dict[str, Any]]]:
    """Return what ``__reduce__`` has to return: a copy has the same message and fields."""
    return _copy, (type(error), error.args, vars(error))


def _copy(kind: type[E], args: tuple[Any, ...], fields: dict[str, Any]) -> E:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(fields)
    return error
