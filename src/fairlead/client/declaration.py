"""What ``@app.task`` is told about a function, and the registered task that comes of it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, Protocol, TypedDict

from fairlead.client.stated import check_stated
from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.errors import DependencyCycle, InvalidInput, InvalidOption
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.message import MAX_CRASHES
from fairlead.model.options import Duration, Options, Priorities, Priority, merged, resolved
from fairlead.model.registry import MAX_VERSION, Gate, TaskSpec
from fairlead.model.sizes import in_bytes, size_rule
from fairlead.runtime.resident import can_measure

__all__ = ("TaskOptions", "declared", "name_of")

_Errors = type[BaseException] | Sequence[type[BaseException]]
_POLICY = ("max_retries", "backoff", "retry_on", "give_up_on", "backoff_for")


class HasTaskId(Protocol):
    """A task that declares the id of its calls."""

    @property
    def declared_id(self) -> str: ...


class TaskOptions(TypedDict, total=False):
    """What ``@app.task`` takes. Durations are seconds, a timedelta, or text such as "1h"."""

    name: str  # default: the module and the function's name in it
    queue: str
    tenant: str
    priority: Priority | Callable[..., Priority]  # a function gets the arguments of the call
    max_retries: int
    max_crashes: int  # in a row; without it a crash is a failure like any other
    backoff: Backoff
    backoff_for: Mapping[type[BaseException], Backoff]  # the most specific class counts
    retry_on: _Errors
    give_up_on: _Errors
    timeout: Duration | None
    retention: Duration
    id: str  # of all calls that do not say otherwise: while the broker knows one, it is the same
    depends_on: Sequence[HasTaskId | str]  # ids, or tasks that declare theirs
    on_dependency_failure: DependencyPolicy
    cost: float
    limiters: Sequence[str]
    unique: str  # one at a time, of all calls that do not say otherwise
    unique_until: Literal["started", "done"]
    unique_for: Duration
    version: int  # raise it when old arguments no longer fit
    isolation: Literal["process"]  # each attempt in a process that runs nothing else
    max_memory: int | str  # of that process: bytes, or text such as "512MB"
    breaker: Gate  # a Breaker; several tasks may share it


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
    check_stated(said, TaskOptions, "@app.task")
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
    fixed = merged(stated, Options(priority="normal")) if callable(stated.priority) else stated
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
