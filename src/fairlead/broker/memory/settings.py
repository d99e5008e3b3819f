"""Weights, limits and pauses as they were configured, and how they reach queues and tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from fairlead.broker.memory.fair import UNIT, Tenant
from fairlead.broker.memory.limits import Gate
from fairlead.broker.verbs import LimiterChange, QueueChange, TenantChange
from fairlead.model.errors import InvalidOption
from fairlead.model.limits import UNLIMITED, Limit

__all__ = ("apply", "changed_limit", "checked_weight", "laid_over")

_MIN_WEIGHT, _MAX_WEIGHT = 0.001, 1_000.0


def apply(tenant: Tenant, settings: Mapping[tuple[str, str], TenantChange]) -> None:
    """Give a tenant what was set for it in its queue, and failing that in all queues."""
    queue = tenant.queue
    merged = laid_over(
        settings.get(("", tenant.name)), settings.get((queue.name, tenant.name)), tenant.name
    )
    weight = round((1.0 if merged.weight is UNSET else merged.weight) * UNIT)
    if weight != tenant.weight:
        queue.set_weight(tenant, weight)
    tenant.paused = merged.paused is True
    limit = changed_limit(UNLIMITED, merged)
    gate = queue.gates.get(tenant.name)
    if limit == UNLIMITED:
        queue.gates.pop(tenant.name, None)
        gate = None
    elif gate is None:
        gate = queue.gates[tenant.name] = Gate(limit)
    else:
        gate.limit = limit  # what the old rate remembers of the last dispatches still counts
    tenant.gate = gate


def laid_over(base: TenantChange | None, over: TenantChange | None, tenant: str) -> TenantChange:
    """What is said in ``over``, and otherwise in ``base``."""
    merged: dict[str, Any] = {"tenant": tenant}
    for change in (base, over):
        if change is not None:
            for name in ("paused", "weight", "concurrency", "rate", "burst"):
                value = getattr(change, name)
                if value is not UNSET:
                    merged[name] = value
    return TenantChange(**merged)


def changed_limit(limit: Limit, change: QueueChange | TenantChange | LimiterChange) -> Limit:
    """The limit with what the change says laid over it; refuses what no limit can be."""
    said: dict[str, Any] = {
        name: value
        for name in ("concurrency", "rate", "burst")
        if (value := getattr(change, name)) is not UNSET
    }
    return Limit(**{**msgspec.structs.asdict(limit), **said}) if said else limit


def checked_weight(change: TenantChange) -> None:
    """Refuse a weight outside its limits."""
    weight = change.weight
    if weight is not UNSET and not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:  # false for NaN as well
        raise InvalidOption("weight", weight, f"from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}")
