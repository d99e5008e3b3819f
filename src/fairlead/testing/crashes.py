"""Workers that die at a moment of a test's choice, as if by ``kill -9``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from fairlead.broker.requests import ExchangeReply, Fetch
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased, task_name

#: When a worker dies: it has a task in hand; it has told the broker that the task runs; the handler
#: has ended and the broker does not know; the broker knows and the worker never heard of it.
Crash = Literal["fetched", "started", "finished", "settled"]


class Victim(NamedTuple):
    """A worker that is dead, and whom its crash is charged to."""

    incarnation: str
    charged: tuple[str, ...]  # ids of tasks


class _Plan(msgspec.Struct):
    at: Crash
    task: str | None  # None: any
    left: int  # times


class Crashes:
    """Which workers are to die, and which have died."""

    def __init__(self) -> None:
        self._plans: list[_Plan] = []
        self._names: dict[str, str] = {}  # of tasks on loan, by their ids
        self._dead: set[str] = set()  # incarnations
        self.victims: list[Victim] = []  # whose leases nobody has given back yet

    def plan(self, at: Crash, task: str | None, times: int) -> None:
        """Let a worker die there, so many times, for a task of this name."""
        if at not in get_args(Crash):
            raise InvalidOption("at", at, f"one of {', '.join(get_args(Crash))}")
        if type(times) is not int or times < 1:
            raise InvalidOption("times", times, "a whole number, 1 or more")
        self._plans.append(_Plan(at, task, times))

    @property
    def pending(self) -> list[str]:
        """What was planned and has not happened."""
        return [f"{each.at} of {each.task or 'any task'}" for each in self._plans if each.left]

    def is_dead(self, incarnation: str) -> bool:
        """Whether a caller is a worker that has died: nothing it says reaches the broker."""
        return incarnation in self._dead

    def fetch_of(self, fetch: Fetch | None) -> Fetch | None:
        """What the broker is asked for: nothing counts as started of what is to be held."""
        if fetch is not None and any(each.left and each.at == "fetched" for each in self._plans):
            return msgspec.structs.replace(fetch, start=0)
        return fetch

    def ends(self, settlements: Sequence[Settlement], at: Crash, incarnation: str) -> bool:
        """Whether the worker dies with these outcomes in hand."""
        ids = [each.id for each in settlements]
        if not self._strikes(at, ids):
            return False
        # What is not settled was being run; the broker charges whoever has a lease still.
        self._die(incarnation, ids if at == "finished" else ())
        return True

    def lends(self, leased: Sequence[Leased], incarnation: str) -> bool:
        """Whether the worker dies before it can begin what it was lent."""
        for lease in leased:
            self._names[lease.message.id] = task_name(lease.message.body)
        ids = [lease.message.id for lease in leased]
        if self._strikes("fetched", ids):
            self._die(incarnation, ())
            return True
        hit = self._strikes("started", ids)
        if hit:
            self._die(incarnation, hit)
        return bool(hit)

    def _strikes(self, at: Crash, ids: Sequence[str]) -> tuple[str, ...]:
        """The tasks among these for which a worker is to die here; each plan counts once."""
        hit: list[str] = []
        for plan in self._plans:
            if plan.at != at or not plan.left:
                continue
            found = [id for id in ids if _is_named(self._names.get(id, ""), plan.task)]
            if found:
                plan.left -= 1
                hit.append(found[0])
        return tuple(hit)

    def _die(self, incarnation: str, charged: Sequence[str]) -> None:
        self._dead.add(incarnation)
        self.victims.append(Victim(incarnation, tuple(charged)))


def empty_reply(now: float, settlements: int, started: int) -> ExchangeReply:
    """What a dead worker is told, so that it ends quietly: nothing more is to be done."""
    return ExchangeReply(now=now, settled=["applied"] * settlements, started=["applied"] * started)


def _is_named(name: str, wanted: str | None) -> bool:
    return wanted is None or wanted in (name, name.rpartition(".")[2])
