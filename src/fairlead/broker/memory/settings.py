"""Weights, limits and pauses as they were configured, and how they reach queues and tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from fairlead.broker.checks import CAPS, changed_limit
from fairlead.broker.memory.fair import UNIT, Queue, Tenant
from fairlead.broker.memory.limits import Gate, Limiter
from fairlead.broker.records import DEFAULTS
from fairlead.broker.requests import LimiterChange, QueueChange, TenantChange
from fairlead.model.limits import UNLIMITED


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


def queue_in_force(name: str, queue: Queue | None) -> QueueChange:
    """What holds for a queue, be it known or not."""
    if queue is None:
        return QueueChange(queue=name, **DEFAULTS)
    limit = UNLIMITED if queue.gate is None else queue.gate.limit
    return QueueChange(
        queue=name,
        paused=queue.paused,
        **{cap: getattr(queue, cap) for cap in CAPS},
        concurrency=limit.concurrency,
        rate=limit.rate,
        burst=limit.burst,
        charge_run_time=queue.charge_run_time,
        strict_priorities=queue.strict_priorities,
        keep_completed=queue.finished.keep,
        keep_completed_count=int(queue.finished.max_count),
        keep_completed_bytes=queue.finished.max_bytes,
        keep_dead=queue.dead.keep,
        keep_dead_bytes=queue.dead.max_bytes,
    )


def limiter_in_force(limiter: Limiter) -> LimiterChange:
    """What holds for a named limiter."""
    limit, breaker = limiter.limit, limiter.breaker
    return LimiterChange(
        name=limiter.name,
        concurrency=limit.concurrency,
        rate=limit.rate,
        burst=limit.burst,
        failures=breaker.failures,
        cooldown=breaker.cooldown,
        probes=breaker.probes,
    )


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
