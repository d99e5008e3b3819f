"""beat, give_back, transfer, order_worker: the leases of workers, wherever their tasks lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from fairlead.broker import checks
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import LEASE, BeatReply, Call, LeaseRef, Moved, WorkerOrder
from fairlead.broker.sharded.session import Session
from fairlead.broker.transfers import Transferred


async def beat(
    session: Session,
    incarnation: str,
    held: Sequence[LeaseRef] = (),
    *,
    answered: int | None = None,
    worker: WorkerRecord | None = None,
    lease: float = LEASE,
    now: float | None = None,
) -> BeatReply:
    checks.check_lease("lease", lease)
    with session.lock:
        places = [session.leases.get(ref.id) for ref in held]
    named = {
        shard: [ref for ref, place in zip(held, places, strict=True) if place in (shard, None)]
        for shard in session.stores
    }
    # Its order stands in the first shard alone: it must not bring one along to another, where
    # it would stay when the first one takes it back.
    elsewhere = None if worker is None else msgspec.structs.replace(worker, order="")
    # A shard that is away keeps nobody's leases in the others from being kept.
    works = {
        shard: partial(
            store.beat,
            incarnation,
            named[shard],
            answered=answered,
            worker=worker if shard == session.default else elsewhere,
            lease=lease,
            now=now,
        )
        for shard, store in session.stores.items()
    }
    answers = await session.most(works)
    kept = {
        ref
        for shard, answer in answers.items()
        for ref in set(named[shard]).difference(answer.lost)
    }
    silent = {shard: refs for shard, refs in named.items() if shard not in answers}
    kept.update(*silent.values())  # nobody can say
    queues = worker.queues if worker is not None else ()
    paused = {name for answer in answers.values() for name in answer.paused}
    first = answers.get(session.default)
    stands = "" if worker is None else worker.order  # as long as nobody can say
    return BeatReply(
        now=max(answer.now for answer in answers.values()),
        lost=[ref for ref in held if ref not in kept],
        cancelled=[ref for answer in answers.values() for ref in answer.cancelled],
        paused=[queue for queue in queues if queue in paused],
        unclaimed=sum(answer.unclaimed for answer in answers.values()),
        more=any(answer.more for answer in answers.values()),
        order=stands if first is None else first.order,
    )


async def order_worker(
    session: Session, call: Call, incarnation: str, order: WorkerOrder, *, now: float | None = None
) -> bool:
    """Order it in the first shard: an order in several could be taken back in some only."""
    checks.check_worker_order(order)
    line = session.line("order_worker", call)
    if line.answer is None:
        line.answer = await session.first.order_worker(call, incarnation, order, now=now)
    return bool(line.answer)


async def give_back(
    session: Session,
    incarnation: str,
    started: Sequence[str] | None = None,
    *,
    blocked: Sequence[str] = (),
    now: float | None = None,
) -> Moved:
    works = session.each(
        lambda store: store.give_back(incarnation, started, blocked=blocked, now=now)
    )
    # One that is away gives it back by itself, when the lease is over.
    return session.moved((await session.most(works)).values())


async def transfer(
    session: Session,
    refs: Sequence[LeaseRef],
    to: str,
    *,
    room: int,
    lease: float = LEASE,
    now: float | None = None,
) -> list[Transferred]:
    """Make loans those of another incarnation; it may have ``room`` of them in each shard."""
    checks.check_transfer(refs, lease)
    places = await session.locate([(ref.id, ref.incarnation, ref.token) for ref in refs], now)
    parts: dict[str, list[int]] = {}
    for index, ref in enumerate(refs):
        parts.setdefault(places[ref.id], []).append(index)
    works = {
        shard: partial(
            session.stores[shard].transfer,
            [refs[index] for index in part],
            to, room=room, lease=lease, now=now,
        )
        for shard, part in parts.items()
    }  # fmt: skip
    answers: list[Transferred] = ["full"] * len(refs)
    for shard, codes in (await session.most(works)).items():
        for index, code in zip(parts[shard], codes, strict=True):
            answers[index] = code
    pairs = zip(refs, answers, strict=True)
    session.ended([ref.id for ref, answer in pairs if answer == "moved"])
    return answers
