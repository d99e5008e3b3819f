"""``app.task``: makes tasks of functions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from fairlead.client import AsyncTask, Clients, SyncTask, Task, TaskOptions, declared
from fairlead.model.backoff import Backoff
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.options import Priorities
from fairlead.model.registry import Registry
from fairlead.worker.context import Context

__all__ = ("TaskDecorator", "TaskRegistrar", "defaults_of")

P = ParamSpec("P")
R = TypeVar("R")


class _Anything:
    """Nobody's argument: only a first parameter that says nothing of its type takes it."""


class TaskDecorator(Protocol):
    """What ``app.task(...)`` returns: makes a task of a function, with the options given."""

    # The overloads overlap on purpose: an async function is also one that returns a coroutine, and
    # one that takes a context is also one that takes something. The first that fits counts. A first
    # parameter without a type would fit a context as well, which it is not.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> SyncTask[..., R]: ...
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


def defaults_of(
    max_retries: int | None, backoff: Backoff | None, on_dependency_failure: DependencyPolicy | None
) -> TaskOptions:
    """Return the options of tasks that say nothing of them, as far as an app says them."""
    defaults: TaskOptions = {}
    if max_retries is not None:
        defaults["max_retries"] = max_retries
    if backoff is not None:
        defaults["backoff"] = backoff
    if on_dependency_failure is not None:
        defaults["on_dependency_failure"] = on_dependency_failure
    return defaults


class TaskRegistrar:
    """Registers a function as a task: ``@app.task`` or ``@app.task(queue="mail", ...)``.

    It can still be called like a function. A first parameter annotated ``Context`` is filled in by
    the worker and left out when the task is enqueued.
    """

    def __init__(
        self, registry: Registry, clients: Clients, priorities: Priorities, defaults: TaskOptions
    ) -> None:
        """``defaults`` are the options of tasks that say nothing of them; checked now."""
        self._registry = registry
        self._clients = clients
        self._priorities = priorities
        self._defaults = defaults
        declared(_nothing, defaults, priorities, None)

    # As those of the decorator, and one for the options.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> SyncTask[..., R]: ...
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
    @overload
    def __call__(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def __call__(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Register a function, or return what will register one with these options."""

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            said: TaskOptions = {**self._defaults, **options}
            spec = declared(function, said, self._priorities, Context)
            self._registry.add(spec)
            kind: type[Task[..., Any]] = AsyncTask if spec.is_async else SyncTask
            return kind(spec, self._clients, self._priorities, self._registry)

        return register if function is None else register(function)


def _nothing() -> None:
    """Stands for a handler."""
