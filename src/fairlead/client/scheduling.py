"""Schedules of an app: declared above a task, or made and changed while everything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import msgspec

from fairlead.broker.firing import submission_of
from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord
from fairlead.client.call import TaskCall
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.handle import Handle
from fairlead.client.named import look_up, look_up_now
from fairlead.client.planning import (
    carry_out,
    declare,
    next_runs,
    over,
    read,
    replacement,
    revise,
    same_times,
)
from fairlead.client.receipts import raise_for
from fairlead.client.scheduled import (
    Amendment,
    Declared,
    ScheduleInfo,
    altered,
    amended,
    declaration,
    info_of,
    rule_of,
    spec_of,
    template_of,
)
from fairlead.client.task import Sender
from fairlead.model.errors import (
    InvalidInput,
)
from fairlead.model.names import check_schedule
from fairlead.model.schedule import ScheduleSpec, TimingOptions, next_slot
from fairlead.runtime.ids import new_id

__all__ = ("Schedules", "Scheduling")

T = TypeVar("T", bound=Sender[..., Any])
_Call = TaskCall[Any] | Sender[..., Any]
_C = TypeVar("_C", TaskCall[Any] | Sender[..., Any], TaskCall[Any] | Sender[..., Any] | None)


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
        client = self._clients.current()
        [call] = await look_up(client, [_as_call(call)])
        return await self._create(client, name, _new_spec(call, cron, when))

    def create(
        self, name: str, call: _Call, cron: str | None = None, /, **when: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Create a schedule from sync code; see ``acreate``."""
        [call] = look_up_now(self._clients, [_as_call(call)])
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
        client = self._clients.current()
        [call] = await look_up(client, [_as_call(call)])
        return await self._change(client, name, _changer(call, cron, when))

    def change(
        self,
        name: str,
        call: _Call | None = None,
        cron: str | None = None,
        /,
        **when: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change a schedule from sync code; see ``achange``."""
        [call] = look_up_now(self._clients, [_as_call(call)])
        change = _changer(call, cron, when)
        return self._clients.sync(lambda client: self._change(client, name, change))

    async def apause(self, name: str) -> None:
        """Fire no more slots until it is resumed; UnknownSchedule if there is none."""
        await carry_out(self._clients.current(), ScheduleOrder(name=name, action="pause"))

    def pause(self, name: str) -> None:
        """Fire no more slots until it is resumed, from sync code."""
        order = ScheduleOrder(name=name, action="pause")
        self._clients.sync(lambda client: carry_out(client, order))

    async def aresume(self, name: str) -> ScheduleInfo:
        """Go on with the next slot. Those that passed meanwhile are not made up for."""
        return await self._resume(self._clients.current(), name)

    def resume(self, name: str) -> ScheduleInfo:
        """Go on with the next slot, from sync code; see ``aresume``."""
        return self._clients.sync(lambda client: self._resume(client, name))

    async def adelete(self, name: str) -> None:
        """Forget the schedule; UnknownSchedule if there is none. Its tasks stay."""
        await carry_out(self._clients.current(), ScheduleOrder(name=name, action="delete"))

    def delete(self, name: str) -> None:
        """Forget the schedule, from sync code; see ``adelete``."""
        order = ScheduleOrder(name=name, action="delete")
        self._clients.sync(lambda client: carry_out(client, order))

    async def arun_now(self, name: str) -> Handle[Any]:
        """Enqueue its task at once, beside its slots, which stay as they are; also while paused."""
        return await self._run_now(self._clients.current(), name)

    def run_now(self, name: str) -> Handle[Any]:
        """Enqueue its task at once, from sync code; see ``arun_now``."""
        return self._clients.sync(lambda client: self._run_now(client, name))

    # -- reading -------------------------------------------------------------------------------

    async def aget(self, name: str) -> ScheduleInfo:
        """What is known of a schedule; UnknownSchedule if there is none."""
        return info_of(await read(self._clients.current(), name))

    def get(self, name: str) -> ScheduleInfo:
        """What is known of a schedule, from sync code; see ``aget``."""
        return info_of(self._clients.sync(lambda client: read(client, name)))

    async def alist(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        return [info_of(record) for record in await self._clients.current().schedules()]

    def list(self) -> list[ScheduleInfo]:
        """All schedules, by name, from sync code."""
        return [info_of(r) for r in self._clients.sync(lambda client: client.schedules())]

    async def anext_runs(self, name: str, count: int = 5) -> Sequence[float]:
        """The next slots, in unix seconds; of one that is paused, those it would have."""
        return await next_runs(self._clients.current(), name, count)

    def next_runs(self, name: str, count: int = 5) -> Sequence[float]:
        """The next slots, from sync code; see ``anext_runs``."""
        return self._clients.sync(lambda client: next_runs(client, name, count))

    # -- declared ------------------------------------------------------------------------------

    async def adeclare(self) -> int:
        """Write what ``@app.schedule`` declares, as every worker does at its start; how many.

        Written is what is new, and what the program declares otherwise than the last time. What
        was paused or changed while everything ran stays so.
        """
        return await declare(self._clients.current(), self._declared.values())

    def declare(self) -> int:
        """Write what is declared, from sync code; see ``adeclare``."""
        declared = self._declared.values()
        return self._clients.sync(lambda client: declare(client, declared))

    def _add(self, declared: Declared) -> None:
        if declared.name in self._declared:
            raise InvalidInput(
                f"schedule {declared.name!r} is declared twice; give one of them a name="
            )
        self._declared[declared.name] = declared

    async def _amend(
        self, name: str, said: Amendment, cron: str | None, when: TimingOptions
    ) -> ScheduleInfo:
        """Change one whose task is not known here, as the command line does."""
        return await self._change(self._clients.current(), name, _changer(said, cron, when))

    # -- steps ---------------------------------------------------------------------------------

    async def _create(self, client: Client, name: str, spec: ScheduleSpec) -> ScheduleInfo:
        next_at = next_slot(spec.timing, await client.now())
        if next_at is None:
            raise over(name, spec.timing)
        order = ScheduleOrder(
            name=check_schedule(name),
            action="create",
            queue=spec.template.queue,
            spec=spec.encode(),
            next_at=next_at,
        )
        await carry_out(client, order)
        return info_of(await read(client, name))

    async def _change(
        self, client: Client, name: str, change: Callable[[ScheduleSpec], ScheduleSpec]
    ) -> ScheduleInfo:
        async def put(record: ScheduleRecord) -> ScheduleOrder:
            old = spec_of(record)
            new = change(old)
            order = await replacement(client, record, old, new)
            if order.next_at is None and not same_times(old.timing, new.timing):
                raise over(name, new.timing)
            return order

        await revise(client, name, put)
        return info_of(await read(client, name))

    async def _resume(self, client: Client, name: str) -> ScheduleInfo:
        async def resume(record: ScheduleRecord) -> ScheduleOrder:
            next_at = next_slot(spec_of(record).timing, await client.now())
            return ScheduleOrder(
                name=name, action="resume", next_at=next_at, revision=record.revision
            )

        await revise(client, name, resume)
        return info_of(await read(client, name))

    async def _run_now(self, client: Client, name: str) -> Handle[Any]:
        submission = submission_of(name, spec_of(await read(client, name)), new_id())
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


# -- what was said ----------------------------------------------------------------------------


def _as_call(call: _C) -> _C | TaskCall[Any]:
    return call.call() if isinstance(call, Sender) else call


def _new_spec(call: _Call, cron: str | None, when: TimingOptions) -> ScheduleSpec:
    return ScheduleSpec(timing=rule_of(cron, when), template=template_of(call))


def _changer(
    call: _Call | Amendment | None, cron: str | None, when: TimingOptions
) -> Callable[[ScheduleSpec], ScheduleSpec]:
    said = call if isinstance(call, Amendment) else Amendment()
    template = None if call is None or isinstance(call, Amendment) else template_of(call)

    def change(old: ScheduleSpec) -> ScheduleSpec:
        return msgspec.structs.replace(
            old,
            timing=altered(old.timing, cron, when),
            template=template or amended(old.template, said),
        )

    return change
