"""Schedules: what is to be enqueued at which times. Brokers keep them and compare moments.

What a schedule means is decided in ``fairlead.model.schedule``; a broker stores it as bytes. It
knows when each is due next, hands those that are due to whoever asks first, and lets every slot be
fired once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from fairlead.broker.requests import Call, Firing, Submission
from fairlead.model.message import Message, Trace
from fairlead.model.schedule import SCHEDULE_HEADER, SLOT_HEADER, ScheduleSpec, slot_id, stamp

CLAIM = 5.0  # seconds until a due schedule is handed to somebody else
MAX_SCHEDULES = 10_000  # of one shard
MAX_SPEC = 64 * 1024  # bytes of one schedule


class ScheduleOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with one schedule.

    ``create`` refuses a name that is taken; ``put`` creates or replaces, and leaves it paused if it
    is. ``skip`` lets slots pass: those before ``next_at`` are not fired any more. ``revision``, if
    given, must be the one that is stored: somebody else may have changed it since it was read.
    """

    name: str
    action: Literal["create", "put", "pause", "resume", "skip", "delete"]
    queue: str = ""  # create, put: the schedule lies in the shard of this queue; skip: if known
    spec: bytes = b""  # create, put: opaque
    next_at: float | None = None  # create, put, resume, skip: the next slot; None: there is none
    revision: int | None = None
    last_slot: float | None = None  # create, put of a new name: the last slot that was fired before


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """``done``, ``unchanged``, ``exists`` (create), ``unknown``, ``stale`` or ``full``.

    ``revision`` is the one that is stored now, 0 if there is none.
    """

    name: str
    code: Literal["done", "unchanged", "exists", "unknown", "stale", "full"]
    revision: int = 0


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored. The revision grows with every change, and never comes again."""

    name: str
    queue: str
    spec: bytes
    revision: int
    paused: bool = False
    next_at: float | None = None  # the next slot that was neither fired nor let pass
    last_slot: float | None = None  # the last that was fired
    changed_at: float = 0.0


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules that are due at ``now``, the broker's time; ``more``: call again at once."""

    now: float
    due: list[ScheduleRecord] = []
    more: bool = False
    times: dict[str, float] = {}  # by schedule, where shards differ: the time of its own shard

    def now_of(self, schedule: str) -> float:
        """The time by which a schedule is judged."""
        return self.times.get(schedule, self.now)


class ScheduleVerbs(Protocol):
    """What a store of tasks does for schedules, besides ``fire``."""

    async def plan(
        self, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
    ) -> list[Scheduled]:
        """Create, replace, pause, resume, move on or delete up to 50 schedules.

        ``put`` of what is stored already is ``unchanged``, as are ``pause`` and ``resume`` of what
        is so already, and a ``skip`` that would not go forward. The last slot fired outlives a
        replacement, so a slot is never fired twice, and is gone with a deletion. A shard holds
        10,000 schedules; one more is ``full``. What is paused, or has no next slot, is never due.
        """
        ...

    async def tick(self, *, now: float | None = None) -> Ticked:
        """Hand out up to 50 schedules that are due, those first that are due the longest.

        One that is handed out is not due again for 5 seconds, or until it was fired or skipped:
        should its taker die, another one comes. ``wait`` returns when a schedule is due, ``due_in``
        of an exchange foretells it, and ``promote`` says whether there are any.
        """
        ...

    async def schedules(
        self, names: Sequence[str] | None = None, *, now: float | None = None
    ) -> list[ScheduleRecord]:
        """The schedules of these names, or all of them, by name; unknown names are left out."""
        ...


# -- what is enqueued: the same whether a worker fires a slot or somebody asks now --------------


def firing_of(
    record: ScheduleRecord, spec: ScheduleSpec, slot: float, next_at: float | None
) -> Firing:
    """The firing of one slot; ``next_at`` is the slot after it."""
    id = slot_id(spec.template.tenant, record.name, slot)
    return Firing(
        schedule=record.name,
        slot=slot,
        submission=submission_of(record.name, spec, id, slot),
        revision=record.revision,
        next_at=next_at,
    )


def submission_of(name: str, spec: ScheduleSpec, id: str, slot: float | None = None) -> Submission:
    """What the broker gets for a schedule; its headers tell the handler where it came from."""
    template = spec.template
    headers = {SCHEDULE_HEADER: name}
    if slot is not None:
        headers[SLOT_HEADER] = stamp(slot)
    message = Message(
        id=id,
        queue=template.queue,
        tenant=template.tenant,
        level=template.level,
        cost=template.cost,
        limiters=template.limiters,
        body=template.body,
        trace=Trace(correlation_id=id, headers=headers).encode(),
    )
    return Submission(message=message, deadline=template.deadline, unique=template.unique)
