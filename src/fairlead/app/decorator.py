"""``app.task`` and ``app.schedule``: make tasks of functions, and declare schedules of tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from fairlead.client import AsyncTask, Clients, Sender, SyncTask, Task, TaskOptions, declared
from fairlead.client.schedule_spec import declaration, rule_of
from fairlead.model.backoff import Backoff
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry
from fairlead.model.schedule import TimingOptions
from fairlead.worker.run.context import Context

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Sender[..., Any])


class _Anything:
    """Nobody's value: only a first parameter that says nothing of its type takes it, and only a
    function returns it that says nothing of what it returns, or never returns."""


class SyncContextTask(Task[P, R]):
    """A registered ``def`` with a ``Context``, which a direct call brings along."""

    if TYPE_CHECKING:  # the signature alone: the call itself is that of every task

        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncContextTask(Task[P, R]):
    """A registered ``async def`` with a ``Context``, which a direct call brings along."""

    if TYPE_CHECKING:

        def __call__(
            self, context: Context, /, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]: ...


class TaskDecorator(Protocol):
    """What ``app.task(...)`` returns: makes a task of a function, with the options given."""

    # The overloads overlap on purpose: an async function is also one that returns a coroutine, and
    # one that takes a context is also one that takes something. The first that fits counts. A first
    # parameter without a type would fit a context as well, which it is not, and a function that
    # returns ``Any`` would fit a coroutine function: so both come first.
    @overload
    def __call__(
        self, function: Callable[Concatenate[_Anything, P], _Anything], /
    ) -> SyncTask[..., Any]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], _Anything], /
    ) -> SyncContextTask[P, Any]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, _Anything], /
    ) -> SyncTask[P, Any]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> SyncTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> SyncContextTask[P, R]: ...
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
    """Registers functions as tasks of an app."""

    def __init__(
        self, registry: Registry, clients: Clients, priorities: Priorities, defaults: TaskOptions
    ) -> None:
        """``defaults`` are the options of tasks that say nothing of them; checked now."""
        self._registry = registry
        self._clients = clients
        self._priorities = priorities
        self._defaults = defaults
        declared(_nothing, defaults, priorities, None)

    def register(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        """Register a function with these options, and return the task.

        One of another app, or of this one, may be registered again: its function is what counts.
        """
        if isinstance(function, Task):
            function = vars(function)["__wrapped__"]
        said: TaskOptions = {**self._defaults, **options}
        spec = declared(function, said, self._priorities, Context)
        self._registry.add(spec)
        kind = _KINDS[spec.is_async, spec.takes_context]
        return kind(spec, self._clients, self._priorities, self._registry)


_KINDS: dict[tuple[bool, bool], type[Task[..., Any]]] = {  # async or not, with a context or without
    (False, False): SyncTask,
    (False, True): SyncContextTask,
    (True, False): AsyncTask,
    (True, True): AsyncContextTask,
}


def _nothing() -> None:
    """Stands for a handler."""


# As those of the decorator, and one for the options. A method, not an object that is called: with
# that, editors would not show the texts of the options.
@overload
def task(
    app: Fairlead, function: Callable[Concatenate[_Anything, P], _Anything], /
) -> SyncTask[..., Any]: ...
@overload
def task(  # type: ignore[overload-overlap]
    app: Fairlead, function: Callable[Concatenate[Context, P], _Anything], /
) -> SyncContextTask[P, Any]: ...
@overload
def task(  # type: ignore[overload-overlap]
    app: Fairlead, function: Callable[P, _Anything], /
) -> SyncTask[P, Any]: ...
@overload
def task(  # type: ignore[overload-overlap]
    app: Fairlead, function: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
) -> AsyncTask[..., R]: ...
@overload
def task(
    app: Fairlead, function: Callable[Concatenate[_Anything, P], R], /
) -> SyncTask[..., R]: ...
@overload
def task(  # type: ignore[overload-overlap]
    app: Fairlead, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
) -> AsyncContextTask[P, R]: ...
@overload
def task(
    app: Fairlead, function: Callable[Concatenate[Context, P], R], /
) -> SyncContextTask[P, R]: ...
@overload
def task(  # type: ignore[overload-overlap]
    app: Fairlead, function: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncTask[P, R]: ...
@overload
def task(app: Fairlead, function: Callable[P, R], /) -> SyncTask[P, R]: ...
@overload
def task(app: Fairlead, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
def task(
    app: Fairlead, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
) -> Any:
    """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail", ...)``.

    It can still be called like a function. A first parameter annotated ``Context`` is filled in by
    the worker and left out when the task is enqueued.
    """
    if function is not None:
        return app._registrar.register(function, options)
    return lambda function: app._registrar.register(function, options)


def schedule(
    app: Fairlead,
    cron: str | None = None,
    *,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **when: Unpack[TimingOptions],
) -> Callable[[T], T]:
    """Declare a schedule of a task: ``@app.schedule("0 2 * * *", tz=...)`` above ``@app.task``.

    Workers write it when they start. Without a ``name`` it has the task's; ``args`` and
    ``kwargs`` are those of the calls. For other options of a call, pass what ``using`` returns:
    ``app.schedule(every="5m", name="poll-acme")(poll.using(tenant="acme"))``.

    Args:
        cron: A cron expression such as "0 2 * * *". Default: none; then every= or at=.
        name: The name of the schedule. Default: that of the task.
        args: What its tasks are called with by position. Default: nothing.
        kwargs: What its tasks are called with by name. Default: nothing.
    """
    rule = rule_of(cron, when)

    def declare(task: T) -> T:
        if not isinstance(task, Sender):
            raise InvalidInput(
                f"{task!r} is no task: @app.schedule stands above @app.task, not below it"
            )
        app._schedules._add(declaration(name, task.call(*args, **(kwargs or {})), rule))
        return task

    return declare
