"""Limits and weights that a program declares; workers write them, as they write schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec

from fairlead.broker.checks import check_changes
from fairlead.broker.verbs import (
    MAX_STEP,
    Declaration,
    LimiterChange,
    QueueChange,
    Setting,
)
from fairlead.client.changes import limiter_change, queue_change, tenant_change
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.scheduling import Schedules
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.settings import configured_limits

__all__ = ("DeclaredLimits", "declare_all")


class DeclaredLimits:
    """What was declared, each queue, tenant and limiter once."""

    def __init__(self) -> None:
        self._declared: dict[tuple[str, ...], Declaration] = {}

    def add(self, change: Setting) -> None:
        """Remember a declaration; refuse a second one about the same, and a pause."""
        if not isinstance(change, LimiterChange) and isinstance(change.paused, bool):
            rule = "left out of a declaration: pauses are made at run time, by configure_..."
            raise InvalidOption("paused", change.paused, rule)
        check_changes([change])  # now, not when a worker starts
        about = _about(change)
        if about in self._declared:
            raise InvalidInput(f"{' '.join(about)} is declared twice; say all of it at once")
        self._declared[about] = Declaration(change)

    def joined(self) -> list[Declaration]:
        """Return what the program declares, and what the file declares beside it.

        Of one queue, tenant or limiter an option that the program says goes before that of the
        file. Raises ``InvalidInput`` for a file that is wrong.
        """
        found = dict(self._declared)
        for change in _of_file():
            about = _about(change)
            code = found.get(about)
            found[about] = Declaration(change if code is None else _over(code.change, change))
        return list(found.values())

    async def write(self, client: Client) -> None:
        """Let the broker know what is declared; what it knows already changes nothing."""
        declared = self.joined()
        steps = range(0, len(declared), MAX_STEP)
        ends = await asyncio.gather(
            *(client.configure(declared[start : start + MAX_STEP]) for start in steps),
            return_exceptions=True,
        )
        _raise_first(ends)


async def declare_all(clients: Clients, limits: DeclaredLimits, schedules: Schedules) -> None:
    """Write all that a program declares; what is refused does not keep the rest from it.

    Raises the first error once everything was tried.
    """
    ends = await asyncio.gather(
        limits.write(clients.current()), schedules.adeclare(), return_exceptions=True
    )
    _raise_first(ends)


def _of_file() -> Iterator[Setting]:
    """What ``fairlead.toml`` declares."""
    tables, file = configured_limits()
    made: dict[str, Callable[..., Setting]] = {
        "queues": queue_change,
        "tenants": tenant_change,
        "limiters": limiter_change,
    }
    for kind, make in made.items():
        for name, options in tables[kind].items():
            try:
                if "paused" in options:
                    rule = "left out of a declaration: pauses are made at run time"
                    raise InvalidOption("paused", options["paused"], rule)
                change = make(name, **options)
                check_changes([change])
            except (InvalidInput, TypeError) as error:
                raise InvalidInput(f"{file!r} is wrong in [{kind}.{name}]: {error}") from None
            yield change


def _over(code: Setting, file: Setting) -> Setting:
    """The file's change, with all that the program says in its place."""
    said = {name: getattr(code, name) for name in code.__struct_fields__}
    return msgspec.structs.replace(
        file, **{name: value for name, value in said.items() if value is not msgspec.UNSET}
    )


def _raise_first(ends: Sequence[object]) -> None:
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def _about(change: Setting) -> tuple[str, ...]:
    if isinstance(change, QueueChange):
        return "queue", change.queue
    if isinstance(change, LimiterChange):
        return "limiter", change.name
    where = () if change.queue is None else ("in", "queue", change.queue)
    return "tenant", change.tenant, *where
