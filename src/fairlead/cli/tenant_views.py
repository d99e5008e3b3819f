"""Tenants that have work, or had some lately, over the queues with most work."""

from __future__ import annotations

from fairlead.api.tenant_figures import (
    Part,
    TenantView,
    busiest,
    parts_of,
    read_queues,
    view_of,
)
from fairlead.client import Client

__all__ = ("tenant_views",)


async def tenant_views(client: Client, queue: str | None) -> list[TenantView]:
    """Return what is known of tenants in one queue, or in at most 20 of all."""
    if queue is None:
        names, _ = busiest((await client.snapshot(tenants=False)).queues, None)
    else:
        names = [queue]
    parts: dict[str, list[Part]] = {}
    for read in await read_queues(client, names, None):
        for name, part in parts_of(read, None):
            parts.setdefault(name, []).append(part)
    return [view_of(name, each) for name, each in parts.items()]
