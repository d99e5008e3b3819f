"""What ``@app.task`` is told about a function, and the registered task that comes of it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, Protocol, TypedDict

import msgspec
from msgspec import UNSET

from fairlead.client.errors import check_options
from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.errors import DependencyCycle, InvalidInput, InvalidOption
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.message import MAX_CRASHES
from fairlead.model.options import Duration, Options, resolved
from fairlead.model.priorities import Priorities, Priority
from fairlead.model.registry import MAX_VERSION, TaskBreaker, TaskSpec
from fairlead.model.sizes import in_bytes, size_rule
from fairlead.runtime.process_memory import can_measure

_Errors = type[BaseException] | Sequence[type[BaseException]]
_POLICY = ("max_retries", "backoff", "retry_on", "give_up_on", "backoff_for")


class HasTaskId(Protocol):
    """A task that declares the id of its calls."""

    @property
    def declared_id(self) -> str: ...


class TaskOptions(TypedDict, total=False):
    """What ``@app.task`` takes. Durations are seconds, a timedelta, or text such as "1h"."""

    name: str
    """The name that is stored with each call. Default: the module and the name of the function."""
    queue: str
    """The queue of its calls. Default: "default"."""
    tenant: str
    """The tenant of its calls. Default: "default"."""
    priority: Priority | Callable[..., Priority]
    """A level ("critical", "high", "normal", "low"), a name or number of the app, or a function
    of the arguments of a call that returns one. Default: "normal"."""
    max_retries: int
    """How many attempts may follow the first, 0 to 1000. Default: that of the app, else 5."""
    max_crashes: int
    """How many crashes in a row a call survives, 0 to 100. Default: a crash uses up an attempt,
    and the third in a row is the end."""
    backoff: Backoff
    """How long to wait before a retry. Default: that of the app, else ``Backoff()``."""
    backoff_for: Mapping[type[BaseException], Backoff]
    """A ``Backoff`` by class of exception; the most specific class counts. Default: none."""
    retry_on: _Errors
    """The class or classes of exceptions that are retried. Default: ``Exception``."""
    give_up_on: _Errors
    """The class or classes of exceptions that end the task at once, unless ``retry_on`` is more
    specific. Default: none."""
    timeout: Duration | None
    """How long one attempt may take, in seconds or as a duration such as "5m"; None: no limit.
    Default: ``task_timeout`` of the worker or the app, else no limit."""
    retention: Duration
    """How long a completed call is kept, in seconds or as a duration such as "1h"; 0 forgets it at
    once. Default: that of its queue."""
    id: str
    """The id of all calls that name none: while the broker knows one, another call is the same
    task. Default: a new id for each call."""
    depends_on: Sequence[HasTaskId | str]
    """Ids, or tasks that declare theirs: calls wait until these are completed. Default: none."""
    on_dependency_failure: DependencyPolicy
    """What becomes of a call if a dependency fails: "dead", "cancel", "wait" or "run". Default:
    that of the app, else "dead"."""
    cost: float
    """What one dispatch takes from the tenant's share, 0.001 to 1000. Default: 1."""
    limiters: Sequence[str]
    """The names of up to 4 limiters that calls pass. Default: none."""
    unique: str
    """The unique key of all calls that name none: an unfinished one stands for further calls.
    Default: none."""
    unique_until: Literal["started", "done"]
    """Until when a call holds its unique key: "started" or "done". Default: "done"."""
    unique_for: Duration
    """How long a call holds its unique key, in seconds or as a duration such as "10m", instead of
    ``unique_until``. Default: until the task is done."""
    version: int
    """Raise it when old arguments no longer fit, up to 1,000,000: workers with an older version
    leave the call alone. Default: 1."""
    isolation: Literal["process"]
    """"process" runs each attempt in a process that runs nothing else. Default: none."""
    max_memory: int | str
    """How much memory an attempt may use with ``isolation="process"``: bytes, or text such as
    "512MB". Default: no limit."""
    breaker: TaskBreaker
    """A ``Breaker`` that opens after failures in a row; tasks may share it. Default: none."""


def declared(
    function: Callable[..., Any],
    options: TaskOptions,
    priorities: Priorities,
    context_type: type | None,
) -> TaskSpec:
    """The task to register. Every option is checked now, not at the first call."""
    if not callable(function):
        raise InvalidInput(f"{function!r} cannot be a task: it is not a function")
    if any(map(_yields, (function, type(function).__call__))):
        raise InvalidInput(f"{function!r} cannot be a task: nobody would take what it yields")
    said: dict[str, Any] = dict(options)
    check_options(said, TaskOptions, "@app.task")
    name = said.pop("name") if "name" in said else name_of(function)
    version = said.pop("version", 1)
    if not isinstance(version, int) or not 1 <= version <= MAX_VERSION:
        raise InvalidOption("version", version, f"a whole number from 1 to {MAX_VERSION}")
    isolation, max_memory = _isolation(said)
    max_crashes = _crashes(said.pop("max_crashes", None))
    breaker = said.pop("breaker", None)
    if breaker is not None and not callable(getattr(breaker, "admit", None)):
        raise InvalidOption("breaker", breaker, "a Breaker, e.g. Breaker(failures=5)")
    if "depends_on" in said:
        said["depends_on"] = _dependencies(said["depends_on"])
        if said.get("id") in said["depends_on"]:
            raise DependencyCycle([said["id"], said["id"]])
    policy = _policy({key: said[key] for key in _POLICY if key in said})
    stated = Options(**{key: value for key, value in said.items() if key not in _POLICY[1:]})
    # What a priority function answers is checked at each call.
    by_arguments = callable(stated.priority)
    fixed = msgspec.structs.replace(stated, priority=UNSET) if by_arguments else stated
    resolved(fixed, priorities)
    try:
        return TaskSpec(
            name,
            function,
            options=stated,
            policy=policy,
            version=version,
            context_type=context_type,
            isolation=isolation,
            max_memory=max_memory,
            max_crashes=max_crashes,
            breaker=breaker,
        )
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{function!r} cannot be a task: {error}") from None


def _dependencies(given: Any) -> tuple[str, ...]:
    """The ids of what a task depends on."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidOption("depends_on", given, "a list of ids, or of tasks that declare one")
    ids: list[str] = []
    for each in given:
        id = each if isinstance(each, str) else getattr(each, "declared_id", "")
        if not id:
            raise InvalidOption("depends_on", each, "an id, or a task that declares one: id=...")
        ids.append(id)
    return tuple(ids)


def _yields(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _crashes(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and 0 <= value <= MAX_CRASHES):  # type: ignore[operator]
        raise InvalidOption("max_crashes", value, f"a whole number from 0 to {MAX_CRASHES}")
    return value  # type: ignore[return-value]


def _isolation(said: dict[str, Any]) -> tuple[Literal["", "process"], int | None]:
    """Take out where attempts run, and how much memory they may use there."""
    isolation, memory = said.pop("isolation", ""), said.pop("max_memory", None)
    if isolation not in ("", "process"):
        raise InvalidOption("isolation", isolation, "'process' or left out")
    if memory is None:
        return isolation, None
    if not isolation:
        raise InvalidOption("max_memory", memory, "left out, unless with isolation='process'")
    if not can_measure():
        raise InvalidOption("max_memory", memory, "left out on this system, which has no /proc")
    size = in_bytes(memory)
    if size is None:
        raise InvalidOption("max_memory", memory, size_rule())
    return isolation, size


def _policy(said: dict[str, Any]) -> RetryPolicy:
    for option in ("retry_on", "give_up_on"):
        if option in said:
            given = said[option]
            if not isinstance(given, type | Iterable):
                raise InvalidOption(option, given, "an exception class or several")
            said[option] = (given,) if isinstance(given, type) else tuple(given)
    if "backoff_for" in said:
        special = said.pop("backoff_for")
        if not isinstance(special, Mapping):
            raise InvalidOption("backoff_for", special, "a Backoff for each exception class")
        said["per_exception"] = tuple(special.items())
    backoffs = [said["backoff"]] if "backoff" in said else []
    for backoff in (*backoffs, *(each for _, each in said.get("per_exception", ()))):
        if not isinstance(backoff, Backoff):
            raise InvalidOption("backoff", backoff, "a Backoff, e.g. Backoff(initial=1, max=60)")
    return RetryPolicy(**said)


def name_of(function: Callable[..., Any]) -> str:
    """The name that a function has without being given one."""
    module = getattr(function, "__module__", None) or "unknown"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{_main() if module == '__main__' else module}.{name}"


def _main() -> str:
    """The name under which another process would import the program that runs."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    stem = PurePath(file).stem if file else ""
    return stem if stem.isidentifier() else "__main__"
