"""Flows over several shards: each lies in one of them as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from fairlead.broker.flow_checks import check_flow_order, check_members, check_part
from fairlead.broker.flows import FlowMember, FlowOrder, FlowPart, FlowRecord, Staged
from fairlead.broker.requests import Call, Moved
from fairlead.broker.sharded.session import Session
from fairlead.model.errors import InvalidInput

_MOST_WRITING = 100  # flows that are being written at a time, of which members are remembered
#: What is said of a commit if shards say different things: the first of these.
_LEAST = ("committed", "incomplete", "duplicate", "closed", "unknown")


async def stage(
    session: Session, call: Call, part: FlowPart, *, now: float | None = None
) -> Staged:
    """Write a part into the shard of its queues. Dependencies may live in other shards."""
    check_part(part)
    shard = _place(session, part)
    line = session.line("stage", call)
    if line.answer is None:
        own = _members(session, call, part, shard)
        ids = [d.id for m in part.members for d in m.depends_on if d.id not in own]
        others = {name: ids for name in session.stores if name != shard}
        found = await session.known(others, now) if shard not in line.kept else {}
        elsewhere = {id: next(iter(shards)) for id, shards in found.items()}
        stage = partial(session.stores[shard].stage_from, call, part, elsewhere, now=now)
        line.answer = (await session.all({shard: stage}, line.kept))[shard]
    return cast(Staged, line.answer)


def _members(session: Session, call: Call, part: FlowPart, shard: str) -> set[str]:
    """What is known here of the members of the flow, with those of this part."""
    key = call.incarnation, part.flow
    with session.lock:
        place, members = session.writing.pop(key, (shard, set()))
        if part.number == 0 or place != shard:
            members = set()
        members.update(member.message.id for member in part.members)
        session.writing[key] = shard, members
        if len(session.writing) > _MOST_WRITING:  # of the others all shards are asked
            del session.writing[next(iter(session.writing))]
        return members


def _place(session: Session, part: FlowPart) -> str:
    """The shard of all queues of a part, or ``InvalidInput``."""
    places: dict[str, str] = {}
    for queue in [share.queue for share in part.shares]:
        places.setdefault(session.shard_of(queue), queue)
    for member in part.members:
        places.setdefault(session.shard_of(member.message.queue), member.message.queue)
    if len(places) > 1:
        (one, first), (other, second) = list(places.items())[:2]
        raise InvalidInput(
            f"flow {part.flow} has tasks of queue {first} in shard {one} and of queue {second} "
            f"in shard {other}; put its queues into one shard, or make it several flows"
        )
    return next(iter(places), session.default)


async def commit(session: Session, call: Call, flow: str, *, now: float | None = None) -> Staged:
    line = session.line("commit", call)
    if line.answer is None:
        with session.lock:
            written = session.writing.get((call.incarnation, flow))
        works = {
            shard: partial(store.commit, call, flow, now=now)
            for shard, store in session.stores.items()
            if written is None or shard == written[0]
        }
        answers = list((await session.all(works, line.kept)).values())
        line.answer = min(answers, key=lambda each: _LEAST.index(each.code))
        with session.lock:
            session.writing.pop((call.incarnation, flow), None)
        session.carrier.soon(session.stores)
    return cast(Staged, line.answer)


async def alter_flow(
    session: Session, call: Call, order: FlowOrder, *, now: float | None = None
) -> Moved | None:
    check_flow_order(order)
    line = session.line("alter_flow", call)
    if line.answer is None:
        works = session.each(lambda store: store.alter_flow(call, order, now=now))
        answers = (await session.all(works, line.kept)).values()
        line.answer = (next((each for each in answers if each is not None), None),)
        session.carrier.soon(session.stores)
    (moved,) = cast(tuple[Moved | None], line.answer)
    return moved


async def flows(
    session: Session, ids: Sequence[str], *, now: float | None = None
) -> list[FlowRecord | None]:
    works = session.each(lambda store: store.flows(ids, now=now))
    answers = await session.all(works)
    return [
        next((found for found in each if found is not None), None)
        for each in zip(*answers.values(), strict=True)
    ]


async def members(
    session: Session, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
) -> list[str]:
    check_members(start, limit)
    works = session.each(lambda store: store.members(flow, start=start, limit=limit, now=now))
    answers = await session.all(works)
    return next((found for found in answers.values() if found), [])


async def graph(
    session: Session, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
) -> list[FlowMember]:
    check_members(start, limit)
    works = session.each(lambda store: store.graph(flow, start=start, limit=limit, now=now))
    answers = await session.all(works)
    return next((found for found in answers.values() if found), [])
