"""The reads: of tasks, counters, documents, of where one task stands; what only servers have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import UNSET

from fairlead.broker import checks
from fairlead.broker.documents import DocumentPage, Note, check_document_page, check_trail
from fairlead.broker.memory import inspector, settings
from fairlead.broker.memory.fair import PARKED, READY, Queue, Tenant
from fairlead.broker.memory.frame import Frame
from fairlead.broker.memory.limits import Gate, Limiter
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.shard import Shard
from fairlead.broker.standing import MAX_AHEAD, MAX_SHOWN, Room, Standing, Waits
from fairlead.broker.stats import Stats, TenantStats
from fairlead.broker.verbs import LAYOUT, SHARD
from fairlead.broker.views import (
    Finding,
    Library,
    Mended,
    Page,
    Parts,
    Settings,
    ShardLayout,
    Snapshot,
    TaskRecord,
    WorkerRecord,
)
from fairlead.model.lifecycle import State
from fairlead.model.turns import goes_before

__all__ = ("Looking",)

_MAX_LOOKED_AT = 2 * MAX_AHEAD  # entries of one line, those of tasks that are gone among them


class Looking(Frame):
    """The part of the broker that changes nothing."""

    async def snapshot(
        self,
        queue: str | None = None,
        *,
        tenants: bool = True,
        tenant: str | None = None,
        now: float | None = None,
    ) -> Snapshot:
        return self._do(
            now, lambda shard: inspector.snapshot(shard, queue, tenants=tenants, tenant=tenant)
        )

    async def find(
        self, ids: Sequence[str], *, parts: Parts = "all", now: float | None = None
    ) -> list[TaskRecord | None]:
        return self._do(
            now,
            lambda shard: [
                task.record(parts) if (task := shard.find(id)) is not None else None for id in ids
            ],
        )

    async def page(
        self,
        *,
        state: State | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> Page:
        return self._do(
            now,
            lambda shard: inspector.page(
                shard, state=state, queue=queue, tenant=tenant, cursor=cursor, limit=limit
            ),
        )

    async def workers(
        self, *, silent: bool = False, now: float | None = None
    ) -> list[WorkerRecord]:
        return self._do(now, lambda shard: inspector.workers(shard, silent=silent))

    async def settings(
        self,
        queue: str | None = None,
        *,
        tenant: str | None = None,
        limiter: str | None = None,
        cursor: str | None = None,
        now: float | None = None,
    ) -> Settings:
        checks.check_settings(queue, cursor)
        if queue is None and tenant is None and limiter is None:
            return self._do(now, lambda shard: inspector.settings(shard, cursor))
        return self._do(now, lambda s: inspector.settings_of(s, queue, tenant, limiter))

    async def documents(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> DocumentPage:
        check_document_page(kind, names, cursor, limit)
        return self._do(
            now, lambda shard: shard.documents.page(kind, names, cursor, limit, shard.now)
        )

    async def notes(
        self,
        trail: str,
        *,
        before: int | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> list[Note]:
        check_trail(trail, before, limit)
        return self._do(now, lambda shard: shard.trails.read(trail, before, limit))

    async def stats(
        self,
        queue: str | None = None,
        *,
        tenants: bool = False,
        tenant: str | None = None,
        now: float | None = None,
    ) -> Stats:
        return self._do(now, lambda shard: _stats(shard, queue, tenants=tenants, only=tenant))

    async def standing(self, id: str, *, now: float | None = None) -> Standing | None:
        return self._do(now, lambda shard: _standing(shard, id))

    async def forget_reader(self, reader: str) -> bool:
        checks.check_reader(reader)
        return self._do(None, lambda shard: shard.stream.forget(reader))

    async def libraries(self) -> list[Library]:
        return []

    async def load_libraries(self) -> list[str]:
        return []

    async def delete_library(self, name: str) -> None:
        """There is none."""

    async def layouts(self) -> list[ShardLayout]:
        tasks = self._do(None, lambda shard: len(shard.tasks))
        return [ShardLayout(shard=SHARD, layout=LAYOUT, tasks=tasks, way="nothing")]

    async def migrate(
        self, *, discard: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        """What lives in a process is always that of its release."""

    async def repair(
        self,
        *,
        apply: bool = False,
        now: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Mended]:
        # Nothing but its own code reaches what it holds.
        return self._do(now, lambda _: [])

    async def diagnose(self) -> list[Finding]:
        return self._do(None, inspector.diagnose)


def _stats(shard: Shard, name: str | None, *, tenants: bool, only: str | None) -> Stats:
    """What was counted, of one queue or of all."""
    queues = [queue for queue in shard.queues.values() if name is None or queue.name == name]
    by_tenant: dict[str, dict[str, TenantStats]] = {}
    more = False
    for queue in queues if tenants or only is not None else ():
        by_tenant[queue.name], others = _tenants(shard, queue, only)
        more = more or others
    return Stats(
        now=shard.now,
        queues={each.name: each.tally.shown(each.counts[State.DEFERRED]) for each in queues},
        tenants=by_tenant,
        more_tenants=more,
    )


def _tenants(shard: Shard, queue: Queue, only: str | None) -> tuple[dict[str, TenantStats], bool]:
    def weight(name: str) -> float:
        said = shard.tenant_settings
        merged = settings.laid_over(said.get(("", name)), said.get((queue.name, name)), name)
        return 1.0 if merged.weight is UNSET else merged.weight

    queued = {
        name: (each.counts[State.QUEUED], each.lengths) for name, each in queue.active.items()
    }
    return queue.tally.tenants(queued, shard.now, weight, only)


def _standing(shard: Shard, id: str) -> Standing | None:
    """A task, and all that may keep it from running."""
    task = shard.find(id)
    if task is None:
        return None
    tenant, queue, record = task.tenant, task.tenant.queue, task.record("info")
    queued = task.state is State.QUEUED
    ready = [each for each in queue.tenants.values() if each.status is READY] if queued else []
    parked_on = tenant.parked_on if queued and tenant.status is PARKED else None
    at_limiter = isinstance(parked_on, Limiter)
    return Standing(
        now=shard.now,
        record=record,
        queue_paused=queue.paused,
        tenant_paused=tenant.paused,
        waits_for=tuple(
            Waits(parent, found.state if (found := shard.find(parent)) is not None else None)
            for parent in islice(record.waiting_for, MAX_SHOWN)
        ),
        rooms=tuple(_rooms(shard, task, parked_on)) if queued else (),
        parked="limiter" if at_limiter else "tenant" if parked_on is not None else "",
        parked_at=parked_on.name if isinstance(parked_on, Limiter) else "",
        tenants_ahead=sum(_place(each) < _place(tenant) for each in ready)
        if tenant.status is READY
        else 0,
        tenants_ready=len(ready),
        tasks_ahead=_tasks_ahead(tenant, task) if queued else 0,
        started_last_minute=queue.tally.last_minute(shard.now),
        held=task.state is State.RUNNING and task.started_at is None,
    )


def _place(tenant: Tenant) -> tuple[float, bytes]:
    return tenant.tag, tenant.name.encode()


def _tasks_ahead(tenant: Tenant, task: Task) -> int:
    # In a line that is longer than what is looked at, tasks that are gone are counted, too.
    lines = [
        [entry[0] for entry in islice(level, _MAX_LOOKED_AT) if entry[0] is not None]
        for level in tenant.levels
    ]
    lengths = [
        len(line) if len(level) <= _MAX_LOOKED_AT else len(level)
        for line, level in zip(lines, tenant.levels, strict=True)
    ]
    own = task.level
    place = next((place for place, each in enumerate(lines[own]) if each is task), None)
    if place is None:
        return MAX_AHEAD
    return goes_before(own, place, lengths, tenant.turn, MAX_AHEAD)


def _rooms(shard: Shard, task: Task, parked_on: Gate | None) -> list[Room]:
    tenant, queue = task.tenant, task.tenant.queue
    rooms = []
    if queue.gate is not None:
        used = queue.counts[State.RUNNING]
        rooms.append(queue.gate.shown("queue", queue.name, used, shard.now))
    if tenant.gate is not None:
        used = tenant.counts[State.RUNNING]
        rooms.append(tenant.gate.shown("tenant", tenant.name, used, shard.now))
    named = dict.fromkeys(task.message.limiters, True)
    if isinstance(parked_on, Limiter):
        named.setdefault(parked_on.name, False)
    for name, needed in named.items():
        limiter = shard.limiters.get(name) or Limiter(name)
        rooms.append(limiter.standing(shard.now, needed=needed))
    return rooms
