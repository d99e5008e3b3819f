"""Reads of counters and documents, and of where one task stands, over all shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.broker.documents import DocumentPage, Note
from fairlead.broker.sharded.session import Session
from fairlead.broker.standing import Standing, Waits
from fairlead.broker.stats import (
    COUNTERS,
    HISTOGRAMS,
    TALLIED,
    Histogram,
    QueueStats,
    Stats,
    TenantStats,
)


async def forget_reader(session: Session, reader: str) -> bool:
    """Forget the place of a named reader in every shard; false if it had none in any."""
    calls = session.each(lambda store: store.forget_reader(reader))
    return any((await session.all(calls)).values())


async def documents(
    session: Session,
    kind: str,
    names: Sequence[str] | None = None,
    *,
    cursor: str | None = None,
    limit: int = 100,
    now: float | None = None,
) -> DocumentPage:
    """Read documents of the first shard."""
    return await session.first.documents(kind, names, cursor=cursor, limit=limit, now=now)


async def notes(
    session: Session,
    trail: str,
    *,
    before: int | None = None,
    limit: int = 100,
    now: float | None = None,
) -> list[Note]:
    """Read a trail of the first shard."""
    return await session.first.notes(trail, before=before, limit=limit, now=now)


async def stats(
    session: Session,
    queue: str | None = None,
    *,
    tenants: bool = False,
    tenant: str | None = None,
    now: float | None = None,
) -> Stats:
    """What all shards counted; it is not of one moment."""
    parts = await session.all(
        session.each(lambda store: store.stats(queue, tenants=tenants, tenant=tenant, now=now))
    )
    queues: dict[str, QueueStats] = {}
    by_tenant: dict[str, dict[str, TenantStats]] = {}
    for part in parts.values():
        for name, counts in part.queues.items():
            queues[name] = _both(queues[name], counts) if name in queues else counts
        for name, each in part.tenants.items():
            found = by_tenant.setdefault(name, {})
            for tenant, own in each.items():
                found[tenant] = _summed(found[tenant], own) if tenant in found else own
    return Stats(
        now=max(part.now for part in parts.values()),
        queues=queues,
        tenants=by_tenant,
        more_tenants=any(part.more_tenants for part in parts.values()),
        orphans=sum(part.orphans for part in parts.values()),
    )


async def standing(session: Session, id: str, *, now: float | None = None) -> Standing | None:
    """Where a task stands in its shard; what it waits for may be in others."""
    answers = await session.all(session.each(lambda store: store.standing(id, now=now)))
    found = next((each for each in answers.values() if each is not None), None)
    if found is None:
        return None
    elsewhere = [each.id for each in found.waits_for if each.state is None]
    if not elsewhere:
        return found
    known = await session.known(dict.fromkeys(session.stores, elsewhere), now)
    return msgspec.structs.replace(
        found,
        waits_for=tuple(
            each
            if each.state is not None
            else Waits(each.id, next((s for s, *_ in known.get(each.id, {}).values()), None))
            for each in found.waits_for
        ),
    )


def _both(one: QueueStats, other: QueueStats) -> QueueStats:
    """A queue that was moved from one shard to another: what happened in both."""
    counts: dict[str, Any] = {
        name: getattr(one, name) + getattr(other, name) for name in (*COUNTERS, "deferred")
    }
    times: dict[str, Any] = {
        name: _merged(getattr(one, name), getattr(other, name)) for name in HISTOGRAMS
    }
    return QueueStats(**counts, **times)


def _merged(one: Histogram, other: Histogram) -> Histogram:
    return Histogram(
        counts=tuple(a + b for a, b in zip(one.counts, other.counts, strict=True)),
        sum=one.sum + other.sum,
        largest=max(one.largest, other.largest),
    )


def _summed(one: TenantStats, other: TenantStats) -> TenantStats:
    counts: dict[str, Any] = {
        name: getattr(one, name) + getattr(other, name) for name in (*TALLIED, "queued")
    }
    longest = max(one.longest_wait, other.longest_wait)
    a, b, c, d = (mine + theirs for mine, theirs in zip(one.lines, other.lines, strict=True))
    return TenantStats(**counts, longest_wait=longest, weight=one.weight, lines=(a, b, c, d))
