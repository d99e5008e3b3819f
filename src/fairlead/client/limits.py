"""Limits, weights and pauses: as they are said, as they are set, and as a program declares them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypedDict, Unpack, cast

import msgspec
from msgspec import UNSET

from fairlead.broker.checks import check_changes
from fairlead.broker.requests import (
    MAX_STEP,
    Declaration,
    LimiterChange,
    QueueChange,
    Setting,
    TenantChange,
)
from fairlead.client.client import Client
from fairlead.client.errors import check_options
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.names import check_limiter, check_queue, check_tenant
from fairlead.model.options import Duration, seconds
from fairlead.model.rates import RATE_RULE, Rate, in_rate
from fairlead.settings import configured_limits

_SWITCHES = ("paused", "charge_run_time", "strict_priorities")
_DURATIONS = ("keep_completed", "keep_dead", "cooldown")
_COUNTS = (
    "max_waiting", "max_tenant_waiting", "max_tenant_bytes", "max_tenant_pinned_bytes",
    "warn_depth", "keep_completed_count", "keep_completed_bytes", "keep_dead_bytes",
)  # fmt: skip


class LimitSettings(TypedDict, total=False):
    """At most ``concurrency`` at a time, and ``rate`` a second after ``burst`` at once."""

    concurrency: int | None
    """How many may run at a time, 0 to 1,000,000; None lifts the limit. Default: none."""
    rate: Rate | None
    """How many may start: a number a second, or text such as "300/m"; None lifts the limit.
    Default: none."""
    burst: int
    """How many may start at once under a rate, 1 to 1,000,000. Default: 1."""


class LimiterSettings(LimitSettings, total=False):
    """Limits, and a breaker that opens after ``failures`` in a row, for the ``cooldown``."""

    failures: int | None
    """How many failures in a row open its breaker; None takes the breaker away. Default: none."""
    cooldown: Duration
    """How long its breaker stays open, in seconds or as a duration such as "1m". Default: 30."""
    probes: int
    """How many attempts go at a time while its breaker is half open. Default: 1."""


class TenantSettings(LimitSettings, total=False):
    """Weight, limits and pause of one tenant."""

    paused: bool
    """True hands out none of its tasks. Default: False."""
    weight: float
    """The tenant's share against that of others, 0.001 to 1000. Default: 1."""


class QueueSettings(LimitSettings, total=False):
    """Limits, pause and retention of one queue."""

    paused: bool
    """True hands out none of its tasks. Default: False."""
    max_waiting: int | None
    """How many tasks may wait in it; more are refused with ``QueueFull``. Default: no limit."""
    max_tenant_waiting: int | None
    """How many tasks of one tenant may wait in it; more are refused. Default: no limit."""
    max_tenant_bytes: int | None
    """How many bytes of unfinished tasks one tenant may have in it; None lifts the limit.
    Default: 256 MiB."""
    max_tenant_pinned_bytes: int | None
    """How many bytes of a tenant's completed tasks are kept because others will read them; None
    lifts the limit. Default: 128 MiB."""
    warn_depth: int | None
    """How many tasks may wait before a ``warned`` event says so. Default: none."""
    charge_run_time: bool
    """True shares run time between tenants, not the number of tasks. Default: False."""
    keep_completed: Duration
    """How long completed and cancelled tasks are kept, in seconds or as a duration such as "1h".
    Default: 1 hour."""
    keep_completed_count: int
    """How many completed and cancelled tasks are kept. Default: 10,000."""
    keep_completed_bytes: int
    """How many bytes of completed and cancelled tasks are kept. Default: 64 MiB."""
    keep_dead: Duration
    """How long dead tasks are kept, in seconds or as a duration such as "7d". Default: 7 days."""
    keep_dead_bytes: int
    """How many bytes of dead tasks are kept. Default: 256 MiB."""
    strict_priorities: bool
    """True always hands out the highest priority that waits. Default: False."""


def queue_change(name: str, **settings: Unpack[QueueSettings]) -> QueueChange:
    """The change of one queue; what is not said stays as it is."""
    return QueueChange(queue=check_queue(name), **_checked(settings, QueueSettings, "a queue"))


def tenant_change(
    name: str, queue: str | None = None, **settings: Unpack[TenantSettings]
) -> TenantChange:
    """The change of one tenant, in one queue or in all of them."""
    where = None if queue is None else check_queue(queue)
    said = _checked(settings, TenantSettings, "a tenant")
    return TenantChange(tenant=check_tenant(name), queue=where, **said)


def limiter_change(name: str, **settings: Unpack[LimiterSettings]) -> LimiterChange:
    """The change of one named limiter."""
    return LimiterChange(
        name=check_limiter(name), **_checked(settings, LimiterSettings, "a limiter")
    )


def _checked(settings: Mapping[str, Any], known: type, where: str) -> dict[str, Any]:
    """The settings with durations in seconds, each of its type. The broker knows the bounds."""
    check_options(settings, known, where)
    said = dict(settings)
    for option, value in said.items():
        if option in _DURATIONS:
            said[option] = seconds(option, value)
        elif option == "rate" and value is not None:
            said[option] = in_rate(value)
            if said[option] is None:
                raise InvalidOption(option, value, f"{RATE_RULE}, or None")
        elif option in _SWITCHES and not isinstance(value, bool):
            raise InvalidOption(option, value, "True or False")
        elif option in _COUNTS and value is not None and type(value) is not int:
            raise InvalidOption(option, value, "a whole number, 0 or more")
        elif option == "weight" and type(value) not in (int, float):
            raise InvalidOption(option, value, "a number")
    return said


# -- what is set ----------------------------------------------------------------------------------


async def queue_settings(client: Client, name: str) -> QueueSettings:
    """Return what is in force for a queue, whether it was set or is the default."""
    (change,) = (await client.store.settings(check_queue(name))).queues
    return cast(QueueSettings, _said(change))


async def tenant_settings(client: Client, name: str, queue: str | None) -> TenantSettings:
    """Return what is set for a tenant: in one queue, or for all of them."""
    where = None if queue is None else check_queue(queue)
    page = await client.store.settings(where, tenant=check_tenant(name))
    found = list(page.tenants)
    while page.cursor is not None:
        page = await client.store.settings(where, tenant=name, cursor=page.cursor)
        found += page.tenants
    said = [_said(change) for change in found if change.queue == where]
    return cast(TenantSettings, said[0] if said else {})


async def limiter_settings(client: Client, name: str) -> LimiterSettings:
    """Return what is in force for a limiter; nothing if it was never set."""
    found = (await client.store.settings(limiter=check_limiter(name))).limiters
    return cast(LimiterSettings, _said(found[0]) if found else {})


def _said(change: QueueChange | TenantChange | LimiterChange) -> dict[str, Any]:
    """Return the settings of a change, without whose they are and what was not said."""
    names = {"tenant", "queue"} if isinstance(change, TenantChange) else {"queue", "name"}
    fields = ((name, getattr(change, name)) for name in change.__struct_fields__)
    return {name: value for name, value in fields if name not in names and value is not UNSET}


# -- what a program declares -----------------------------------------------------------------------


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
        raise_first(ends)


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
        file, **{name: value for name, value in said.items() if value is not UNSET}
    )


def raise_first(ends: Iterable[object]) -> None:
    """Raise the first error among what calls came to."""
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
