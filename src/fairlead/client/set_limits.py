"""Limits, weights and retention as they are set, in the words in which they were."""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from fairlead.broker.verbs import LimiterChange, QueueChange, TenantChange
from fairlead.client.changes import LimiterSettings, QueueSettings, TenantSettings
from fairlead.client.client import Client
from fairlead.model.names import check_limiter, check_queue, check_tenant

__all__ = ("limiter_settings", "queue_settings", "tenant_settings")


async def queue_settings(client: Client, name: str) -> QueueSettings:
    """Return what is in force for a queue, whether it was set or is the default."""
    (change,) = (await client.settings(check_queue(name))).queues
    return cast(QueueSettings, _said(change))


async def tenant_settings(client: Client, name: str, queue: str | None) -> TenantSettings:
    """Return what is set for a tenant: in one queue, or for all of them."""
    where = None if queue is None else check_queue(queue)
    page = await client.settings(where, tenant=check_tenant(name))
    found = list(page.tenants)
    while page.cursor is not None:
        page = await client.settings(where, tenant=name, cursor=page.cursor)
        found += page.tenants
    said = [_said(change) for change in found if change.queue == where]
    return cast(TenantSettings, said[0] if said else {})


async def limiter_settings(client: Client, name: str) -> LimiterSettings:
    """Return what is in force for a limiter; nothing if it was never set."""
    found = (await client.settings(limiter=check_limiter(name))).limiters
    return cast(LimiterSettings, _said(found[0]) if found else {})


def _said(change: QueueChange | TenantChange | LimiterChange) -> dict[str, Any]:
    """Return the settings of a change, without whose they are and what was not said."""
    names = {"tenant", "queue"} if isinstance(change, TenantChange) else {"queue", "name"}
    fields = ((name, getattr(change, name)) for name in change.__struct_fields__)
    return {name: value for name, value in fields if name not in names and value is not UNSET}
