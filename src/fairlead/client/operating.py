"""What an app offers to operators: settings, counts, listings, purging."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from fairlead.broker.stats import Stats
from fairlead.broker.views import Snapshot, WorkerRecord
from fairlead.client.changes import (
    LimiterSettings,
    QueueSettings,
    TenantSettings,
    limiter_change,
    queue_change,
    tenant_change,
)
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.declared_limits import DeclaredLimits
from fairlead.client.event_info import event_filter
from fairlead.client.event_stream import EventStream
from fairlead.client.history import (
    HistoryPage,
    HistorySelection,
    TaskHistory,
    history_of,
    read_history,
)
from fairlead.client.page_selection import PageSelection
from fairlead.client.snapshots import read_snapshot
from fairlead.client.task_pages import TaskPage, read_page
from fairlead.model.names import DEFAULT_TENANT, check_queue, check_tenant, full_id

__all__ = ("Operating",)


class Operating:
    """The part of an app that is about queues, tenants and workers, not about tasks of its own."""

    _clients: Clients
    _limits: DeclaredLimits

    async def aconfigure_queue(self, name: str, /, **settings: Unpack[QueueSettings]) -> None:
        """Set limits, pause and retention of a queue; what is not named stays as it is."""
        await self._clients.current().configure([queue_change(name, **settings)])

    def configure_queue(self, name: str, /, **settings: Unpack[QueueSettings]) -> None:
        """Set limits, pause and retention of a queue, from sync code."""
        change = queue_change(name, **settings)
        self._clients.sync(lambda client: client.configure([change]))

    async def aconfigure_tenant(
        self, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
    ) -> None:
        """Set weight, limits and pause of a tenant, in one queue or in all of them."""
        await self._clients.current().configure([tenant_change(name, queue, **settings)])

    def configure_tenant(
        self, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
    ) -> None:
        """Set weight, limits and pause of a tenant, from sync code."""
        change = tenant_change(name, queue, **settings)
        self._clients.sync(lambda client: client.configure([change]))

    async def aconfigure_limiter(self, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
        """Set a named limiter, which tasks of all queues may share."""
        await self._clients.current().configure([limiter_change(name, **settings)])

    def configure_limiter(self, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
        """Set a named limiter, from sync code."""
        change = limiter_change(name, **settings)
        self._clients.sync(lambda client: client.configure([change]))

    def declare_queue(self, name: str, /, **settings: Unpack[QueueSettings]) -> None:
        """Declare limits and retention of a queue; workers write them, now and after a data loss.

        What ``configure_queue`` sets at run time stays so until the declaration is changed. A
        declaration that is taken out of the program stays in force until something else is set.
        """
        self._limits.add(queue_change(name, **settings))

    def declare_tenant(
        self, name: str, /, *, queue: str | None = None, **settings: Unpack[TenantSettings]
    ) -> None:
        """Declare weight and limits of a tenant, in one queue or in all; see ``declare_queue``."""
        self._limits.add(tenant_change(name, queue, **settings))

    def declare_limiter(self, name: str, /, **settings: Unpack[LimiterSettings]) -> None:
        """Declare a named limiter; see ``declare_queue``."""
        self._limits.add(limiter_change(name, **settings))

    async def asnapshot(self, queue: str | None = None, *, tenants: bool = True) -> Snapshot:
        """How many tasks there are, by state, queue and tenant, and how limiters stand.

        Of one ``queue`` that is without limiters, and without ``tenants`` it is less to read. A
        queue with its tenants is of one moment; many queues are read one after the other.
        With a fallback, and while the broker is away, it is what this process has in its spool.
        """
        name, clients = queue if queue is None else check_queue(queue), self._clients
        return await read_snapshot(clients.current(), clients.fallback, name, tenants=tenants)

    def snapshot(self, queue: str | None = None, *, tenants: bool = True) -> Snapshot:
        """How many tasks there are, from sync code; see ``asnapshot``."""
        name, kept = queue if queue is None else check_queue(queue), self._clients.fallback
        return self._clients.sync(lambda at: read_snapshot(at, kept, name, tenants=tenants))

    async def astats(self, queue: str | None = None, *, tenants: bool = False) -> Stats:
        """What happened in one queue or in all since they exist, and how long it took.

        With ``tenants`` also what each tenant got in this hour and the one before.
        """
        name = queue if queue is None else check_queue(queue)
        return await self._clients.current().stats(name, tenants=tenants)

    def stats(self, queue: str | None = None, *, tenants: bool = False) -> Stats:
        """What happened in one queue or in all, from sync code; see ``astats``."""
        name = queue if queue is None else check_queue(queue)
        return self._clients.sync(lambda client: client.stats(name, tenants=tenants))

    def events(
        self,
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
        """What happens, as it happens: ``async for event in app.events("dead"): ...``.

        ``types`` are names such as ``task.dead`` (or just ``dead``) and ``worker.*``; ``task`` is
        the id of one task, ``name`` the name of tasks. Without ``after`` and ``reader`` it begins
        now; ``after`` is the id of the last event that was seen, or ``oldest``. A ``reader`` has
        its place kept by the broker: what it had not finished comes again. While the broker is
        away the stream waits, for ``patience`` seconds at most if they are given.
        """
        wanted = event_filter(types, queue=queue, tenant=tenant, task=task, name=name)
        return EventStream(
            self._clients.current, wanted, after=after, reader=reader, patience=patience
        )

    async def apurge(self, queue: str | None = None, *, tenant: str | None = None) -> int:
        """Cancel all that waits, in one queue or in all, of one tenant or of all; how many."""
        return await _purge(self._clients.current(), queue, tenant)

    def purge(self, queue: str | None = None, *, tenant: str | None = None) -> int:
        """Cancel all that waits, from sync code; see ``apurge``."""
        return self._clients.sync(lambda client: _purge(client, queue, tenant))

    async def adelete_queue(self, name: str) -> int:
        """Forget a queue, its settings and its finished tasks; how many of these there were.

        Raises ``QueueInUse`` while tasks wait or run there. A queue that nobody configured goes by
        itself, an hour after its last task was forgotten.
        """
        return await self._clients.current().delete_queue(check_queue(name))

    def delete_queue(self, name: str) -> int:
        """Forget a queue, from sync code; see ``adelete_queue``."""
        return self._clients.sync(lambda client: client.delete_queue(check_queue(name)))

    async def apage(self, **selection: Unpack[PageSelection]) -> TaskPage:
        """Tasks, in an order of the store's own: ``apage(state="dead")`` is the dead letters.

        Read on with ``cursor=page.cursor`` until it is None; a page may be empty before that. With
        ``arguments=True`` it has what the tasks were called with.
        """
        return await read_page(self._clients.current(), selection)

    def page(self, **selection: Unpack[PageSelection]) -> TaskPage:
        """Tasks, in an order of the store's own, from sync code; see ``apage``."""
        return self._clients.sync(lambda client: read_page(client, selection))

    async def ahistory(self, **selection: Unpack[HistorySelection]) -> HistoryPage:
        """What became of tasks, the newest first: ``ahistory(state="dead", error="Timeout")``.

        With a ledger also of those that the broker has forgotten. Without one the broker answers,
        with what it still keeps and in an order of its own; ``source`` says which of the two did.
        ``since`` and ``until`` are about when tasks were enqueued. Read on with
        ``cursor=page.cursor`` until it is None.
        """
        clients = self._clients
        return await read_history(clients.ledger_or_none, clients.current(), selection)

    def history(self, **selection: Unpack[HistorySelection]) -> HistoryPage:
        """What became of tasks, from sync code; see ``ahistory``."""
        clients = self._clients
        return clients.sync(lambda at: read_history(clients.ledger_or_none, at, selection))

    async def atask_history(self, id: str, tenant: str = DEFAULT_TENANT) -> TaskHistory | None:
        """Every attempt of a task, with its worker and its error, and every change of its state.

        None if it is not known. Without a ledger the broker answers with what it still keeps, which
        is the last attempt; ``source`` says so.
        """
        clients, stored = self._clients, full_id(check_tenant(tenant), id)
        return await history_of(clients.ledger_or_none, clients.current(), stored)

    def task_history(self, id: str, tenant: str = DEFAULT_TENANT) -> TaskHistory | None:
        """What happened to one task, from sync code; see ``atask_history``."""
        clients, stored = self._clients, full_id(check_tenant(tenant), id)
        return clients.sync(lambda at: history_of(clients.ledger_or_none, at, stored))

    async def aworkers(self) -> list[WorkerRecord]:
        """The workers of this broker that were heard of in the last 15 seconds."""
        return await self._clients.current().workers()

    def workers(self) -> list[WorkerRecord]:
        """The workers that were heard of lately, from sync code; see ``aworkers``."""
        return self._clients.sync(lambda client: client.workers())


async def _purge(client: Client, queue: str | None, tenant: str | None) -> int:
    if tenant is not None:
        check_tenant(tenant)
    names = await _with_work(client) if queue is None else [check_queue(queue)]
    return sum([await client.purge(name, tenant) for name in names])


async def _with_work(client: Client) -> list[str]:
    """The queues in which something waits; a purge of the others would do nothing."""
    found = await client.snapshot(tenants=False)
    return [name for name, queue in found.queues.items() if queue.depth]
