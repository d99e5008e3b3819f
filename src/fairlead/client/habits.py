"""Names of other task queues: what stands for each here, for the texts of errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

__all__ = ("APP", "HANDLE", "OPTIONS", "TASK", "no_attribute")

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


def no_attribute(owner: object, name: str, habits: Mapping[str, str]) -> NoReturn:
    """Raise the AttributeError of a name that there is not, with what to use instead."""
    kind = type(owner).__name__
    hint = f"; {habits[name]}" if name in habits else ""
    raise AttributeError(f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=owner)
