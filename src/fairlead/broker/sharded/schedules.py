"""plan, tick, schedules over several shards: a schedule lies in the shard of its queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from fairlead.broker import checks
from fairlead.broker.requests import Call
from fairlead.broker.schedules import Scheduled, ScheduleOrder, ScheduleRecord, Ticked
from fairlead.broker.sharded.session import Session
from fairlead.model.errors import BrokerError, InvalidInput
from fairlead.runtime.ids import new_id

_TRIES = 5  # at a move, while others change the same schedule

_log = logging.getLogger(__name__)


class _Plan(msgspec.Struct):
    """How a batch is split: what has to go to another shard first, then the rest in its place."""

    leaving: dict[str, list[int]]  # by the shard that has it: put under another shard's queue
    places: dict[str, list[int]]
    strays: dict[str, list[int]]  # further copies of what is deleted
    before: dict[str, ScheduleRecord]  # those that leave, as they were


async def plan(
    session: Session, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
) -> list[Scheduled]:
    checks.check_plan(orders)
    line = session.line("plan", call)
    if line.answer is not None:
        return cast(list[Scheduled], line.answer)
    if line.plan is None:
        line.plan = _split_orders(session, orders, await _look_up(session, orders, now))
    plan: _Plan = line.plan
    done = await _relocate(session, call, orders, plan, line.kept, now)
    works: dict[tuple[str, str], Any] = {
        ("", shard): partial(
            session.stores[shard].plan, call, [orders[i] for i in indexes], now=now
        )
        for shard, indexes in plan.places.items()
    }
    for (_, shard), answers in (await session.all(works, line.kept)).items():
        done.update(zip(plan.places[shard], answers, strict=True))
    works = {}
    for shard, indexes in plan.strays.items():
        gone = [_deletion(orders[i].name) for i in indexes if done[i].code == "done"]
        works["stray", shard] = partial(session.stores[shard].plan, _once(), gone, now=now)
    await session.all(works, line.kept)
    line.answer = result = [done[i] for i in range(len(orders))]
    return result


async def tick(session: Session, *, now: float | None = None) -> Ticked:
    answers = await session.most(session.each(lambda store: store.tick(now=now)))
    due: list[ScheduleRecord] = []
    times: dict[str, float] = {}
    more = any(answer.more for answer in answers.values())
    for shard, answer in answers.items():
        for record in answer.due:
            if session.shard_of(record.queue) == shard:
                due.append(record)
                times[record.name] = answer.now
            else:
                more = await _take_home(session, shard, record, now) or more
    latest = max(answer.now for answer in answers.values())
    return Ticked(now=latest, due=due, more=more, times=times)


async def schedules(
    session: Session, names: Sequence[str] | None = None, *, now: float | None = None
) -> list[ScheduleRecord]:
    found = _merged(session, await _by_shard(session, names, now))
    return [found[name][1] for name in sorted(found)]


# -- where they are ------------------------------------------------------------------------


async def _by_shard(
    session: Session, names: Sequence[str] | None, now: float | None
) -> dict[str, list[ScheduleRecord]]:
    return await session.all(session.each(lambda store: store.schedules(names, now=now)))


async def _look_up(
    session: Session, orders: Sequence[ScheduleOrder], now: float | None
) -> dict[str, list[ScheduleRecord]]:
    """What is known of the names, as far as it matters.

    A shard that is away does not matter to schedules that were found in their own.
    """
    names = list(dict.fromkeys(each.name for each in orders if not _is_placed(each)))
    if not names:
        return {}
    found = await session.most(session.each(lambda store: store.schedules(names, now=now)))
    home = {
        record.name
        for shard, records in found.items()
        for record in records
        if session.shard_of(record.queue) == shard
    }
    if len(found) < len(session.stores) and not home.issuperset(names):
        return await _by_shard(session, names, now)
    return found


def _merged(
    session: Session, found: Mapping[str, Sequence[ScheduleRecord]]
) -> dict[str, tuple[str, ScheduleRecord]]:
    """By name: the shard and the record, of two the one in the shard of its queue."""
    known: dict[str, tuple[str, ScheduleRecord]] = {}
    for shard, records in found.items():
        for record in records:
            if record.name not in known or session.shard_of(record.queue) == shard:
                known[record.name] = shard, record
    return known


def _split_orders(
    session: Session, orders: Sequence[ScheduleOrder], found: Mapping[str, Sequence[ScheduleRecord]]
) -> _Plan:
    merged = _merged(session, found)
    known = {name: shard for name, (shard, _) in merged.items()}
    plan = _Plan({}, {} if orders else {session.default: []}, {}, {})
    said: set[str] = set()
    for i, order in enumerate(orders):
        shard = known.get(order.name, session.default)
        if order.action == "delete":
            for other, records in found.items():
                if other != shard and any(each.name == order.name for each in records):
                    plan.strays.setdefault(other, []).append(i)
        if _is_placed(order) and order.name not in known:
            shard = session.shard_of(order.queue)
        if order.action == "put" or (order.action == "create" and order.name not in known):
            shard = session.shard_of(order.queue)
            if known.get(order.name, shard) != shard:
                if order.name in said:
                    raise InvalidInput(
                        f"schedule {order.name!r} is named twice, for queues in two shards; "
                        "use two calls"
                    )
                plan.leaving.setdefault(known[order.name], []).append(i)
                plan.before[order.name] = merged[order.name][1]
                known[order.name] = shard
                said.add(order.name)
                continue
            known[order.name] = shard
        said.add(order.name)
        plan.places.setdefault(shard, []).append(i)
    return plan


# -- moving --------------------------------------------------------------------------------


async def _relocate(
    session: Session,
    call: Call,
    orders: Sequence[ScheduleOrder],
    plan: _Plan,
    kept: dict[Any, Any],
    now: float | None,
) -> dict[int, Scheduled]:
    """Put under its new queue where it is, so that it is fired no more; then take it there."""
    away = Call(f"{call.incarnation}/leaving", call.number, call.until)
    works: dict[tuple[str, Any], Any] = {
        ("leaving", shard): partial(
            session.stores[shard].plan, away, [orders[i] for i in indexes], now=now
        )
        for shard, indexes in plan.leaving.items()
    }
    done: dict[int, Scheduled] = {}
    moves: dict[tuple[str, Any], Any] = {}
    for (_, shard), answers in (await session.all(works, kept)).items():
        for i, answer in zip(plan.leaving[shard], answers, strict=True):
            done[i] = answer
            if answer.code in ("done", "unchanged"):
                before = plan.before[orders[i].name]
                moves["move", i] = partial(_follow, session, shard, orders[i].queue, before, now)
    for (_, i), moved in (await session.all(moves, kept)).items():
        done[i] = moved
    return done


async def _follow(
    session: Session, source: str, queue: str, before: ScheduleRecord, now: float | None
) -> Scheduled:
    """Take a schedule to the shard of its new queue; undo that change if there is no room."""
    name, target = before.name, session.stores[session.shard_of(queue)]
    for _ in range(_TRIES):
        found = await session.stores[source].schedules([name], now=now)
        if not found:  # somebody was faster
            break
        answer = await _move(session, source, found[0], now)
        if answer.code == "full":
            back = ScheduleOrder(
                name=name,
                action="put",
                queue=before.queue,
                spec=before.spec,
                next_at=before.next_at,
                revision=found[0].revision,
            )
            await session.stores[source].plan(_once(), [back], now=now)
        if answer.code != "stale":
            return answer
    there = await target.schedules([name], now=now)
    if there:
        return Scheduled(name=name, code="done", revision=there[0].revision)
    return Scheduled(name=name, code="stale")


async def _take_home(
    session: Session, source: str, record: ScheduleRecord, now: float | None
) -> bool:
    """Move one that was found in the wrong shard; whether it went."""
    code: str
    try:
        code = (await _move(session, source, record, now)).code
    except BrokerError as error:  # another time: the others do not wait for it
        code = type(error).__name__
    fields = {"schedule": record.name, "shard": session.shard_of(record.queue), "was_in": source}
    if code == "done":
        _log.info("schedule moved to the shard of its queue", extra=fields)
    else:
        _log.warning("schedule not moved; tried again", extra={**fields, "reason": code})
    return code == "done"


async def _move(
    session: Session, source: str, record: ScheduleRecord, now: float | None
) -> Scheduled:
    """There first, then away from here: ``done``, ``full``, or ``stale`` if it was changed."""
    name, target = record.name, session.stores[session.shard_of(record.queue)]
    there = await target.schedules([name], now=now)
    revision = there[0].revision if there else 0
    if not there:
        arrival = ScheduleOrder(
            name=name,
            action="create",
            queue=record.queue,
            spec=record.spec,
            next_at=record.next_at,
            last_slot=record.last_slot,
        )
        pause = [ScheduleOrder(name=name, action="pause")] if record.paused else []
        made = await target.plan(_once(), [arrival, *pause], now=now)
        if made[0].code == "full":
            return made[0]
        revision = made[-1].revision
    leaving = _deletion(name, record.revision)
    [left] = await session.stores[source].plan(_once(), [leaving], now=now)
    if left.code != "stale":
        return Scheduled(name=name, code="done", revision=revision)
    if not there:
        await target.plan(_once(), [_deletion(name, revision)], now=now)
    return left


def _is_placed(order: ScheduleOrder) -> bool:
    """Whether it need not be looked for: whoever skips was handed it where it lies."""
    return order.action == "skip" and bool(order.queue)


def _deletion(name: str, revision: int | None = None) -> ScheduleOrder:
    return ScheduleOrder(name=name, action="delete", revision=revision)


def _once() -> Call:
    """A call that nobody repeats: what it did is looked at, and what is missing is done."""
    return Call(f"move-{new_id()}", 1)
