"""Schedules of an app: declared above a task, or made and changed while everything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

import msgspec

from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord, submission_of
from fairlead.client.call import TaskCall
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.errors import raise_for
from fairlead.client.handle import Handle
from fairlead.client.named_call import look_up, look_up_now
from fairlead.client.schedule_changes import (
    carry_out,
    declare,
    next_runs,
    over,
    read,
    replacement,
    revise,
    same_times,
)
from fairlead.client.schedule_spec import (
    Amendment,
    Declared,
    ScheduleInfo,
    altered,
    amended,
    info_of,
    rule_of,
    spec_of,
    template_of,
)
from fairlead.client.task import Sender
from fairlead.model.codecs import Codecs
from fairlead.model.errors import (
    InvalidInput,
)
from fairlead.model.names import check_schedule
from fairlead.model.priorities import Priorities
from fairlead.model.schedule import ScheduleSpec, TimingOptions, next_slot
from fairlead.runtime.ids import new_id

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

        Args:
            cron: A cron expression such as "0 2 * * *". Default: none; then every= or at=.
        """
        client = self._clients.current()
        [call] = await look_up(client, [_as_call(call)])
        return await self._create(client, name, _new_spec(call, cron, when))

    def create(
        self, name: str, call: _Call, cron: str | None = None, /, **when: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Create a schedule from sync code; see ``acreate``.

        Args:
            cron: A cron expression such as "0 2 * * *". Default: none; then every= or at=.
        """
        [call] = look_up_now(self._clients, [_as_call(call)])
        spec = _new_spec(call, cron, when)
        return self._clients.blocking(
            lambda client: self._create(client, name, spec), "app.schedules.create"
        )

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

        Args:
            call: A task, or task.call(...), to be enqueued instead. Default: as it was.
            cron: A cron expression such as "0 2 * * *". Default: as it was.
        """
        client = self._clients.current()
        [call] = await look_up(client, [_as_call(call)])
        return await self._change(client, name, _changer(call, cron, when, client.priorities))

    def change(
        self,
        name: str,
        call: _Call | None = None,
        cron: str | None = None,
        /,
        **when: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change a schedule from sync code; see ``achange``.

        Args:
            call: A task, or task.call(...), to be enqueued instead. Default: as it was.
            cron: A cron expression such as "0 2 * * *". Default: as it was.
        """
        [call] = look_up_now(self._clients, [_as_call(call)])
        change = _changer(call, cron, when, self._clients.priorities)
        return self._clients.blocking(
            lambda client: self._change(client, name, change), "app.schedules.change"
        )

    async def apause(self, name: str) -> None:
        """Fire no more slots until it is resumed; UnknownSchedule if there is none."""
        await carry_out(self._clients.current(), ScheduleOrder(name=name, action="pause"))

    def pause(self, name: str) -> None:
        """Fire no more slots until it is resumed, from sync code."""
        order = ScheduleOrder(name=name, action="pause")
        self._clients.blocking(lambda client: carry_out(client, order), "app.schedules.pause")

    async def aresume(self, name: str) -> ScheduleInfo:
        """Go on with the next slot. Those that passed meanwhile are not made up for."""
        return await self._resume(self._clients.current(), name)

    def resume(self, name: str) -> ScheduleInfo:
        """Go on with the next slot, from sync code; see ``aresume``."""
        return self._clients.blocking(
            lambda client: self._resume(client, name), "app.schedules.resume"
        )

    async def adelete(self, name: str) -> None:
        """Forget the schedule; UnknownSchedule if there is none. Its tasks stay."""
        await carry_out(self._clients.current(), ScheduleOrder(name=name, action="delete"))

    def delete(self, name: str) -> None:
        """Forget the schedule, from sync code; see ``adelete``."""
        order = ScheduleOrder(name=name, action="delete")
        self._clients.blocking(lambda client: carry_out(client, order), "app.schedules.delete")

    async def arun_now(self, name: str) -> Handle[Any]:
        """Enqueue its task at once, beside its slots, which stay as they are; also while paused."""
        return await self._run_now(self._clients.current(), name)

    def run_now(self, name: str) -> Handle[Any]:
        """Enqueue its task at once, from sync code; see ``arun_now``."""
        return self._clients.blocking(
            lambda client: self._run_now(client, name), "app.schedules.run_now"
        )

    # -- reading -------------------------------------------------------------------------------

    async def aget(self, name: str) -> ScheduleInfo:
        """Return what is known of a schedule; UnknownSchedule if there is none."""
        return info_of(await read(self._clients.current(), name), self._clients.codecs)

    def get(self, name: str) -> ScheduleInfo:
        """Return what is known of a schedule, from sync code; see ``aget``."""
        return info_of(
            self._clients.blocking(lambda client: read(client, name), "app.schedules.get"),
            self._clients.codecs,
        )

    async def alist(self) -> list[ScheduleInfo]:
        """Return all schedules, by name."""
        return [
            info_of(record, self._clients.codecs)
            for record in await self._clients.current().store.schedules()
        ]

    def list(self) -> list[ScheduleInfo]:
        """Return all schedules, by name, from sync code."""
        return [
            info_of(record, self._clients.codecs)
            for record in self._clients.blocking(
                lambda client: client.store.schedules(), "app.schedules.list"
            )
        ]

    async def anext_runs(self, name: str, count: int = 5) -> Sequence[float]:
        """Return the next slots, in unix seconds; of one that is paused, those it would have.

        Args:
            count: How many slots at most. Default: 5.
        """
        return await next_runs(self._clients.current(), name, count)

    def next_runs(self, name: str, count: int = 5) -> Sequence[float]:
        """Return the next slots, from sync code; see ``anext_runs``.

        Args:
            count: How many slots at most. Default: 5.
        """
        return self._clients.blocking(
            lambda client: next_runs(client, name, count), "app.schedules.next_runs"
        )

    # -- declared ------------------------------------------------------------------------------

    async def adeclare(self) -> int:
        """Write what ``@app.schedule`` declares, as workers do when they start; return how many.

        Written is what is new, and what the program declares otherwise than the last time. What
        was paused or changed while everything ran stays so.
        """
        return await declare(self._clients.current(), self._declared.values())

    def declare(self) -> int:
        """Write what is declared, from sync code; see ``adeclare``."""
        declared = self._declared.values()
        return self._clients.blocking(
            lambda client: declare(client, declared), "app.schedules.declare"
        )

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
        client = self._clients.current()
        return await self._change(client, name, _changer(said, cron, when, client.priorities))

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
        return info_of(await read(client, name), client.codecs)

    async def _change(
        self,
        client: Client,
        name: str,
        change: Callable[[ScheduleSpec, Codecs | None], ScheduleSpec],
    ) -> ScheduleInfo:
        async def put(record: ScheduleRecord) -> ScheduleOrder:
            old = spec_of(record)
            new = change(old, client.codecs)
            order = await replacement(client, record, old, new)
            if order.next_at is None and not same_times(old.timing, new.timing):
                raise over(name, new.timing)
            return order

        await revise(client, name, put)
        return info_of(await read(client, name), client.codecs)

    async def _resume(self, client: Client, name: str) -> ScheduleInfo:
        async def resume(record: ScheduleRecord) -> ScheduleOrder:
            next_at = next_slot(spec_of(record).timing, await client.now())
            return ScheduleOrder(
                name=name, action="resume", next_at=next_at, revision=record.revision
            )

        await revise(client, name, resume)
        return info_of(await read(client, name), client.codecs)

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


# -- what was said ----------------------------------------------------------------------------


def _as_call(call: _C) -> _C | TaskCall[Any]:
    return call.call() if isinstance(call, Sender) else call


def _new_spec(call: _Call, cron: str | None, when: TimingOptions) -> ScheduleSpec:
    return ScheduleSpec(timing=rule_of(cron, when), template=template_of(call))


def _changer(
    call: _Call | Amendment | None,
    cron: str | None,
    when: TimingOptions,
    priorities: Priorities,
) -> Callable[[ScheduleSpec, Codecs | None], ScheduleSpec]:
    said = call if isinstance(call, Amendment) else Amendment()
    template = None if call is None or isinstance(call, Amendment) else template_of(call)

    def change(old: ScheduleSpec, codecs: Codecs | None) -> ScheduleSpec:
        return msgspec.structs.replace(
            old,
            timing=altered(old.timing, cron, when),
            template=template or amended(old.template, said, priorities, codecs),
        )

    return change
