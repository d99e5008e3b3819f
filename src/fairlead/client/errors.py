"""Errors that callers get: of refused submissions, unknown options, and names of other queues."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeVar

from fairlead.broker.requests import Receipt, Submission
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    Fenced,
    InvalidInput,
    QueueFull,
    Refused,
    UnknownDependency,
)

T = TypeVar("T")


def about(error: BrokerError, submission: Submission) -> None:
    """Say which task an error is about: the caller has no handle, and may have no id."""
    message = submission.message
    error.ids = (message.id,)
    if isinstance(error, Ambiguous):
        error.add_note(
            f"Task {message.id!r} of tenant {message.tenant!r} may have been accepted; its state "
            "(app.handle) tells. enqueue() again is safe with an id of your own, using(id=...); "
            "otherwise it makes another task."
        )


def raise_for(receipt: Receipt, submission: Submission) -> None:
    """Raise the typed error that a refusal stands for."""
    if receipt.code == "accepted":
        return
    error = error_of(receipt, submission)
    if error is not None:
        if isinstance(error, BrokerError):
            error.ids = (submission.message.id,)
        raise error


def error_of(receipt: Receipt, submission: Submission) -> Exception | None:
    """The typed error that a refusal stands for; None if there is a task."""
    message, fence = submission.message, submission.fence
    match receipt.code:
        case "accepted" | "duplicate":
            return None
        case "conflict":
            return Conflict(message.id)
        case "queue_full":
            return QueueFull(message.queue, receipt.limit)
        case "tenant_full":
            return QueueFull(message.queue, receipt.limit, message.tenant)
        case "tenant_bytes":
            return QueueFull(
                message.queue, receipt.limit, message.tenant, setting="max_tenant_bytes"
            )
        case "unknown_dependency":
            return UnknownDependency(message.id, receipt.detail)
        case "fenced":
            return Fenced(fence.id if fence else message.id, fence.token if fence else 0)
        case "closed":
            return Refused("closed", f"the broker is closed; task {message.id!r} was not accepted")
        case "stale":
            return Refused("stale", f"the slot of task {message.id!r} was fired before")


# -- options and attributes that there are not -----------------------------------------------------


def check_options(stated: Iterable[str], known: type, where: str) -> None:
    """Refuse a keyword that the TypedDict ``known`` does not have; the error names a close one."""
    options = known.__annotations__
    for option in stated:
        if option not in options:
            raise no_option(option, options, where, OPTIONS)


def no_option(
    option: str, known: Iterable[str], where: str, habits: Mapping[str, str]
) -> InvalidInput:
    """Return the error of an option that there is not, with a close one or what to use instead."""
    names = list(known)
    close = difflib.get_close_matches(option, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    if option in habits:
        hint = f"; here it is {habits[option]}"
    return InvalidInput(f"{option!r} is no option of {where}{hint} (there are: {', '.join(names)})")


#: Options of ``Fairlead``.
APP_OPTIONS: Mapping[str, str] = {
    "backend": "nothing: results are kept where the tasks are",
    "broker": 'the first argument: Fairlead("redis://...")',
    "broker_url": 'the first argument: Fairlead("redis://...")',
    "connection": 'the first argument: Fairlead("redis://...")',
    "include": "nothing: import the modules that define tasks",
    "key_prefix": "namespace",
    "redis_settings": 'the first argument: Fairlead("redis://...")',
    "redis_url": 'the first argument: Fairlead("redis://...")',
    "result_backend": "nothing: results are kept where the tasks are",
}

#: Options of tasks and calls.
OPTIONS: Mapping[str, str] = {
    "acks_late": "nothing: a task is given back if its worker dies",
    "args": "the arguments of enqueue",
    "attempts": "max_retries",
    "autoretry_for": "retry_on",
    "bind": "a first parameter that is annotated Context",
    "countdown": "delay",
    "default_retry_delay": "backoff",
    "eta": "at",
    "expires": "deadline",
    "ignore_result": "retention=0",
    "job_id": "id",
    "job_timeout": "timeout",
    "kwargs": "the arguments of enqueue",
    "max_tries": "max_retries, which does not count the first attempt",
    "min_backoff": "backoff",
    "queue_name": "queue",
    "rate_limit": "limiters, and app.declare_limiter(..., rate=...)",
    "result_ttl": "retention",
    "retry_backoff": "backoff",
    "retry_jitter": "backoff",
    "run_at": "at",
    "soft_time_limit": "timeout",
    "task_id": "id",
    "throws": "give_up_on",
    "time_limit": "timeout",
}

#: Attributes of tasks.
TASK: Mapping[str, str] = {
    "apply": "call the task like a function, or use app.drain() in tests",
    "apply_async": "use task.using(delay=..., at=..., queue=...).enqueue(...)",
    "delay": "use task.enqueue(...), or in async code: await task.aenqueue(...)",
    "enqueue_at": "use task.using(at=...).enqueue(...)",
    "enqueue_in": "use task.using(delay=...).enqueue(...)",
    "kiq": "use await task.aenqueue(...)",
    "message": "use task.call(...)",
    "retry": "raise Retry(delay=...) in the handler",
    "s": "use task.call(...)",
    "send": "use task.enqueue(...)",
    "send_with_options": "use task.using(...).enqueue(...)",
    "si": "use task.call(...)",
    "signature": "use task.call(...)",
    "starmap": "use app.enqueue_many(task.call(*each) for each in ...)",
    "update_state": "use ctx.progress(...) in the handler",
}

#: Attributes of handles.
HANDLE: Mapping[str, str] = {
    "abort": "use handle.cancel()",
    "failed": "compare handle.state with State.DEAD",
    "forget": "use handle.delete()",
    "get": "use handle.result(timeout=...), or in async code: await handle.aresult(timeout=...)",
    "get_status": "use handle.state",
    "ready": "compare handle.state with State.COMPLETED, DEAD and CANCELLED",
    "return_value": "use handle.result(timeout=0)",
    "revoke": "use handle.cancel()",
    "status": "use handle.state, or in async code: await handle.astate()",
    "successful": "compare handle.state with State.COMPLETED",
    "traceback": "use handle.info().error",
    "wait": "use handle.result(timeout=...)",
}

#: Attributes of apps.
APP: Mapping[str, str] = {
    "AsyncResult": "use app.handle(id)",
    "actor": "use @app.task",
    "autodiscover_tasks": "import the modules that define tasks",
    "conf": "use the arguments of Fairlead(...), fairlead.toml or FAIRLEAD_* variables",
    "enqueue": "use task.enqueue(...), or app.send(name, ...)",
    "enqueue_job": "use await task.aenqueue(...), or await app.asend(name, ...)",
    "job": "use @app.task",
    "send_task": "use app.send(name, ...)",
    "start": "use async with app.worker(): ..., or the command fairlead worker",
    "worker_main": "use the command fairlead worker",
}


def telling(habits: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Make the AttributeErrors of these names say what to use instead.

    A ``__getattr__`` would do the same, and make each use of what there is three times as long.
    """

    def told(kind: type[T]) -> type[T]:
        there_is = habits.keys() & dir(kind)
        if there_is:
            raise TypeError(f"{kind.__name__} has what is called a habit: {there_is}")
        for name, instead in habits.items():
            setattr(kind, name, _Habit(name, instead))
        setattr(kind, "__dir__", shown)  # noqa: B010 - a checker takes it for fixed
        return kind

    def shown(owner: object) -> list[str]:
        return [name for name in object.__dir__(owner) if name not in habits]

    return told


class _Habit:
    """A name that is no attribute."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __get__(self, owner: object | None, kind: type) -> NoReturn:
        name = self._name
        raise AttributeError(
            f"{kind.__name__!r} object has no attribute {name!r}; {self._instead}",
            name=name,
            obj=kind if owner is None else owner,
        )
