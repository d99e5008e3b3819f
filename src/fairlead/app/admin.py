"""Methods of ``Fairlead`` for operators: settings, counts, events, listings, purging.

Each function here is a method of the app, which the class body of ``app/facade.py`` lists.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import msgspec

from fairlead.client import Snapshot, Stats, WorkerRecord, limits
from fairlead.client.client import Client
from fairlead.client.event_info import event_filter
from fairlead.client.event_stream import EventStream
from fairlead.client.history import (
    HistoryPage,
    HistorySelection,
    TaskHistory,
    history_of,
    read_history,
)
from fairlead.client.limits import (
    LimiterSettings,
    QueueSettings,
    TenantSettings,
    limiter_change,
    queue_change,
    tenant_change,
)
from fairlead.client.task_pages import TaskPage, read_page
from fairlead.client.task_reader import PageSelection
from fairlead.fallback.outages import leads_to_spool
from fairlead.model.errors import BrokerError
from fairlead.model.names import DEFAULT_TENANT, check_queue, check_tenant, full_id

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.fallback.fallback import Fallback


async def aconfigure_queue(app: Fairlead, name: str, /, **settings: Unpack[QueueSettings]) -> None:
    """Set limits, pause and retention of a queue; what is not named stays as it is."""
    await app._clients.current().configure([queue_change(name, **settings)])


def configure_queue(app: Fairlead, name: str, /, **settings: Unpack[QueueSettings]) -> None:
    """Set limits, pause and retention of a queue, from sync code."""
    change = queue_change(name, **settings)
    app._clients.blocking(lambda client: client.configure([change]), "app.configure_queue")


async def aconfigure_tenant(
    app: Fairlead, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
) -> None:
    """Set weight, limits and pause of a tenant, in one queue or in all of them.

    Args:
        queue: Only what holds in this queue. Default: what holds in all.
    """
    await app._clients.current().configure([tenant_change(name, queue, **settings)])


def configure_tenant(
    app: Fairlead, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
) -> None:
    """Set weight, limits and pause of a tenant, from sync code.

    Args:
        queue: Only what holds in this queue. Default: what holds in all.
    """
    change = tenant_change(name, queue, **settings)
    app._clients.blocking(lambda client: client.configure([change]), "app.configure_tenant")


async def aconfigure_limiter(
    app: Fairlead, name: str, /, **settings: Unpack[LimiterSettings]
) -> None:
    """Set a named limiter, which tasks of all queues may share."""
    await app._clients.current().configure([limiter_change(name, **settings)])


def configure_limiter(app: Fairlead, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
    """Set a named limiter, from sync code."""
    change = limiter_change(name, **settings)
    app._clients.blocking(lambda client: client.configure([change]), "app.configure_limiter")


async def aqueue_settings(app: Fairlead, name: str, /) -> QueueSettings:
    """Return the limits, pause and retention that are in force for a queue.

    They are the arguments of ``configure_queue``; rates are a second, durations seconds.
    """
    return await limits.queue_settings(app._clients.current(), name)


def queue_settings(app: Fairlead, name: str, /) -> QueueSettings:
    """Return the limits, pause and retention that are in force for a queue, from sync code."""
    return app._clients.blocking(
        lambda client: limits.queue_settings(client, name), "app.queue_settings"
    )


async def atenant_settings(
    app: Fairlead, name: str, /, *, queue: str | None = None
) -> TenantSettings:
    """Return what is set for a tenant, in one queue or for all of them; else it is empty.

    Args:
        queue: Only what holds in this queue. Default: what holds in all.
    """
    return await limits.tenant_settings(app._clients.current(), name, queue)


def tenant_settings(app: Fairlead, name: str, /, *, queue: str | None = None) -> TenantSettings:
    """Return what is set for a tenant, from sync code.

    Args:
        queue: Only what holds in this queue. Default: what holds in all.
    """
    return app._clients.blocking(
        lambda client: limits.tenant_settings(client, name, queue), "app.tenant_settings"
    )


async def alimiter_settings(app: Fairlead, name: str, /) -> LimiterSettings:
    """Return what is set for a named limiter; empty if nothing is."""
    return await limits.limiter_settings(app._clients.current(), name)


def limiter_settings(app: Fairlead, name: str, /) -> LimiterSettings:
    """Return what is set for a named limiter, from sync code."""
    return app._clients.blocking(
        lambda client: limits.limiter_settings(client, name), "app.limiter_settings"
    )


def declare_queue(app: Fairlead, name: str, /, **settings: Unpack[QueueSettings]) -> None:
    """Declare limits and retention of a queue; workers write them, now and after a data loss.

    What ``configure_queue`` sets at run time stays so until the declaration is changed. A
    declaration that is taken out of the program stays in force until something else is set.
    """
    app._limits.add(queue_change(name, **settings))


def declare_tenant(
    app: Fairlead, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
) -> None:
    """Declare weight and limits of a tenant, in one queue or in all; see ``declare_queue``.

    Args:
        queue: Only what holds in this queue. Default: what holds in all.
    """
    app._limits.add(tenant_change(name, queue, **settings))


def declare_limiter(app: Fairlead, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
    """Declare a named limiter; see ``declare_queue``."""
    app._limits.add(limiter_change(name, **settings))


async def asnapshot(app: Fairlead, queue: str | None = None, *, tenants: bool = True) -> Snapshot:
    """Return how many tasks there are, by state, queue and tenant, and how limiters stand.

    Of one ``queue`` that is without limiters. A queue with its tenants is of one moment; many
    queues are read one after the other.
    With a fallback, and while the broker is away, it is what this process has in its spool.

    Args:
        queue: Only the counts of this queue. Default: of all.
        tenants: False leaves tenants out, which is less to read. Default: True.
    """
    name, clients = queue if queue is None else check_queue(queue), app._clients
    return await _snapshot(clients.current(), clients.fallback, name, tenants=tenants)


def snapshot(app: Fairlead, queue: str | None = None, *, tenants: bool = True) -> Snapshot:
    """Return how many tasks there are, from sync code; see ``asnapshot``.

    Args:
        queue: Only the counts of this queue. Default: of all.
        tenants: False leaves tenants out, which is less to read. Default: True.
    """
    name, kept = queue if queue is None else check_queue(queue), app._clients.fallback
    return app._clients.blocking(
        lambda at: _snapshot(at, kept, name, tenants=tenants), "app.snapshot"
    )


async def astats(app: Fairlead, queue: str | None = None, *, tenants: bool = False) -> Stats:
    """Return what happened in one queue or in all since they exist, and how long it took.

    Args:
        queue: Only the counts of this queue. Default: of all.
        tenants: True adds what each tenant got in this hour and the last. Default: False.
    """
    name = queue if queue is None else check_queue(queue)
    return await app._clients.current().store.stats(name, tenants=tenants)


def stats(app: Fairlead, queue: str | None = None, *, tenants: bool = False) -> Stats:
    """Return what happened in one queue or in all, from sync code; see ``astats``.

    Args:
        queue: Only the counts of this queue. Default: of all.
        tenants: True adds what each tenant got in this hour and the last. Default: False.
    """
    name = queue if queue is None else check_queue(queue)
    return app._clients.blocking(
        lambda client: client.store.stats(name, tenants=tenants), "app.stats"
    )


def events(
    app: Fairlead,
    types: str | Iterable[str] | None = None,
    *,
    queue: str | None = None,
    tenant: str | None = None,
    task: str | None = None,
    name: str | None = None,
    after: str | None = None,
    reader: str | None = None,
    patience: float | None = None,
) -> EventStream:
    """Return what happens, as it happens: ``async for event in app.events("dead"): ...``.

    Without ``after`` and ``reader`` it begins now. A ``reader`` has its place kept by the broker:
    what it had not finished comes again. While the broker is away the stream waits.

    Args:
        types: Names such as "task.dead", just "dead", or "worker.*". Default: all.
        queue: Only events of this queue. Default: of all.
        tenant: Only events of this tenant. Default: of all.
        task: Only events of the task with this id. Default: of all.
        name: Only events of tasks with this name. Default: of all.
        after: The id of the last event that was seen, or "oldest". Default: it begins now.
        reader: The name under which the broker keeps its place. Default: it keeps none.
        patience: For how many seconds it waits for a broker that is away. Default: no limit.
    """
    wanted = event_filter(types, queue=queue, tenant=tenant, task=task, name=name)
    return EventStream(app._clients.current, wanted, after=after, reader=reader, patience=patience)


async def apurge(app: Fairlead, queue: str | None = None, *, tenant: str | None = None) -> int:
    """Cancel all that waits, in one queue or all, of one tenant or all; return how many.

    Args:
        queue: Only what waits in this queue. Default: in all.
        tenant: Only what this tenant has. Default: of all.
    """
    return await _purge(app._clients.current(), queue, tenant)


def purge(app: Fairlead, queue: str | None = None, *, tenant: str | None = None) -> int:
    """Cancel all that waits, from sync code; see ``apurge``.

    Args:
        queue: Only what waits in this queue. Default: in all.
        tenant: Only what this tenant has. Default: of all.
    """
    return app._clients.blocking(lambda client: _purge(client, queue, tenant), "app.purge")


async def adelete_queue(app: Fairlead, name: str) -> int:
    """Forget a queue, its settings and its finished tasks; return how many of these there were.

    Raises ``QueueInUse`` while tasks wait or run there. A queue that nobody configured goes by
    itself, an hour after its last task was forgotten.
    """
    return await app._clients.current().delete_queue(check_queue(name))


def delete_queue(app: Fairlead, name: str) -> int:
    """Forget a queue, from sync code; see ``adelete_queue``."""
    return app._clients.blocking(
        lambda client: client.delete_queue(check_queue(name)), "app.delete_queue"
    )


async def apage(app: Fairlead, **selection: Unpack[PageSelection]) -> TaskPage:
    """Return tasks, in an order of the store's own: ``apage(state="dead")`` is the dead letters.

    Read on with ``cursor=page.cursor`` until it is None; a page may be empty before that. With
    ``arguments=True`` it has what the tasks were called with.
    """
    return await read_page(app._clients.current(), selection)


def page(app: Fairlead, **selection: Unpack[PageSelection]) -> TaskPage:
    """Return some tasks, from sync code: ``page(state="dead")`` is the dead letters.

    Read on with ``cursor=page.cursor`` until it is None; a page may be empty before that.
    """
    return app._clients.blocking(lambda client: read_page(client, selection), "app.page")


async def ahistory(app: Fairlead, **selection: Unpack[HistorySelection]) -> HistoryPage:
    """Return what became of tasks, newest first: ``ahistory(state="dead", error="Timeout")``.

    With a ledger also of those that the broker has forgotten. Without one the broker answers,
    with what it still keeps and in an order of its own; ``source`` says which of the two did.
    ``since`` and ``until`` are about when tasks were enqueued. Read on with
    ``cursor=page.cursor`` until it is None.
    """
    clients = app._clients
    return await read_history(clients.ledger_or_none, clients.current(), selection)


def history(app: Fairlead, **selection: Unpack[HistorySelection]) -> HistoryPage:
    """Return what became of tasks, newest first, from sync code: ``history(state="dead")``.

    With a ledger also of those that the broker has forgotten. Read on with ``cursor=page.cursor``.
    """
    clients = app._clients
    return clients.blocking(
        lambda at: read_history(clients.ledger_or_none, at, selection), "app.history"
    )


async def atask_history(app: Fairlead, id: str, tenant: str = DEFAULT_TENANT) -> TaskHistory | None:
    """Return every attempt of a task, with its worker and error, and every change of its state.

    None if it is not known. Without a ledger the broker answers with what it still keeps, which
    is the last attempt; ``source`` says so.

    Args:
        tenant: The tenant of a chosen id. Default: "default".
    """
    clients, stored = app._clients, full_id(check_tenant(tenant), id)
    return await history_of(clients.ledger_or_none, clients.current(), stored)


def task_history(app: Fairlead, id: str, tenant: str = DEFAULT_TENANT) -> TaskHistory | None:
    """Return what happened to one task, from sync code; see ``atask_history``.

    Args:
        tenant: The tenant of a chosen id. Default: "default".
    """
    clients, stored = app._clients, full_id(check_tenant(tenant), id)
    return clients.blocking(
        lambda at: history_of(clients.ledger_or_none, at, stored), "app.task_history"
    )


async def aworkers(app: Fairlead) -> list[WorkerRecord]:
    """Return the workers of this broker that were heard of in the last 15 seconds."""
    return await app._clients.current().store.workers()


def workers(app: Fairlead) -> list[WorkerRecord]:
    """Return the workers that were heard of lately, from sync code; see ``aworkers``."""
    return app._clients.blocking(lambda client: client.store.workers(), "app.workers")


async def _snapshot(
    client: Client, fallback: Fallback | None, queue: str | None, *, tenants: bool
) -> Snapshot:
    """Return the counts of one queue or of all.

    With a fallback the broker may be away: then the answer is what is in the spool of this process,
    and ``redis_active`` is False. Of one queue that is not known.
    """
    if fallback is None:
        return await client.store.snapshot(queue, tenants=tenants)
    if fallback.state != "spooling":
        try:
            found = await client.store.snapshot(queue, tenants=tenants)
        except BrokerError as error:
            if not leads_to_spool(error):
                raise
        else:
            return msgspec.structs.replace(found, spooled=fallback.spool.depth)
    spooled = fallback.spool.depth
    return Snapshot(now=time.time(), depth=spooled if queue is None else 0, spooled=spooled)


async def _purge(client: Client, queue: str | None, tenant: str | None) -> int:
    if tenant is not None:
        check_tenant(tenant)
    names = await _with_work(client) if queue is None else [check_queue(queue)]
    return sum([await client.purge(name, tenant) for name in names])


async def _with_work(client: Client) -> list[str]:
    """The queues in which something waits; a purge of the others would do nothing."""
    found = await client.store.snapshot(tenants=False)
    return [name for name, queue in found.queues.items() if queue.depth]
