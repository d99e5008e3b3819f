"""The type of what ``app.task(...)`` returns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from fairlead.client import AsyncTask, SyncTask, Task
from fairlead.worker.context import Context

__all__ = ("TaskDecorator",)

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """What ``app.task(...)`` returns: makes a task of a function, with the options given."""

    # The overloads overlap on purpose: an async function is also one that returns a coroutine,
    # and one that takes a context is also one that takes something. The first that fits counts.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
