"""What a caller may ask for when a task is registered or enqueued, and the limits of it.

``Options`` holds only what was said; ``merged`` lays the words of a call over those of the task,
``resolved`` fills in the defaults and checks every value. Errors name the option and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import UNSET, UnsetType

from fairlead.model.durations import Duration as Duration
from fairlead.model.durations import duration_rule, in_seconds
from fairlead.model.errors import InvalidOption, TooLarge
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.moments import Moment, unix_seconds
from fairlead.model.names import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    check_key,
    check_limiter,
    check_queue,
    check_tenant,
    full_id,
    scoped_id,
)
from fairlead.model.priorities import Priorities, Priority

MAX_DEPENDENCIES = 1_000
MAX_LIMITERS = 4
MIN_COST, MAX_COST = 0.001, 1_000.0
MAX_RETRIES = 1_000

UniqueUntil = Literal["started", "done", "window"]


class HasId(Protocol):
    """A handle, or anything else that stands for a task that was accepted once."""

    @property
    def id(self) -> str: ...


class Dependency(msgspec.Struct, frozen=True):
    """One task that another waits for."""

    id: str
    known: bool = False  # given as a handle: once accepted, so if it is unknown now it is done


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """One task at a time for this key of this tenant; a duplicate gets the first one's id."""

    key: str
    until: UniqueUntil = "done"
    window: float = 0.0  # seconds, for until="window"


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for; UNSET where nothing was said."""

    queue: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    priority: Priority | Callable[..., Priority] | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    at: Moment | UnsetType = UNSET  # instead of a delay
    deadline: Duration | UnsetType = UNSET  # must have started within this time from now
    id: str | UnsetType = UNSET
    unique: str | UnsetType = UNSET
    unique_until: Literal["started", "done"] | UnsetType = UNSET
    unique_for: Duration | UnsetType = UNSET
    depends_on: Sequence[HasId | str] | UnsetType = UNSET
    on_dependency_failure: DependencyPolicy | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    cost: float | UnsetType = UNSET
    limiters: Sequence[str] | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    timeout: Duration | UnsetType | None = UNSET
    retention: Duration | UnsetType = UNSET


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Checked options of one call, defaults filled in."""

    queue: str
    tenant: str
    level: int
    delay: float
    at: float | None  # unix seconds; the delay is until then
    deadline: float | None
    id: str | None  # scoped to the tenant; None: to be made
    unique: Unique | None
    depends_on: tuple[Dependency, ...]
    on_dependency_failure: DependencyPolicy
    correlation_id: str | None
    cost: float
    limiters: tuple[str, ...]
    max_retries: int | None
    timeout: float | None
    retention: float | None


def merged(base: Options, over: Options) -> Options:
    """``base``, with whatever ``over`` says laid over it."""
    said = {
        name: value
        for name in over.__struct_fields__
        if (value := getattr(over, name)) is not UNSET
    }
    return msgspec.structs.replace(base, **said) if said else base


def resolved(
    options: Options,
    priorities: Priorities,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    task: str = "",
) -> Resolved:
    """Check every value and fill in the defaults; the arguments are there for a priority function.

    A unique key is scoped to the task's name as well: two tasks may use the same keys.
    """
    tenant = _default(options.tenant, DEFAULT_TENANT)
    tenant = tenant if tenant is DEFAULT_TENANT else check_tenant(tenant)
    queue = _default(options.queue, DEFAULT_QUEUE)
    priority = options.priority
    if callable(priority):
        level = priorities.level(priority(*args, **(kwargs or {})))
    else:
        level = priorities.default if priority is UNSET else priorities.level(priority)
    policy = _default(options.on_dependency_failure, "dead")
    if policy not in get_args(DependencyPolicy):
        choices = ", ".join(get_args(DependencyPolicy))
        raise InvalidOption("on_dependency_failure", policy, f"one of {choices}")
    timeout = _default(options.timeout, None)
    return Resolved(
        queue=queue if queue is DEFAULT_QUEUE else check_queue(queue),
        tenant=tenant,
        level=level,
        delay=0.0 if options.delay is UNSET else seconds("delay", options.delay),
        at=_moment(options),
        deadline=None if options.deadline is UNSET else seconds("deadline", options.deadline),
        id=None if options.id is UNSET else scoped_id(tenant, options.id),
        unique=_unique(options, task),
        depends_on=_dependencies(options, tenant),
        on_dependency_failure=policy,
        correlation_id=(
            None
            if options.correlation_id is UNSET
            else check_key("correlation id", options.correlation_id)
        ),
        cost=_cost(options.cost),
        limiters=_limiters(options.limiters),
        max_retries=_retries(options.max_retries),
        timeout=None if timeout is None else seconds("timeout", timeout, least=0.001),
        retention=None if options.retention is UNSET else seconds("retention", options.retention),
    )


def seconds(option: str, value: object, *, least: float = 0.0) -> float:
    """A duration in seconds: a number, a timedelta or text such as "90s", "5m", "1h", "7d"."""
    number = in_seconds(value, least)
    if number is None:
        raise InvalidOption(option, value, duration_rule(least))
    return number


def _default(value: Any, default: Any) -> Any:
    return default if value is UNSET else value


def _moment(options: Options) -> float | None:
    if options.at is UNSET:
        return None
    if options.delay is not UNSET:
        raise InvalidOption("at", options.at, "given without delay")
    return unix_seconds("at", options.at)


def _unique(options: Options, task: str) -> Unique | None:
    if options.unique is UNSET:
        for option in ("unique_until", "unique_for"):
            if getattr(options, option) is not UNSET:
                raise InvalidOption(option, getattr(options, option), "given together with unique")
        return None
    key = check_key("unique key", options.unique)
    key = f"{task}\x1f{key}" if task else key  # neither of the two may hold a control character
    if options.unique_for is not UNSET:
        if options.unique_until is not UNSET:
            raise InvalidOption("unique_for", options.unique_for, "given without unique_until")
        window = seconds("unique_for", options.unique_for, least=0.001)
        return Unique(key=key, until="window", window=window)
    until = _default(options.unique_until, "done")
    if until not in ("started", "done"):
        raise InvalidOption("unique_until", until, '"started" or "done"')
    return Unique(key=key, until=until)


def _dependencies(options: Options, tenant: str) -> tuple[Dependency, ...]:
    if options.depends_on is UNSET:
        return ()
    if isinstance(options.depends_on, str) or not isinstance(options.depends_on, Iterable):
        raise InvalidOption("depends_on", options.depends_on, "a list of handles or ids")
    found: dict[str, Dependency] = {}
    for item in options.depends_on:
        if isinstance(item, str):
            id = full_id(tenant, item)
            found.setdefault(id, Dependency(id))
        else:
            known: object = getattr(item, "id", None)
            if not isinstance(known, str):
                raise InvalidOption("depends_on", item, "a list of handles or ids")
            found[known] = Dependency(known, known=True)
    if len(found) > MAX_DEPENDENCIES:
        raise TooLarge("depends_on", len(found), MAX_DEPENDENCIES, "tasks")
    return tuple(found.values())


def _cost(value: Any) -> float:
    if value is UNSET:
        return 1.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared before it becomes a float: of a huge integer there is none. NaN fails as well.
    if not is_number or not MIN_COST <= value <= MAX_COST:
        raise InvalidOption("cost", value, f"a number from {MIN_COST:g} to {MAX_COST:g}")
    return float(value)


def _limiters(value: object) -> tuple[str, ...]:
    if value is UNSET:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption("limiters", value, "a list of limiter names")
    names = tuple(dict.fromkeys(check_limiter(name) for name in value))
    if len(names) > MAX_LIMITERS:
        raise TooLarge("limiters", len(names), MAX_LIMITERS, "names")
    return names


def _retries(value: object) -> int | None:
    if value is UNSET:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_RETRIES:
        raise InvalidOption("max_retries", value, f"a whole number from 0 to {MAX_RETRIES}")
    return value
