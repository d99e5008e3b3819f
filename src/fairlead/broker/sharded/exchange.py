"""exchange: outcomes go to the shards that lent the tasks, fetching goes from shard to shard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec

from fairlead.broker import checks
from fairlead.broker.requests import Call, ExchangeReply, Fetch, LeaseRef, Settled
from fairlead.broker.sharded.session import HURRY, Doubt, Line, Session, together
from fairlead.model.errors import Ambiguous, BrokerError, OutOfOrder, Refused, Unreachable
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased

_MOST_DOUBTS = 1_000  # incarnations and shards of which an unanswered exchange is remembered


class _Part(msgspec.Struct):
    """What one shard is sent: which settlements and marks of the call, and its queues."""

    settlements: list[int] = []
    started: list[int] = []
    queues: list[str] = []
    # What the answer to an exchange before this one says of others of the call, by their places.
    settled: dict[int, Settled] = {}
    marked: dict[int, Settled] = {}


async def exchange(
    session: Session,
    call: Call,
    settlements: Sequence[Settlement] = (),
    *,
    started: Sequence[LeaseRef] = (),
    fetch: Fetch | None = None,
    now: float | None = None,
) -> ExchangeReply:
    checks.check_exchange(settlements, started, fetch)
    session.takes.end(call)
    line = session.line("exchange", call)
    if line.answer is not None:
        return cast(ExchangeReply, line.answer)
    if line.plan is None:
        line.plan = await _plan(session, call, settlements, started, fetch, now)
    plan: dict[str, _Part] = line.plan
    failed: dict[str, BrokerError] = {}

    async def ask(shard: str, part: Fetch | None) -> None:
        if shard in line.kept:
            return
        why = session.away.why(shard)
        if why is not None:
            failed[shard] = why
            return
        numbered = _hurried(call)
        try:
            line.kept[shard] = await _send(
                session, shard, numbered, plan[shard], settlements, started, part, now
            )
        except (Ambiguous, Unreachable, Refused) as error:
            failed[shard] = error
            session.away.failed(shard, error)

    await asyncio.gather(*(ask(shard, None) for shard, part in plan.items() if not part.queues))
    leased: list[Leased] = []
    for shard, part in plan.items():
        if fetch is None or not part.queues:
            continue
        left = fetch.max - len(leased)
        if not (left or part.settlements or part.started or shard in session.woken):
            continue
        session.woken.discard(shard)
        start = None if fetch.start is None else max(0, fetch.start - len(leased))
        order = msgspec.structs.replace(fetch, queues=tuple(part.queues), max=left, start=start)
        await ask(shard, order)
        if shard in line.kept:
            lent = line.kept[shard].leased
            session.lent((lease.message.id for lease in lent), shard)
            leased += lent
    if failed and not line.kept and fetch is not None:
        raise together(list(failed.values()), partly=False)
    # Whoever only brings outcomes is told to bring them later, and others do not wait for that.
    # What a shard lent in a reply that was lost is claimed by nobody: the next beat gives it
    # back.
    return _joined(session, line, settlements, started, leased)


async def _send(
    session: Session,
    shard: str,
    call: Call,
    part: _Part,
    settlements: Sequence[Settlement],
    started: Sequence[LeaseRef],
    fetch: Fetch | None,
    now: float | None,
) -> ExchangeReply:
    """Exchange a shard's part of the call with it; what is not answered is in doubt."""
    await _clear_up(session, shard, call, part, settlements, started, now)
    ends = [settlements[i] for i in part.settlements]
    marks = [started[i] for i in part.started]
    try:
        return await session.stores[shard].exchange(call, ends, started=marks, fetch=fetch, now=now)
    except Ambiguous:
        _doubt(session, shard, call.incarnation, Doubt(call.number, ends, marks))
        raise


def _doubt(session: Session, shard: str, incarnation: str, doubt: Doubt) -> None:
    with session.lock:
        session.doubts[incarnation, shard] = doubt
        while len(session.doubts) > _MOST_DOUBTS:
            del session.doubts[next(iter(session.doubts))]


async def _clear_up(
    session: Session,
    shard: str,
    call: Call,
    part: _Part,
    settlements: Sequence[Settlement],
    started: Sequence[LeaseRef],
    now: float | None,
) -> None:
    """Repeat the exchange that a shard did not answer, if the next one is due.

    What was sent with it and comes again is answered by it: under another number, an outcome
    that was applied would be taken for that of a lease which is over.
    """
    doubt = session.doubts.get((call.incarnation, shard))
    if doubt is None or doubt.number == call.number:
        return
    earlier = Call(call.incarnation, doubt.number, call.until)
    try:
        # Nothing is fetched: what was lent then nobody claims, and the next beat gives it back.
        reply = await session.stores[shard].exchange(
            earlier, doubt.settlements, started=doubt.started, now=now
        )
    except OutOfOrder:  # the shard has answered a later call: nothing is known of this one
        reply = None
    with session.lock:
        session.doubts.pop((call.incarnation, shard), None)
    if reply is None:
        return
    ends = {(e.id, e.token): a for e, a in zip(doubt.settlements, reply.settled, strict=True)}
    marks = {(r.id, r.token): a for r, a in zip(doubt.started, reply.started, strict=True)}
    for i in part.settlements:
        if (answer := ends.get((settlements[i].id, settlements[i].token))) is not None:
            part.settled[i] = answer
    for i in part.started:
        if (answer := marks.get((started[i].id, started[i].token))) is not None:
            part.marked[i] = answer
    part.settlements = [i for i in part.settlements if i not in part.settled]
    part.started = [i for i in part.started if i not in part.marked]


async def _plan(
    session: Session,
    call: Call,
    settlements: Sequence[Settlement],
    started: Sequence[LeaseRef],
    fetch: Fetch | None,
    now: float | None,
) -> dict[str, _Part]:
    leases = [(each.id, call.incarnation, each.token) for each in settlements]
    leases += [(ref.id, ref.incarnation, ref.token) for ref in started]
    places = await session.locate(leases, now) if leases else {}
    plan: dict[str, _Part] = {}
    if fetch is not None:
        for shard, queues in session.places.split(fetch.queues, session.turn).items():
            plan.setdefault(shard, _Part()).queues = queues
        session.turn += 1
    for i, settlement in enumerate(settlements):
        plan.setdefault(places[settlement.id], _Part()).settlements.append(i)
    for i, ref in enumerate(started):
        plan.setdefault(places[ref.id], _Part()).started.append(i)
    return plan or {session.default: _Part()}


def _joined(
    session: Session,
    line: Line,
    settlements: Sequence[Settlement],
    started: Sequence[LeaseRef],
    leased: list[Leased],
) -> ExchangeReply:
    settled: dict[int, Settled] = {}
    marked: dict[int, Settled] = {}
    replies: dict[str, ExchangeReply] = line.kept
    for part in line.plan.values():
        settled.update(part.settled)
        marked.update(part.marked)
    for shard, reply in replies.items():
        part = line.plan[shard]
        settled.update(zip(part.settlements, reply.settled, strict=True))
        marked.update(zip(part.started, reply.started, strict=True))
        if reply.due_in == 0.0:
            session.carrier.soon((shard,))
    session.now = max(session.now, *(reply.now for reply in replies.values()), 0.0)
    session.ended(settlements[i].id for i, answer in settled.items() if answer == "applied")
    dues = [reply.due_in for reply in replies.values() if reply.due_in is not None]
    reply = ExchangeReply(
        now=session.now,
        settled=[settled.get(i, "later") for i in range(len(settlements))],
        started=[marked.get(i, "later") for i in range(len(started))],
        leased=leased,
        more=any(reply.more for reply in replies.values()),
        due_in=min(dues, default=None),
    )
    if "later" not in reply.settled:  # or else who asks again under its number gets the rest
        line.answer = reply
    return reply


def _hurried(call: Call) -> Call:
    until = asyncio.get_running_loop().time() + HURRY
    if call.until is not None:
        until = min(until, call.until)
    return Call(call.incarnation, call.number, until)
