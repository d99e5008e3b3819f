"""``GET /metrics``: what the broker knows, read when Prometheus asks, and what this API enqueued.

Bounded in every way: in time (a broker that is away is said to be down within two seconds), in
labels, and in how often the broker is read, however many ask.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairlead.api.auth.access import SAFE, require
from fairlead.api.http.mount import Connection, Mount, Receive, Send
from fairlead.api.http.problems import Forbidden, MethodNotAllowed
from fairlead.api.service import Service, headers_of
from fairlead.broker.records import Counts, LimiterState, Snapshot, WorkerRecord
from fairlead.broker.stats import BUCKETS, COUNTERS, HISTOGRAMS, Stats, TenantStats
from fairlead.client import Client
from fairlead.client.ledger_lag import read_lag
from fairlead.ledger.ledger import Ledger
from fairlead.model.errors import FairleadError
from fairlead.model.fairness_stats import jain
from fairlead.model.message import LEVEL_NAMES, LEVELS
from fairlead.telemetry.counters import OTHER
from fairlead.telemetry.metrics import Exposition, Labels, add_counted, text_of

T = TypeVar("T")

_FRESH = 1.0  # seconds for which what was read is shown again
_PATIENCE = 1.5  # seconds until the broker counts as away
_DECIDED = 0.1  # seconds in which a token is looked up, unless the broker is away
_TENANTS_FRESH = 10.0  # seconds for which tenants are not read again: they cost more
_TENANTS_PATIENCE = 0.3  # seconds more for them
_TENANT_QUEUES = 10  # queues whose tenants are read: those with most tasks queued
_WORST = 10  # tenants that are shown
_MAX_QUEUES = 100  # that are told apart
_MAX_LIMITERS = 100
_MAX_TEXTS = 4  # that are kept, each for another header Accept
_STATES = {
    "queued": "ready",
    **{
        state: state
        for state in (
            "scheduled", "retrying", "deferred", "running", "completed", "dead", "cancelled"
        )
    },
}  # fmt: skip
_WORKER_STATES = ("working", "quiet", "paused", "stopping", "stopped")  # as workers say themselves
_CIRCUIT = ("closed", "open", "half_open")


class BrokerMetrics:
    """Reads the broker for scrapes, one read at a time."""

    def __init__(
        self,
        client: Callable[[], Client],
        *,
        name_tenants: bool = False,
        clock: Callable[[], float] = time.monotonic,
        ledger: Callable[[], Ledger | None] = lambda: None,
    ) -> None:
        """``name_tenants``: the tenants that wait longest are shown by their names."""
        self._ledger = ledger
        self._client = client
        self._name_tenants = name_tenants
        self._clock = clock
        self._queues = Labels(_MAX_QUEUES)
        self._limiters = Labels(_MAX_LIMITERS)
        self._tenants = _Tenants(clock)
        self._reading: asyncio.Task[Exposition] | None = None
        self._read: tuple[float, Exposition] | None = None

    async def read(self) -> Exposition:
        """What the broker says now, or said within the last second."""
        if self._read is not None and self._clock() - self._read[0] < _FRESH:
            return self._read[1]
        loop = asyncio.get_running_loop()
        if self._reading is None or self._reading.done() or self._reading.get_loop() is not loop:
            self._reading = loop.create_task(self._collect(), name="metrics")
        # One that hangs up must not take the answer from the others.
        return await asyncio.shield(self._reading)

    async def _collect(self) -> Exposition:
        began = self._clock()
        client, shown = self._client(), Exposition()
        ledger = self._ledger()
        hello, snapshot, stats, workers, kept = await asyncio.gather(
            _within(_PATIENCE, client.now()),
            _within(_PATIENCE, client.store.snapshot(tenants=False)),
            _within(_PATIENCE, client.store.stats(None, tenants=False)),
            _within(_PATIENCE, client.store.workers()),
            _within(_PATIENCE, read_lag(client, ledger)),
        )
        up = hello is not None
        shown.add("fairlead_broker_up", up)
        tenants = None
        if up and snapshot is not None:
            tenants = await self._tenants.of(client, snapshot)
        for part, found in (
            ("snapshot", snapshot), ("stats", stats), ("workers", workers), ("tenants", tenants)
        ):  # fmt: skip
            shown.add("fairlead_scrape_success", found is not None, part=part)
        if ledger is not None:
            shown.add("fairlead_scrape_success", kept is not None, part="ledger")
        if kept is not None:
            shown.add("fairlead_ledger_due", kept.due)
            shown.add("fairlead_ledger_oldest_seconds", kept.oldest)
            if kept.behind is not None:
                shown.add("fairlead_recorder_lag_seconds", kept.behind)
        queues = self._queues.of(
            {*(snapshot.queues if snapshot else ()), *(stats.queues if stats else ())}
        )
        if snapshot is not None:
            _add_snapshot(shown, snapshot, queues)
            _add_limiters(shown, snapshot.limiters, self._limiters)
        if stats is not None:
            _add_stats(shown, stats, queues)
        if workers is not None:
            _add_workers(shown, workers)
        if snapshot is not None and tenants is not None:
            _add_priorities(shown, snapshot, tenants)
        if tenants is not None:
            _add_tenants(shown, tenants, queues, named=self._name_tenants)
        ended = self._clock()
        shown.add("fairlead_scrape_seconds", ended - began)
        self._read = (ended, shown)
        return shown


class _Tenants:
    """Figures of tenants by queue, read less often than the rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read: tuple[float, dict[str, dict[str, TenantStats]]] | None = None

    async def of(
        self, client: Client, snapshot: Snapshot
    ) -> dict[str, dict[str, TenantStats]] | None:
        """Tenants of the queues with most tasks queued; None if they could not be read."""
        now = self._clock()
        if self._read is not None and now - self._read[0] < _TENANTS_FRESH:
            return self._read[1]
        busy = sorted(
            (name for name, counts in snapshot.queues.items() if counts.ready),
            key=lambda name: -snapshot.queues[name].ready,
        )
        found = await _within(_TENANTS_PATIENCE, self._all(client, busy[:_TENANT_QUEUES]))
        self._read = None if found is None else (now, found)
        return found

    async def _all(self, client: Client, queues: list[str]) -> dict[str, dict[str, TenantStats]]:
        found = {}
        for queue in queues:
            found.update((await client.store.stats(queue, tenants=True)).tenants)
        return found


async def _within(seconds: float, reading: Awaitable[T]) -> T | None:
    """What was read, or None if the broker failed or took too long."""
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except (FairleadError, TimeoutError):
        return None


def _add_snapshot(shown: Exposition, snapshot: Snapshot, queues: dict[str, str]) -> None:
    for name, counts in snapshot.queues.items():
        queue = queues[name]
        for state, field in _STATES.items():
            shown.add("fairlead_queue_depth", _count(counts, field), queue=queue, state=state)
        since = snapshot.now if counts.oldest_at is None else counts.oldest_at
        shown.largest("fairlead_queue_oldest_seconds", max(snapshot.now - since, 0.0), queue=queue)
        shown.add("fairlead_queue_paused", counts.paused, queue=queue)
    shown.add("taskqueue_dlq_size", snapshot.dead)


def _add_limiters(shown: Exposition, limiters: dict[str, LimiterState], labels: Labels) -> None:
    known = labels.of(limiters)
    for name, limiter in limiters.items():
        label = known[name]
        shown.add("fairlead_limiter_used", limiter.used, limiter=label)
        shown.add("fairlead_limiter_waiting", limiter.waiting, limiter=label)
        if limiter.state:
            for state in _CIRCUIT:
                is_in = limiter.state == state
                shown.add("fairlead_breaker_state", is_in, limiter=label, state=state)
            shown.add("fairlead_breaker_failures", limiter.failed, limiter=label)


def _add_stats(shown: Exposition, stats: Stats, queues: dict[str, str]) -> None:
    for name, counted in stats.queues.items():
        queue = queues[name]
        for what in COUNTERS:
            shown.add(f"fairlead_tasks_{what}_total", getattr(counted, what), queue=queue)
        for what in HISTOGRAMS:
            times = getattr(counted, what)
            if not times.count:  # most queues have no dependencies, and 27 rows are many
                continue
            shown.histogram(
                f"fairlead_task_{what}_seconds", BUCKETS, times.counts, times.sum, queue=queue
            )


def _add_workers(shown: Exposition, workers: list[WorkerRecord]) -> None:
    counted = Counter(str(worker.details.get("state")) for worker in workers)
    for state in _WORKER_STATES:
        shown.add("fairlead_workers", counted.pop(state, 0), state=state)
    shown.add("fairlead_workers", counted.total(), state=OTHER)
    shown.add("fairlead_slots", sum(worker.concurrency for worker in workers))
    shown.add("fairlead_slots_used", sum(worker.running for worker in workers))
    shown.add("taskqueue_active_workers", len(workers))


def _add_priorities(
    shown: Exposition, snapshot: Snapshot, tenants: dict[str, dict[str, TenantStats]]
) -> None:
    """Tasks that are queued, by priority as far as it was read; the rest is told as such."""
    lines = [each.lines for found in tenants.values() for each in found.values()]
    for level, priority in enumerate(LEVEL_NAMES):
        count = sum(each[level] for each in lines)
        if count or level < len(LEVELS):  # few apps have more priorities than these
            shown.add("taskqueue_queue_depth", count, priority=priority)
    rest = max(snapshot.ready - sum(map(sum, lines)), 0)
    shown.add("taskqueue_queue_depth", rest, priority=OTHER)


def _add_tenants(
    shown: Exposition,
    tenants: dict[str, dict[str, TenantStats]],
    queues: dict[str, str],
    *,
    named: bool,
) -> None:
    for name, found in tenants.items():
        waiting = {tenant: each for tenant, each in found.items() if each.queued}
        queue = queues.get(name)
        if queue != name:  # gone since, or one of many: an index cannot be added up
            continue
        shown.add("fairlead_tenants_waiting", len(waiting), queue=queue)
        index = jain(
            {tenant: each.started for tenant, each in waiting.items()},
            {tenant: each.weight for tenant, each in waiting.items()},
        )
        if len(waiting) > 1 and index is not None:
            shown.add("fairlead_fairness_index", index, queue=queue)
    worst = sorted(
        ((queue, tenant, each) for queue, all_ in tenants.items() for tenant, each in all_.items()),
        key=lambda row: (-row[2].longest_wait, -row[2].queued, row[0], row[1]),
    )
    for rank, (queue, tenant, each) in enumerate(worst[:_WORST], start=1):
        labels = {
            "rank": str(rank),
            "queue": queues.get(queue, queue),
            "tenant": tenant if named else "",
        }
        shown.add("fairlead_tenant_longest_wait_seconds", each.longest_wait, **labels)
        shown.add("fairlead_tenant_queued_tasks", each.queued, **labels)


def _count(counts: Counts, field: str) -> int:
    return int(getattr(counts, field))


class _Endpoint:
    """Answers a scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = BrokerMetrics(
            service.client,
            name_tenants=service.settings.metrics_tenants,
            ledger=lambda: service.ledger,
        )
        self._counters = service.counters
        self._counters.begin()
        self._writing = asyncio.Lock()
        self._written: Exposition | None = None
        self._texts: dict[str, tuple[bytes, str]] = {}  # of what was written, by what was asked

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Read the broker and write it down; for callers that may see all tenants."""
        if connection["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if connection["method"] not in SAFE:
            raise MethodNotAllowed("this is only read", headers={"allow": "GET, HEAD"})
        shown = await self._read(connection)
        accept = headers_of(connection).get(b"accept", b"").decode("latin-1")
        text, kind = await self._text(accept, shown)
        head = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(text)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        body = b"" if connection["method"] == "HEAD" else text
        await send({"type": "http.response.body", "body": body})

    async def _read(self, connection: Connection) -> Exposition:
        """What the broker says, for a caller who may see it.

        If the token cannot be looked up at once, the broker may be away: then both go on side by
        side, because the answer must not take longer than two seconds. Else the token comes first,
        so that a stranger causes no reads.
        """
        deciding = asyncio.ensure_future(self._may_read(connection))
        reading: asyncio.Future[Exposition] | None = None
        try:
            await asyncio.wait([deciding], timeout=_DECIDED)
            if not deciding.done():
                reading = asyncio.ensure_future(self._metrics.read())
            await deciding
            return await (reading or self._metrics.read())
        finally:
            deciding.cancel()
            if reading is not None:
                reading.cancel()

    async def _may_read(self, connection: Connection) -> None:
        access = await self._service.authorize(connection, stale=True)
        require(access, "read")
        if access.tenant is not None:
            raise Forbidden(
                "metrics are of all tenants",
                field="token",
                rule="a token that is not bound to a tenant",
            )

    async def _text(self, accept: str, shown: Exposition) -> tuple[bytes, str]:
        """The text in the format that is asked for, written once for each read of the broker."""
        async with self._writing:
            if self._written is not shown:
                self._written = shown
                self._texts.clear()
            text = self._texts.get(accept)
            if text is None:
                own = Exposition()
                add_counted(own, self._counters.counted())
                # It may be a megabyte, and other requests must not wait for it.
                text = await asyncio.to_thread(text_of, accept, shown, own)
                if len(self._texts) < _MAX_TEXTS:
                    self._texts[accept] = text
            return text


#: Without a scope: whoever scrapes is let in by what was known of the token before, if the broker
#: is away, and so learns that it is.
MOUNTS = (Mount(path="/metrics", make=_Endpoint, summary="Metrics for Prometheus."),)
