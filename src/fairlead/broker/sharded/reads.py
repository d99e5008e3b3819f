"""Reads for people, over all shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from fairlead.broker.records import (
    Counts,
    Finding,
    Library,
    LimiterState,
    Mended,
    Page,
    Parts,
    QueueCounts,
    Settings,
    ShardLayout,
    Snapshot,
    TaskRecord,
    TenantCounts,
    WorkerRecord,
)
from fairlead.broker.requests import MAX_PAGE
from fairlead.broker.sharded.servers import joined_findings, unserved
from fairlead.broker.sharded.session import Session
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State

_ALL = 1_000_000  # entries of an outbox that the audit looks at
_FIELDS = Counts.__struct_fields__
_CIRCUITS = ("", "closed", "half_open", "open")  # from the best to the worst

_Edge = tuple[str, str, str, str]  # shard of the child, child, shard of the parent, parent


async def snapshot(
    session: Session,
    queue: str | None = None,
    *,
    tenants: bool = True,
    tenant: str | None = None,
    now: float | None = None,
) -> Snapshot:
    """Counts of all shards; they are not of one moment."""
    parts = await session.all(
        session.each(lambda store: store.snapshot(queue, tenants=tenants, tenant=tenant, now=now))
    )
    queues: dict[str, QueueCounts] = {}
    for part in parts.values():
        for name, counts in part.queues.items():
            queues[name] = _both(queues[name], counts) if name in queues else counts
    limiters: dict[str, LimiterState] = {}
    for part in parts.values():
        for name, state in part.limiters.items():
            limiters[name] = _worse(limiters[name], state) if name in limiters else state
    totals: dict[str, Any] = {
        field: sum(getattr(part, field) for part in parts.values()) for field in _FIELDS
    }
    return Snapshot(
        now=max(part.now for part in parts.values()),
        shutdown=all(part.shutdown for part in parts.values()),
        redis_active=all(part.redis_active for part in parts.values()),
        queues=queues,
        limiters=dict(islice(limiters.items(), MAX_PAGE)),
        more_limiters=len(limiters) > MAX_PAGE
        or any(part.more_limiters for part in parts.values()),
        **totals,
    )


async def find(
    session: Session, ids: Sequence[str], *, parts: Parts = "all", now: float | None = None
) -> list[TaskRecord | None]:
    """What is known of these tasks; of an id in two shards, what the first one knows.

    Raises if a shard is away and the others do not know all of them.
    """
    answers, away = await session.reachable(
        session.each(lambda store: store.find(ids, parts=parts, now=now))
    )
    found = [
        next((record for record in each if record is not None), None)
        for each in zip(*answers.values(), strict=True)
    ]
    if away and None in found:
        raise next(iter(away.values()))
    return found


async def page(
    session: Session,
    *,
    state: State | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
    now: float | None = None,
) -> Page:
    """Tasks of one shard after the other."""
    shard, place, after = _place(session, cursor)
    page = await session.stores[shard].page(
        state=state, queue=queue, tenant=tenant, cursor=place, limit=limit, now=now
    )
    return Page(tasks=page.tasks, cursor=f"{shard}:{page.cursor}" if page.cursor else after)


def _place(session: Session, cursor: str | None) -> tuple[str, str | None, str | None]:
    """A shard, the cursor in it, and the cursor of the next shard."""
    names = list(session.stores)
    shard, separator, place = (cursor or f"{names[0]}:").partition(":")
    if shard not in session.stores or not separator:
        raise InvalidOption("cursor", cursor, "one that an earlier page returned")
    following = names[names.index(shard) + 1 :]
    return shard, place or None, f"{following[0]}:" if following else None


async def workers(
    session: Session, *, silent: bool = False, now: float | None = None
) -> list[WorkerRecord]:
    """Workers heard of in the last 15 seconds, by any shard; the first one has their orders."""
    answers, _ = await session.reachable(
        session.each(lambda store: store.workers(silent=silent, now=now))
    )
    found: dict[str, WorkerRecord] = {}
    for worker in (each for part in answers.values() for each in part):
        known = found.get(worker.incarnation)
        if known is None or known.seen_at < worker.seen_at:
            found[worker.incarnation] = worker
    orders = {worker.incarnation: worker.order for worker in answers.get(session.default, ())}
    return [
        msgspec.structs.replace(worker, order=orders.get(name, ""))
        for name, worker in found.items()
    ]


async def settings(
    session: Session,
    queue: str | None = None,
    *,
    tenant: str | None = None,
    limiter: str | None = None,
    cursor: str | None = None,
    now: float | None = None,
) -> Settings:
    """What is set in one shard after the other; what is the same in all, only of the first."""
    if queue is not None or tenant is not None or limiter is not None:
        shard = session.default if queue is None else session.shard_of(queue)
        store = session.stores[shard]
        return await store.settings(queue, tenant=tenant, limiter=limiter, now=now)
    shard, place, after = _place(session, cursor)
    page = await session.stores[shard].settings(cursor=place, now=now)
    first = shard == session.default
    return Settings(
        now=page.now,
        queues=[each for each in page.queues if session.shard_of(each.queue) == shard],
        tenants=[
            each
            for each in page.tenants
            if (first if each.queue is None else session.shard_of(each.queue) == shard)
        ],
        limiters=page.limiters if first else [],
        cursor=after if page.cursor is None else f"{shard}:{page.cursor}",
    )


async def audit(
    session: Session, *, now: float | None = None, progress: Callable[[int], None] | None = None
) -> list[str]:
    """What is wrong with any shard, or between two of them."""
    findings: list[str] = []
    for shard, store in session.stores.items():
        found = await store.audit(now=now, progress=progress)
        findings += (f"shard {shard}: {each}" for each in found)
    lost = await _lost(session)
    if lost:  # what moved while it was read is found at its new place the second time
        lost &= await _lost(session)
    for shard, child, other, parent in sorted(lost):
        findings.append(
            f"shard {shard}: task {child} waits for {parent} of shard {other}, "
            "which does not know of it, and nothing is on its way"
        )
    return findings


async def repair(
    session: Session,
    *,
    apply: bool = False,
    now: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Mended]:
    """Mend one shard after the other."""
    found: dict[str, Mended] = {}
    for store in session.stores.values():
        for each in await store.repair(apply=apply, now=now, progress=progress):
            known = found.get(each.kind, Mended(kind=each.kind, text=each.text))
            found[each.kind] = msgspec.structs.replace(
                each,
                done=known.done + each.done,
                left=known.left + each.left,
                busy=known.busy + each.busy,
            )
    return list(found.values())


async def libraries(session: Session) -> list[Library]:
    """List what is on any of the servers, which may be one.

    A library of this release is there if all have it.
    """
    answers = await session.all(session.each(lambda store: store.libraries()))
    found: dict[str, Library] = {}
    for library in (library for part in answers.values() for library in part):
        known = found.setdefault(library.name, library)
        choose = min if library.current else max
        found[library.name] = choose(known, library, key=lambda each: each.functions)
    return [found[name] for name in sorted(found)]


async def load_libraries(session: Session) -> list[str]:
    """Load the libraries of this release where they are missing."""
    loaded: set[str] = set()
    for store in session.stores.values():
        loaded.update(await store.load_libraries())
    return sorted(loaded)


async def delete_library(session: Session, name: str) -> None:
    """Delete a function library of Fairlead on all servers."""
    for store in session.stores.values():
        await store.delete_library(name)


async def layouts(session: Session) -> list[ShardLayout]:
    """Return the layouts of all shards, in their order."""
    answers = await session.all(session.each(lambda store: store.layouts()))
    return [layout for part in answers.values() for layout in part]


async def migrate(
    session: Session, *, discard: bool = False, progress: Callable[[int], None] | None = None
) -> None:
    """Bring one shard after the other to the layout of this release."""
    for store in session.stores.values():
        await store.migrate(discard=discard, progress=progress)


async def diagnose(session: Session) -> list[Finding]:
    """What the shards say of themselves and of their servers; what all say, only once."""
    answers = await session.all(session.each(lambda store: store.diagnose()))
    snapshots = await session.all(session.each(lambda store: store.snapshot(tenants=False)))
    leftovers = unserved(snapshots, session.places, session.addresses)
    return [*joined_findings(answers, session.addresses), *leftovers]


async def in_transit(session: Session) -> dict[tuple[str, str], list[list[str]]]:
    """Entries by the shard they are in and the shard they go to."""
    names = list(session.stores)
    answers = await session.all(session.each(lambda store: store.outbox(names, _ALL)))
    return {
        (shard, other): [entry.decode().split("\x1f") for entry in entries]
        for shard, outbox in answers.items()
        for other, entries in zip(names, outbox, strict=True)
    }


async def _lost(session: Session) -> set[_Edge]:
    """Edges between shards that nobody will ever end."""
    transit = await in_transit(session)
    edges = await session.all(session.each(lambda store: store.far_edges()))
    safe = _safe(transit, {shard: known for shard, (_, known) in edges.items()})
    return {
        (shard, child, other, parent)
        for shard, (waits, _) in edges.items()
        for other, child, parent in waits
        if (shard, child, other, parent) not in safe
    }


def _safe(
    transit: Mapping[tuple[str, str], Sequence[Sequence[str]]],
    known: Mapping[str, set[tuple[str, str, str]]],
) -> set[_Edge]:
    """Edges that the parent's shard knows, is about to know, or has answered."""
    safe: set[_Edge] = set()
    for (source, target), entries in transit.items():
        for _, kind, child, _, parent, _ in entries:
            if kind == "l":
                safe.add((source, child, target, parent))
            elif kind == "t":
                safe.add((target, child, source, parent))
    for shard, edges in known.items():
        safe |= {(other, child, shard, parent) for other, child, parent in edges}
    return safe


def _both(one: QueueCounts, other: QueueCounts) -> QueueCounts:
    """A queue that was moved from one shard to another: what is in both."""
    tenants = dict(one.tenants)
    for name, counts in other.tenants.items():
        tenants[name] = _tenant(tenants[name], counts) if name in tenants else counts
    return QueueCounts(
        paused=one.paused or other.paused,
        oldest_at=min(
            (each.oldest_at for each in (one, other) if each.oldest_at is not None), default=None
        ),
        tenants=tenants,
        more_tenants=one.more_tenants or other.more_tenants,
        **msgspec.structs.asdict(_sum(one, other)),
    )


def _worse(one: LimiterState, other: LimiterState) -> LimiterState:
    """A limiter of two shards, each of which keeps to it by itself; the breaker as the worse is."""
    worse = max(one, other, key=lambda each: (_CIRCUITS.index(each.state), each.open_until or 0.0))
    return msgspec.structs.replace(
        worse,
        used=one.used + other.used,
        waiting=one.waiting + other.waiting,
        failed=max(one.failed, other.failed),
    )


def _tenant(one: TenantCounts, other: TenantCounts) -> TenantCounts:
    parked = one if one.parked else other
    return TenantCounts(
        paused=one.paused or other.paused,
        parked=parked.parked,
        parked_at=parked.parked_at,
        **msgspec.structs.asdict(_sum(one, other)),
    )


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(**{field: getattr(one, field) + getattr(other, field) for field in _FIELDS})
