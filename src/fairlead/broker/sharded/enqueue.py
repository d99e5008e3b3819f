"""enqueue and fire: a batch split by the shards of its queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import cast

import msgspec

from fairlead.broker import checks
from fairlead.broker.requests import Call, Firing, LeaseRef, Receipt, Submission
from fairlead.broker.sharded.session import Session, together
from fairlead.broker.sharded.stages import Places, incarnation_of, stages_of
from fairlead.broker.submission_checks import check_submissions
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import State
from fairlead.runtime import fault_injection

_Found = Mapping[str, Mapping[str, tuple[State, int, str]]]  # by id and shard


async def enqueue(
    session: Session, call: Call, submissions: Sequence[Submission], *, now: float | None = None
) -> list[Receipt]:
    check_submissions(submissions)
    return await _enter(session, "enqueue", call, submissions, now, submissions)


async def fire(
    session: Session, call: Call, firings: Sequence[Firing], *, now: float | None = None
) -> list[Receipt]:
    submissions = [firing.submission for firing in firings]
    check_submissions(submissions)
    checks.check_slots(firings)
    return await _enter(session, "fire", call, submissions, now, firings)


async def _enter(
    session: Session,
    verb: str,
    call: Call,
    submissions: Sequence[Submission],
    now: float | None,
    items: Sequence[Submission | Firing],
) -> list[Receipt]:
    """Stage by stage: a dependency of the same batch in another shard has to be there first.

    The stages follow from the batch alone, and each has a line of numbers of its own, so that
    a repeated call asks the same shards the same again.
    """
    line = session.line(verb, call)
    if line.answer is not None:
        return cast(list[Receipt], line.answer)
    stages = stages_of(submissions, _homes(session, verb, submissions))
    if not submissions:
        stages[0][session.default] = []
    receipts: dict[int, Receipt] = {}
    entered: dict[str, str] = {}  # by id of what this batch brought in: its shard
    linked = any(each.ended is not None for each in submissions)  # others may wait for one
    for number, stage in enumerate(stages):
        numbered = call if number == 0 else _later(call, number)
        found: _Found = {}
        if any((number, shard) not in line.kept for shard in stage):
            try:
                found = await _found(session, submissions, stage, entered, now)
            except BrokerError as error:  # stages before it are done: that must not be denied
                raise together([error], partly=bool(line.kept)) from error
        works: dict[tuple[int, str], Callable[[], Awaitable[list[Receipt]]]] = {}
        for shard, places in stage.items():
            batch = [_unfenced(items[i], shard, found) for i in places]
            elsewhere = {
                id: next(other for other in shards if other != shard)
                for id, shards in found.items()
                if any(other != shard for other in shards)
            }
            linked = linked or bool(elsewhere)
            works[number, shard] = partial(
                session.stores[shard].enter, numbered, batch, elsewhere, now=now
            )
        answers = await session.all(works, line.kept)
        if len(stages) == len(stage) == 1:
            (receipt,) = answers.values()  # perhaps those to another batch: see the contract
            receipts = dict(enumerate(receipt))
        else:
            for (_, shard), answer in answers.items():
                receipts.update(zip(stage[shard], answer, strict=True))
                brought = (receipt.id for receipt in answer if receipt.code == "accepted")
                entered.update(dict.fromkeys(brought, shard))
    if linked:
        fault_injection.reached("stored")
        session.carrier.soon(session.stores)
    line.answer = answer = [receipts[i] for i in range(len(receipts))]
    return answer


def _homes(session: Session, verb: str, submissions: Sequence[Submission]) -> list[str]:
    """Return the shard of each task; what a schedule fires lies where the schedule does."""
    messages = [submission.message for submission in submissions]
    if verb == "fire":
        return [session.places.home(each.queue) for each in messages]
    return [session.places.placed(each.queue, each.level) for each in messages]


async def _found(
    session: Session,
    submissions: Sequence[Submission],
    stage: Places,
    entered: Mapping[str, str],
    now: float | None,
) -> _Found:
    """What other shards know of the tasks that those of a stage name.

    Nobody is asked about tasks that the batch itself has brought in.
    """
    asked = _questions(session, submissions, stage, entered)
    found = await session.known(asked, now)
    for id, shard in entered.items():
        found.setdefault(id, {})[shard] = State.QUEUED, 0, ""  # that it is there is enough
    return found


def _questions(
    session: Session, submissions: Sequence[Submission], stage: Places, entered: Mapping[str, str]
) -> dict[str, list[str]]:
    """By shard: which tasks it may know that a task of another shard names."""
    asked: dict[str, list[str]] = {}
    for shard, places in stage.items():
        named: list[str] = []
        for submission in (submissions[i] for i in places):
            others = (dependency.id for dependency in submission.depends_on)
            named += (id for id in others if id not in entered)
            if submission.fence is not None:
                named.append(submission.fence.id)
        for other in session.stores:
            if named and other != shard:
                asked.setdefault(other, []).extend(named)
    return asked


def _later(call: Call, stage: int) -> Call:
    """The call of a later stage, which has a line of numbers of its own."""
    name = incarnation_of(call.incarnation, stage)
    return Call(name, call.number, call.until, call.hasty, call.bound)


def _unfenced(item: Submission | Firing, shard: str, found: _Found) -> Submission | Firing:
    """The item without its fence, if that is a lease of another shard which is in force.

    One that is over stays: the item's own shard does not know it and answers ``fenced``.
    """
    if isinstance(item, Firing):
        free = _unfenced(item.submission, shard, found)
        return msgspec.structs.replace(item, submission=free)
    if item.fence is not None and _in_force(item.fence, shard, found):
        return msgspec.structs.replace(item, fence=None)
    return item


def _in_force(fence: LeaseRef, shard: str, found: _Found) -> bool:
    proof = (State.RUNNING, fence.token, fence.incarnation)
    others = found.get(fence.id, {}).items()
    return any(other != shard and known == proof for other, known in others)
