"""Gauges that no event tells: the depth of queues, and how busy the whole is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fairlead.api.live.encoded_events import EncodedEvent, EventBatch, encoded_data
from fairlead.api.live.subscription import Subscription
from fairlead.broker.records import Counts, QueueCounts, Snapshot
from fairlead.client import Client
from fairlead.client.event_info import EventFilter
from fairlead.model.errors import BrokerError

DEPTH = "queue.depth"
METRICS = "system.metrics"
FIGURES = frozenset((DEPTH, METRICS))

_PERIOD = 2.0  # seconds
_PATIENCE = 1.5  # seconds for one read
_FRESH = 0.5  # seconds that a snapshot will do for others who join
_MOST_TENANTS = 200  # whose depths are read in one round
_NO_COUNTS = Counts()

Groups = Mapping[frozenset[EventFilter], set[Subscription]]
Depths = dict[str, Counts]  # by queue


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the whole is. Rates are of the time since the last figures."""

    workers: int
    depth: int
    ready: int
    scheduled: int
    retrying: int
    deferred: int
    running: int
    dead: int
    enqueued_per_second: float | None = None
    completed_per_second: float | None = None
    failed_per_second: float | None = None


class Gauges:
    """Reads figures every two seconds while somebody wants them, once for all clients."""

    def __init__(
        self, client: Callable[[], Client], groups: Groups, *, period: float = _PERIOD
    ) -> None:
        self._client = client
        self._groups = groups
        self._period = period
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str | None, Depths] = {}  # by tenant, what clients know
        self._known: set[frozenset[EventFilter]] = set()  # who knows it
        self._counted: tuple[float, int, int, int] | None = None
        self._snapshots: dict[str | None, tuple[float, asyncio.Task[Snapshot]]] = {}

    @property
    def are_read(self) -> bool:
        """Whether somebody wants them."""
        return self._task is not None

    def wake(self) -> None:
        """Somebody came, or wants something else."""
        if self._task is None and self._wanted():
            self._task = asyncio.create_task(self._run(), name="figures")

    async def stop(self) -> None:
        """End at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _wanted(self) -> bool:
        return any(
            _wants(each, type) for filters in self._groups for each in filters for type in FIGURES
        )

    async def _run(self) -> None:
        try:
            while self._wanted():
                await asyncio.sleep(self._period)
                with contextlib.suppress(BrokerError, TimeoutError):
                    await self.tick()  # if a shard is away: nothing is better than wrong
        finally:
            if self._task is asyncio.current_task():
                self._task = None
                self._told.clear()
                self._counted = None

    async def tick(self) -> None:
        """Read what is wanted now and hand it to those who want it."""
        tenants = {
            each.tenant for filters in self._groups for each in filters if _wants(each, DEPTH)
        }
        clock = asyncio.get_running_loop().time
        ends = clock() + self._period
        depths: dict[str | None, tuple[float, Depths]] = {}
        whole: Snapshot | None = None
        # Those first that had to wait the last time: there may be more than one round can read.
        for tenant in sorted(tenants, key=lambda each: (each is not None, each in self._told)):
            if clock() >= ends or len(depths) >= _MOST_TENANTS:
                break
            async with asyncio.timeout(_PATIENCE):
                found = await self._client().store.snapshot(tenants=False, tenant=tenant)
            depths[tenant] = found.now, depths_of(found, tenant)
            whole = found if tenant is None else whole
        async with asyncio.timeout(_PATIENCE):
            metrics = await self._metrics(whole)
        self._hand_on(depths, metrics)

    async def _metrics(self, whole: Snapshot | None) -> EncodedEvent | None:
        if not any(_wants(each, METRICS) for filters in self._groups for each in filters):
            return None
        client = self._client()
        found = whole or await client.store.snapshot(tenants=False)
        stats = (await client.store.stats(None, tenants=False)).queues.values()
        workers = await client.store.workers()
        counted = (
            found.now,
            sum(queue.enqueued for queue in stats),
            sum(queue.completed for queue in stats),
            sum(queue.failed for queue in stats),
        )
        before, self._counted = self._counted, counted
        rates = [None, None, None] if before is None else _rates(before, counted)
        data = Metrics(
            workers=len(workers),
            depth=found.depth,
            ready=found.ready,
            scheduled=found.scheduled,
            retrying=found.retrying,
            deferred=found.deferred,
            running=found.running,
            dead=found.dead,
            enqueued_per_second=rates[0],
            completed_per_second=rates[1],
            failed_per_second=rates[2],
        )
        return encoded_data(METRICS, found.now, data)

    def _hand_on(
        self, depths: Mapping[str | None, tuple[float, Depths]], metrics: EncodedEvent | None
    ) -> None:
        items: dict[tuple[str | None, str], EncodedEvent] = {}
        changed: dict[str | None, set[str]] = {}
        for tenant, (now, found) in depths.items():
            before = self._told.get(tenant, {})
            names = {*found, *before}
            changed[tenant] = {queue for queue in names if found.get(queue) != before.get(queue)}
            for queue in names:
                items[tenant, queue] = _depth(queue, tenant, found.get(queue, _NO_COUNTS), now)
        for filters, group in self._groups.items():
            chosen = {
                (each.tenant, queue): items[each.tenant, queue]
                for each in filters
                if _wants(each, DEPTH) and each.tenant in depths
                for queue in depths[each.tenant][1].keys() | changed[each.tenant]
                if each.queue in (None, queue)
                and (filters not in self._known or queue in changed[each.tenant])
            }
            found_items = list(chosen.values())
            if metrics is not None and any(_wants(each, METRICS) for each in filters):
                found_items.append(metrics)
            if found_items:
                events = EventBatch(found_items)
                for subscription in group:
                    subscription.put(events)
        self._told = {tenant: found for tenant, (_, found) in depths.items()}
        self._known = set(self._groups)

    # -- the first thing that a client gets ------------------------------------------------------

    async def snapshot(self, tenant: str | None, queue: str | None, id: str) -> EncodedEvent:
        """Counts of all queues, or of one, of one tenant or of all; shared by those who come
        at the same time. If the broker cannot say, the item says that."""
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await asyncio.shield(self._shared(tenant))
        except (BrokerError, TimeoutError):
            return encoded_data("snapshot", 0.0, {"available": False}, id)
        depths = depths_of(found, tenant)
        shown = {name: depths[name] for name in depths if queue in (None, name)}
        totals = {
            field: sum(getattr(counts, field) for counts in shown.values())
            for field in Counts.__struct_fields__
        }
        paused = sorted(
            name for name in shown if name in found.queues and found.queues[name].paused
        )
        data = {"available": True, "queues": shown, "totals": totals, "paused": paused}
        if tenant is not None:
            data["tenant"] = tenant
        return encoded_data("snapshot", found.now, data, id)

    def _shared(self, tenant: str | None) -> asyncio.Task[Snapshot]:
        loop = asyncio.get_running_loop()
        known = self._snapshots.get(tenant)
        if known is None or loop.time() - known[0] > _FRESH:
            task = loop.create_task(self._client().store.snapshot(tenants=False, tenant=tenant))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._snapshots = {
                name: each
                for name, each in self._snapshots.items()
                if loop.time() - each[0] <= _FRESH
            }
            self._snapshots[tenant] = known = loop.time(), task
        return known[1]


def depths_of(snapshot: Snapshot, tenant: str | None) -> Depths:
    """Counts by queue: of all tenants, or of one where it has any."""
    if tenant is None:
        return {name: _plain(queue) for name, queue in snapshot.queues.items()}
    return {
        name: queue.tenants[tenant]
        for name, queue in snapshot.queues.items()
        if tenant in queue.tenants
    }


def _plain(queue: QueueCounts) -> Counts:
    return Counts(**{field: getattr(queue, field) for field in Counts.__struct_fields__})


def _wants(filter: EventFilter, type: str) -> bool:
    return (
        (filter.types is None or type in filter.types)
        and filter.task is None
        and filter.name is None
        and (type == DEPTH or (filter.tenant is None and filter.queue is None))
    )


def _depth(queue: str, tenant: str | None, counts: Counts, now: float) -> EncodedEvent:
    data: dict[str, Any] = {"queue": queue, **msgspec.structs.asdict(counts)}
    if tenant is not None:
        data["tenant"] = tenant
    return encoded_data(DEPTH, now, data)


def _rates(before: tuple[float, ...], now: tuple[float, ...]) -> list[float | None]:
    seconds = now[0] - before[0]
    if seconds <= 0:
        return [None, None, None]
    return [
        round(max(0.0, new - old) / seconds, 2)
        for old, new in zip(before[1:], now[1:], strict=True)
    ]
