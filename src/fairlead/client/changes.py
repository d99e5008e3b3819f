"""Limits, weights and pauses as an operator says them: checked here, carried out by the broker."""

from __future__ import annotations

from typing import Any, TypedDict, TypeVar, Unpack

from fairlead.broker.verbs import LimiterChange, QueueChange, TenantChange
from fairlead.model.errors import InvalidOption
from fairlead.model.limits import Limit
from fairlead.model.names import check_limiter, check_queue, check_tenant
from fairlead.model.options import Duration, seconds

__all__ = (
    "LimiterSettings",
    "QueueSettings",
    "TenantSettings",
    "limiter_change",
    "queue_change",
    "tenant_change",
)

C = TypeVar("C", QueueChange, TenantChange, LimiterChange)

_MIN_WEIGHT, _MAX_WEIGHT = 0.001, 1_000.0
_DURATIONS = ("keep_completed", "keep_dead")
_COUNTS = (
    "max_waiting", "max_tenant_waiting", "warn_depth",
    "keep_completed_count", "keep_completed_bytes", "keep_dead_bytes",
)  # fmt: skip
_LIMITS = ("concurrency", "rate", "burst")


class LimiterSettings(TypedDict, total=False):
    """At most ``concurrency`` at a time, and ``rate`` a second after ``burst`` at once."""

    concurrency: int | None  # None lifts a limit
    rate: float | None
    burst: int


class TenantSettings(LimiterSettings, total=False):
    """Weight, limits and pause of one tenant."""

    paused: bool
    weight: float


class QueueSettings(LimiterSettings, total=False):
    """Limits, pause and retention of one queue."""

    paused: bool
    max_waiting: int | None
    max_tenant_waiting: int | None
    warn_depth: int | None
    charge_run_time: bool
    keep_completed: Duration
    keep_completed_count: int
    keep_completed_bytes: int
    keep_dead: Duration
    keep_dead_bytes: int


def queue_change(name: str, **settings: Unpack[QueueSettings]) -> QueueChange:
    """The change of one queue; what is not said stays as it is."""
    return _change(QueueChange, {"queue": check_queue(name), **settings})


def tenant_change(
    name: str, queue: str | None = None, **settings: Unpack[TenantSettings]
) -> TenantChange:
    """The change of one tenant, in one queue or in all of them."""
    where = None if queue is None else check_queue(queue)
    return _change(TenantChange, {"tenant": check_tenant(name), "queue": where, **settings})


def limiter_change(name: str, **settings: Unpack[LimiterSettings]) -> LimiterChange:
    """The change of one named limiter."""
    return _change(LimiterChange, {"name": check_limiter(name), **settings})


def _change(kind: type[C], settings: dict[str, Any]) -> C:
    for option in _DURATIONS:
        if option in settings:
            settings[option] = seconds(option, settings[option])
    for option, value in settings.items():
        _check(option, value)
    limits = {option: settings[option] for option in _LIMITS if option in settings}
    Limit(**limits)  # knows the bounds of these three, and raises
    return kind(**settings)


def _check(option: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if option in ("paused", "charge_run_time") and not isinstance(value, bool):
        raise InvalidOption(option, value, "True or False")
    if option == "weight" and not (number and _MIN_WEIGHT <= value <= _MAX_WEIGHT):
        raise InvalidOption(option, value, f"a number from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}")
    if option in _COUNTS:
        liftable = option in ("max_waiting", "max_tenant_waiting", "warn_depth")
        if not (isinstance(value, int) and number and value >= 0) and not (
            liftable and value is None
        ):
            raise InvalidOption(option, value, "a whole number, 0 or more")
    if option in _LIMITS and (value is not None or option == "burst"):
        whole = option != "rate"
        if not number or (whole and not isinstance(value, int)):
            raise InvalidOption(option, value, "a whole number" if whole else "a number")
