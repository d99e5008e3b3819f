"""Limits, weights and pauses as an operator says them, turned into what the broker takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from fairlead.broker.verbs import LimiterChange, QueueChange, TenantChange
from fairlead.client.stated import check_stated
from fairlead.model.errors import InvalidOption
from fairlead.model.names import check_limiter, check_queue, check_tenant
from fairlead.model.options import Duration, seconds
from fairlead.model.rates import RATE_RULE, Rate, in_rate

__all__ = (
    "LimiterSettings",
    "QueueSettings",
    "TenantSettings",
    "limiter_change",
    "queue_change",
    "tenant_change",
)

_SWITCHES = ("paused", "charge_run_time")
_DURATIONS = ("keep_completed", "keep_dead", "cooldown")
_COUNTS = (
    "max_waiting", "max_tenant_waiting", "max_tenant_bytes", "max_tenant_pinned_bytes",
    "warn_depth", "keep_completed_count", "keep_completed_bytes", "keep_dead_bytes",
)  # fmt: skip


class LimitSettings(TypedDict, total=False):
    """At most ``concurrency`` at a time, and ``rate`` a second after ``burst`` at once."""

    concurrency: int | None  # None lifts a limit
    rate: Rate | None  # a second, or such as "300/m"
    burst: int


class LimiterSettings(LimitSettings, total=False):
    """Limits, and a breaker that opens after ``failures`` in a row, for the ``cooldown``."""

    failures: int | None  # None: no breaker
    cooldown: Duration
    probes: int


class TenantSettings(LimitSettings, total=False):
    """Weight, limits and pause of one tenant."""

    paused: bool
    weight: float


class QueueSettings(LimitSettings, total=False):
    """Limits, pause and retention of one queue."""

    paused: bool
    max_waiting: int | None
    max_tenant_waiting: int | None
    max_tenant_bytes: int | None
    max_tenant_pinned_bytes: int | None
    warn_depth: int | None
    charge_run_time: bool
    keep_completed: Duration
    keep_completed_count: int
    keep_completed_bytes: int
    keep_dead: Duration
    keep_dead_bytes: int


def queue_change(name: str, **settings: Unpack[QueueSettings]) -> QueueChange:
    """The change of one queue; what is not said stays as it is."""
    return QueueChange(queue=check_queue(name), **_checked(settings, QueueSettings, "a queue"))


def tenant_change(
    name: str, queue: str | None = None, **settings: Unpack[TenantSettings]
) -> TenantChange:
    """The change of one tenant, in one queue or in all of them."""
    where = None if queue is None else check_queue(queue)
    said = _checked(settings, TenantSettings, "a tenant")
    return TenantChange(tenant=check_tenant(name), queue=where, **said)


def limiter_change(name: str, **settings: Unpack[LimiterSettings]) -> LimiterChange:
    """The change of one named limiter."""
    return LimiterChange(
        name=check_limiter(name), **_checked(settings, LimiterSettings, "a limiter")
    )


def _checked(settings: Mapping[str, Any], known: type, where: str) -> dict[str, Any]:
    """The settings with durations in seconds, each of its type. The broker knows the bounds."""
    check_stated(settings, known, where)
    said = dict(settings)
    for option, value in said.items():
        if option in _DURATIONS:
            said[option] = seconds(option, value)
        elif option == "rate" and value is not None:
            said[option] = in_rate(value)
            if said[option] is None:
                raise InvalidOption(option, value, f"{RATE_RULE}, or None")
        elif option in _SWITCHES and not isinstance(value, bool):
            raise InvalidOption(option, value, "True or False")
        elif option in _COUNTS and value is not None and type(value) is not int:
            raise InvalidOption(option, value, "a whole number, 0 or more")
        elif option == "weight" and type(value) not in (int, float):
            raise InvalidOption(option, value, "a number")
    return said
