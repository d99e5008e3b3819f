"""Schedules: what is to be enqueued at which times. Brokers keep them and compare moments.

What a schedule means is decided in ``fairlead.model``; a broker stores it as bytes. It knows when
each is due next, hands those that are due to whoever asks first, and lets every slot be fired once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from fairlead.broker.verbs import Call

__all__ = (
    "CLAIM",
    "MAX_SCHEDULES",
    "ScheduleOrder",
    "ScheduleRecord",
    "ScheduleVerbs",
    "Scheduled",
)

CLAIM = 5.0  # seconds until a due schedule is handed to somebody else
MAX_SCHEDULES = 10_000  # of one shard


class ScheduleOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with one schedule.

    ``create`` refuses a name that is taken; ``put`` creates or replaces. ``revision``, if given,
    must be the one that is stored: somebody else may have changed it since it was read.
    """

    name: str
    queue: str  # the schedule lies in the shard of this queue
    action: Literal["create", "put", "pause", "resume", "delete"]
    spec: bytes = b""  # create, put: opaque
    next_at: float | None = None  # create, put, resume: first slot; None: never
    revision: int | None = None


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """``done``, ``unchanged``, ``exists`` (create), ``unknown``, ``stale`` or ``full``."""

    name: str
    code: Literal["done", "unchanged", "exists", "unknown", "stale", "full"]
    revision: int = 0


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored. The revision grows with every change to it."""

    name: str
    queue: str
    spec: bytes
    revision: int
    paused: bool = False
    next_at: float | None = None  # the next slot; None: there is none
    last_slot: float | None = None  # the last that was fired
    changed_at: float = 0.0


class ScheduleVerbs(Protocol):
    """What a store of tasks does for schedules, besides ``fire``."""

    async def plan(
        self, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
    ) -> list[Scheduled]:
        """Create, replace, pause, resume or delete up to 50 schedules.

        The last slot fired outlives a replacement, so a slot is never fired twice, and is gone with
        a deletion. ``pause`` and ``resume`` of what is so already are ``unchanged``.
        """
        ...

    async def tick(self, *, now: float | None = None) -> list[ScheduleRecord]:
        """Hand out up to 50 schedules that are due, to be fired.

        One that is handed out is not due again for 5 seconds, or until it was fired: should its
        taker die, another one comes. ``wait`` returns when a schedule is due, and ``due_in`` of an
        exchange tells of it.
        """
        ...

    async def schedules(
        self, names: Sequence[str] | None = None, *, now: float | None = None
    ) -> list[ScheduleRecord]:
        """The schedules of these names, or all of them, by name; unknown names are left out."""
        ...
