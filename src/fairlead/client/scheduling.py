"""Schedules of an app: declared above a task, or made and changed while everything runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import msgspec

from fairlead.broker.firing import submission_of
from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord
from fairlead.client.call import TaskCall
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.handle import Handle
from fairlead.client.receipts import raise_for
from fairlead.client.scheduled import (
    Declared,
    ScheduleInfo,
    altered,
    declaration,
    info_of,
    rule_of,
    spec_of,
    template_of,
)
from fairlead.client.task import Sender
from fairlead.model.errors import (
    InvalidInput,
    InvalidOption,
    Refused,
    ScheduleConflict,
    UnknownSchedule,
)
from fairlead.model.names import check_schedule
from fairlead.model.schedule import ScheduleSpec, TimingOptions, next_slot
from fairlead.runtime.ids import new_id

__all__ = ("Schedules", "Scheduling")

T = TypeVar("T", bound=Sender[..., Any])
_Call = TaskCall[Any] | Sender[..., Any]

_TRIES = 5  # at a change, while others change the same schedule
_MOST_RUNS = 1_000

log = logging.getLogger("fairlead.client")


class Schedules:
    """The schedules of a broker: ``app.schedules``. Plain methods are for sync code."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._declared: dict[str, Declared] = {}

    # -- making and changing -------------------------------------------------------------------

    async def acreate(
        self, name: str, call: _Call, cron: str | None = None, /, **when: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Create a schedule for a task, or for ``task.call(...)``; ScheduleConflict if it exists.

        Give a cron expression, ``every=`` or ``at=``.
        """
        return await self._create(self._clients.current(), name, _new_spec(call, cron, when))

    def create(
        self, name: str, call: _Call, cron: str | None = None, /, **when: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Create a schedule from sync code; see ``acreate``."""
        spec = _new_spec(call, cron, when)
        return self._clients.sync(lambda client: self._create(client, name, spec))

    async def achange(
        self,
        name: str,
        call: _Call | None = None,
        cron: str | None = None,
        /,
        **when: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change what is enqueued or when; what is not named stays as it is.

        It holds from now on. A program that declares the schedule does not undo it, until what it
        declares is changed.
        """
        return await self._change(self._clients.current(), name, _changer(call, cron, when))

    def change(
        self,
        name: str,
        call: _Call | None = None,
        cron: str | None = None,
        /,
        **when: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change a schedule from sync code; see ``achange``."""
        change = _changer(call, cron, when)
        return self._clients.sync(lambda client: self._change(client, name, change))

    async def apause(self, name: str) -> None:
        """Fire no more slots until it is resumed; UnknownSchedule if there is none."""
        await _plan(self._clients.current(), ScheduleOrder(name=name, action="pause"))

    def pause(self, name: str) -> None:
        """Fire no more slots until it is resumed, from sync code."""
        order = ScheduleOrder(name=name, action="pause")
        self._clients.sync(lambda client: _plan(client, order))

    async def aresume(self, name: str) -> ScheduleInfo:
        """Go on with the next slot. Those that passed meanwhile are not made up for."""
        return await self._resume(self._clients.current(), name)

    def resume(self, name: str) -> ScheduleInfo:
        """Go on with the next slot, from sync code; see ``aresume``."""
        return self._clients.sync(lambda client: self._resume(client, name))

    async def adelete(self, name: str) -> None:
        """Forget the schedule; UnknownSchedule if there is none. Its tasks stay."""
        await _plan(self._clients.current(), ScheduleOrder(name=name, action="delete"))

    def delete(self, name: str) -> None:
        """Forget the schedule, from sync code; see ``adelete``."""
        order = ScheduleOrder(name=name, action="delete")
        self._clients.sync(lambda client: _plan(client, order))

    async def arun_now(self, name: str) -> Handle[Any]:
        """Enqueue its task at once, beside its slots, which stay as they are; also while paused."""
        return await self._run_now(self._clients.current(), name)

    def run_now(self, name: str) -> Handle[Any]:
        """Enqueue its task at once, from sync code; see ``arun_now``."""
        return self._clients.sync(lambda client: self._run_now(client, name))

    # -- reading -------------------------------------------------------------------------------

    async def aget(self, name: str) -> ScheduleInfo:
        """What is known of a schedule; UnknownSchedule if there is none."""
        return info_of(await _read(self._clients.current(), name))

    def get(self, name: str) -> ScheduleInfo:
        """What is known of a schedule, from sync code; see ``aget``."""
        return info_of(self._clients.sync(lambda client: _read(client, name)))

    async def alist(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        return [info_of(record) for record in await self._clients.current().schedules()]

    def list(self) -> list[ScheduleInfo]:
        """All schedules, by name, from sync code."""
        return [info_of(r) for r in self._clients.sync(lambda client: client.schedules())]

    async def anext_runs(self, name: str, count: int = 5) -> Sequence[float]:
        """The next slots, in unix seconds; of one that is paused, those it would have."""
        return await _next_runs(self._clients.current(), name, count)

    def next_runs(self, name: str, count: int = 5) -> Sequence[float]:
        """The next slots, from sync code; see ``anext_runs``."""
        return self._clients.sync(lambda client: _next_runs(client, name, count))

    # -- declared ------------------------------------------------------------------------------

    async def adeclare(self) -> int:
        """Write what ``@app.schedule`` declares, as every worker does at its start; how many.

        Written is what is new, and what the program declares otherwise than the last time. What
        was paused or changed while everything ran stays so.
        """
        return await _declare(self._clients.current(), self._declared.values())

    def declare(self) -> int:
        """Write what is declared, from sync code; see ``adeclare``."""
        declared = self._declared.values()
        return self._clients.sync(lambda client: _declare(client, declared))

    def _add(self, declared: Declared) -> None:
        if declared.name in self._declared:
            raise InvalidInput(
                f"schedule {declared.name!r} is declared twice; give one of them a name="
            )
        self._declared[declared.name] = declared

    # -- steps ---------------------------------------------------------------------------------

    async def _create(self, client: Client, name: str, spec: ScheduleSpec) -> ScheduleInfo:
        next_at = next_slot(spec.timing, await client.now())
        if next_at is None:
            raise InvalidInput(f"schedule {name!r} ({spec.timing}) lies in the past")
        order = ScheduleOrder(
            name=check_schedule(name),
            action="create",
            queue=spec.template.queue,
            spec=spec.encode(),
            next_at=next_at,
        )
        await _plan(client, order)
        return info_of(await _read(client, name))

    async def _change(
        self, client: Client, name: str, change: Callable[[ScheduleSpec], ScheduleSpec]
    ) -> ScheduleInfo:
        async def put(record: ScheduleRecord) -> ScheduleOrder:
            old = spec_of(record)
            new = change(old)
            return await _put(client, record, old, new)

        await _revised(client, name, put)
        return info_of(await _read(client, name))

    async def _resume(self, client: Client, name: str) -> ScheduleInfo:
        async def resume(record: ScheduleRecord) -> ScheduleOrder:
            next_at = next_slot(spec_of(record).timing, await client.now())
            return ScheduleOrder(
                name=name, action="resume", next_at=next_at, revision=record.revision
            )

        await _revised(client, name, resume)
        return info_of(await _read(client, name))

    async def _run_now(self, client: Client, name: str) -> Handle[Any]:
        submission = submission_of(name, spec_of(await _read(client, name)), new_id())
        receipt = await client.submit(submission)
        raise_for(receipt, submission)
        return Handle(
            self._clients,
            receipt.id,
            submission.message.tenant,
            duplicate=receipt.code == "duplicate",
            durability=receipt.durability,
        )


class Scheduling:
    """The part of an app that is about schedules."""

    _schedules: Schedules

    @property
    def schedules(self) -> Schedules:
        """The schedules of the broker: to be listed, made, changed, paused and deleted."""
        return self._schedules

    def schedule(
        self,
        cron: str | None = None,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **when: Unpack[TimingOptions],
    ) -> Callable[[T], T]:
        """Declare a schedule of a task: ``@app.schedule("0 2 * * *", tz=...)`` above ``@app.task``.

        Workers write it when they start. Without a ``name`` it has the task's; ``args`` and
        ``kwargs`` are those of the calls. For other options of a call, pass what ``using`` returns:
        ``app.schedule(every="5m", name="poll-acme")(poll.using(tenant="acme"))``.
        """
        rule = rule_of(cron, when)

        def declare(task: T) -> T:
            if not isinstance(task, Sender):
                raise InvalidInput(
                    f"{task!r} is no task: @app.schedule stands above @app.task, not below it"
                )
            self._schedules._add(declaration(name, task.call(*args, **(kwargs or {})), rule))
            return task

        return declare


# -- what all of them do -----------------------------------------------------------------------


def _new_spec(call: _Call, cron: str | None, when: TimingOptions) -> ScheduleSpec:
    return ScheduleSpec(timing=rule_of(cron, when), template=template_of(call))


def _changer(
    call: _Call | None, cron: str | None, when: TimingOptions
) -> Callable[[ScheduleSpec], ScheduleSpec]:
    template = None if call is None else template_of(call)

    def change(old: ScheduleSpec) -> ScheduleSpec:
        return msgspec.structs.replace(
            old, timing=altered(old.timing, cron, when), template=template or old.template
        )

    return change


async def _read(client: Client, name: str) -> ScheduleRecord:
    found = await client.schedules([check_schedule(name)])
    if not found:
        raise UnknownSchedule(name)
    return found[0]


async def _plan(client: Client, order: ScheduleOrder) -> str:
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


async def _revised(
    client: Client, name: str, order: Callable[[ScheduleRecord], Awaitable[ScheduleOrder]]
) -> None:
    """Change what is stored now, and begin anew if somebody else was faster."""
    for _ in range(_TRIES):
        if await _plan(client, await order(await _read(client, name))) != "stale":
            return
    raise ScheduleConflict(name, "is being changed by others all the time; try again")


async def _put(
    client: Client, record: ScheduleRecord, old: ScheduleSpec | None, new: ScheduleSpec
) -> ScheduleOrder:
    """Replace a schedule; slots that are still to be fired stay so if its times do."""
    next_at = record.next_at
    if old is None or old.timing != new.timing:
        next_at = next_slot(new.timing, await client.now())
    return ScheduleOrder(
        name=record.name,
        action="put",
        queue=new.template.queue,
        spec=new.encode(),
        next_at=next_at,
        revision=record.revision,
    )


async def _next_runs(client: Client, name: str, count: int) -> Sequence[float]:
    if type(count) is not int or not 1 <= count <= _MOST_RUNS:
        raise InvalidOption("count", count, f"a whole number from 1 to {_MOST_RUNS}")
    record = await _read(client, name)
    rule = spec_of(record).timing
    found: list[float] = []
    slot: float | None = max(await client.now(), record.last_slot or 0.0)
    while len(found) < count and slot is not None:
        slot = next_slot(rule, slot)
        if slot is not None:
            found.append(slot)
    return found


async def _declare(client: Client, declared: Iterable[Declared]) -> int:
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
    return written


async def _differing(client: Client, wanted: Mapping[str, Declared]) -> list[ScheduleOrder]:
    """What has to be written, so that the broker knows what the program declares."""
    stored = {record.name: record for record in await client.schedules(list(wanted))}
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
            orders.append(await _put(client, record, old, each.spec))
    return orders
