"""What is done with schedules: reading, carrying orders out, and writing what is declared."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord
from fairlead.client.client import Client
from fairlead.client.schedule_spec import Declared, spec_of
from fairlead.model.errors import (
    InvalidInput,
    InvalidOption,
    Refused,
    ScheduleConflict,
    UnknownSchedule,
)
from fairlead.model.names import check_schedule
from fairlead.model.schedule import MAX_MISSED, ScheduleSpec, Timing, next_slot, slots

_TRIES = 5  # at a change, while others change the same schedule
_MOST_RUNS = 1_000

log = logging.getLogger("fairlead.client")


async def read(client: Client, name: str) -> ScheduleRecord:
    found = await client.store.schedules([check_schedule(name)])
    if not found:
        raise UnknownSchedule(name)
    return found[0]


async def carry_out(client: Client, order: ScheduleOrder) -> str:
    """Carry one order out; the code, unless it is a refusal."""
    [answer] = await client.plan([order])
    match answer.code:
        case "unknown":
            raise UnknownSchedule(order.name)
        case "exists":
            raise ScheduleConflict(order.name, "exists already; change it, or choose another name")
        case "full":
            raise Refused("full", "there are 10,000 schedules already; delete some")
    return answer.code


async def revise(
    client: Client, name: str, order: Callable[[ScheduleRecord], Awaitable[ScheduleOrder]]
) -> None:
    """Change what is stored now, and begin anew if somebody else was faster."""
    for _ in range(_TRIES):
        if await carry_out(client, await order(await read(client, name))) != "stale":
            return
    raise ScheduleConflict(name, "is being changed by others all the time; try again")


async def replacement(
    client: Client, record: ScheduleRecord, old: ScheduleSpec, new: ScheduleSpec
) -> ScheduleOrder:
    """Replace a schedule; slots that are still to be fired stay so if its times do."""
    next_at = record.next_at
    if not same_times(old.timing, new.timing):
        next_at = next_slot(new.timing, await client.now())
    return ScheduleOrder(
        name=record.name,
        action="put",
        queue=new.template.queue,
        spec=new.encode(),
        next_at=next_at,
        revision=record.revision,
    )


def over(name: str, rule: Timing) -> InvalidInput:
    """The error for one that has no slot to come."""
    return InvalidInput(f"schedule {name!r} ({rule}) lies in the past")


def same_times(one: Timing, other: Timing) -> bool:
    """Whether their slots are the same, whatever is done about those that were missed."""
    policy = {"missed": "latest", "max_missed": MAX_MISSED}
    return msgspec.structs.replace(one, **policy) == msgspec.structs.replace(other, **policy)


async def next_runs(client: Client, name: str, count: int) -> Sequence[float]:
    if type(count) is not int or not 1 <= count <= _MOST_RUNS:
        raise InvalidOption("count", count, f"a whole number from 1 to {_MOST_RUNS}")
    record = await read(client, name)
    after = max(await client.now(), record.last_slot or 0.0)
    return slots(spec_of(record).timing, after, math.inf, count)


async def declare(client: Client, declared: Iterable[Declared]) -> int:
    wanted = {each.name: each for each in declared}
    written = 0
    for _ in range(_TRIES):
        if not wanted:
            break
        orders = await _differing(client, wanted)
        answers = await client.plan(orders)
        if any(answer.code == "full" for answer in answers):
            raise Refused("full", "there are 10,000 schedules already; delete some")
        written += sum(answer.code == "done" for answer in answers)
        again = {answer.name for answer in answers if answer.code in ("stale", "exists")}
        wanted = {name: each for name, each in wanted.items() if name in again}
    for name in wanted:
        fields = {"schedule": name, "reason": "it is being changed by others all the time"}
        log.warning("schedule not written", extra=fields)
    return written


async def _differing(client: Client, wanted: Mapping[str, Declared]) -> list[ScheduleOrder]:
    """What has to be written, so that the broker knows what the program declares."""
    stored = {record.name: record for record in await client.store.schedules(list(wanted))}
    orders = []
    for name, each in wanted.items():
        record = stored.get(name)
        if record is None:
            orders.append(
                ScheduleOrder(
                    name=name,
                    action="create",
                    queue=each.spec.template.queue,
                    spec=each.spec.encode(),
                    next_at=next_slot(each.spec.timing, await client.now()),
                )
            )
            continue
        try:
            old = spec_of(record)
        except InvalidInput as error:  # of a later release: it knows better
            log.warning("schedule not written", extra={"schedule": name, "reason": str(error)})
            continue
        if old.declared != each.spec.declared:
            _warn_of_another(name, old, each.spec)
            orders.append(await replacement(client, record, old, each.spec))
    return orders


def _warn_of_another(name: str, old: ScheduleSpec, new: ScheduleSpec) -> None:
    """Two may have the same name by accident; then one of them is gone."""
    was, is_now = old.template.task, new.template.task
    fields = {"schedule": name, "was": was, "is_now": is_now}
    if was != is_now:
        log.warning("schedule %s of task %s is now one of %s", name, was, is_now, extra=fields)
    elif not old.declared:
        log.warning(
            "schedule %s of task %s, made at run time, is replaced by what the program declares",
            name,
            was,
            extra=fields,
        )
