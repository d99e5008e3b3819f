"""settings: what is stored of them, read as the changes that would make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from fairlead.broker.checks import check_settings
from fairlead.broker.records import DEFAULTS, Settings
from fairlead.broker.redis.decode import decode_breaker
from fairlead.broker.redis.layout import CONF, LIMITER
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import LimiterChange, QueueChange, TenantChange
from fairlead.model.errors import InvalidOption
from fairlead.model.limits import NO_BREAKER, UNLIMITED

# CONF has the order of the fields of a QueueChange, but the last of them is a bit beside the 10th.
_SHARED = QueueChange.__struct_fields__[1:].index("charge_run_time")
_QUEUE_FIELDS = QueueChange.__struct_fields__[1:]
_SWITCHES = frozenset(("paused", "charge_run_time", "strict_priorities"))
_FRACTIONS = frozenset(("rate", "keep_completed", "keep_dead"))
_SETTINGS = {"q": "q", "t": "t", "r": "l"}  # by how a cursor begins: in the order of listing


async def settings(
    session: Session,
    queue: str | None = None,
    *,
    tenant: str | None = None,
    limiter: str | None = None,
    cursor: str | None = None,
    now: float | None = None,
) -> Settings:
    """Read what is set of one kind after the other; a few hundred in each page."""
    check_settings(queue, cursor)
    clock = session.clock(now)
    if queue is not None or tenant is not None or limiter is not None:
        return await _settings_of(session, clock, queue, tenant, limiter)
    kind, place = (cursor or "q0")[:1], (cursor or "q0")[1:]
    if not place.isdecimal():
        raise InvalidOption("cursor", cursor, "one that an earlier page returned")
    args: list[Value] = [clock, _SETTINGS[kind], place]
    time, end, *rows = await session.run("settings", args)
    after: str | None = f"{kind}{end.decode()}"
    if end == b"0":
        following = "qtr"["qtr".index(kind) + 1 :]
        after = f"{following[0]}0" if following else None
    pairs = [(rows[i].decode(), rows[i + 1]) for i in range(0, len(rows), 2)]
    return _page(kind, dict(pairs), float(time), after)


async def _settings_of(
    session: Session, clock: Value, queue: str | None, tenant: str | None, limiter: str | None
) -> Settings:
    found = Settings(now=0.0)
    for kind, names in _named(queue, tenant, limiter).items():
        time, _, *rows = await session.run("settings", [clock, kind, "", *names])
        part = _stated(kind, dict(zip(names, rows[1::2], strict=True)), float(time))
        found = Settings(
            now=part.now,
            queues=found.queues + part.queues,
            tenants=found.tenants + part.tenants,
            limiters=found.limiters + part.limiters,
        )
    return found


def _page(kind: str, stored: Mapping[str, bytes], now: float, cursor: str | None) -> Settings:
    """Part of what is set, all of one kind: queues (q), tenants (t) or limiters."""
    if kind == "q":
        queues = [_queue_in_force(name, value) for name, value in stored.items()]
        return Settings(now=now, queues=queues, cursor=cursor)
    if kind == "t":
        tenants = [_tenant(field, value) for field, value in stored.items()]
        return Settings(now=now, tenants=tenants, cursor=cursor)
    limiters = [_limiter(name, value) for name, value in stored.items()]
    limited = [each for each in limiters if each != _unlimited(each.name)]
    return Settings(now=now, limiters=limited, cursor=cursor)


def _named(queue: str | None, tenant: str | None, limiter: str | None) -> dict[str, list[str]]:
    """The names under which something may be set, by kind: queues, tenants, limiters."""
    found: dict[str, list[str]] = {}
    if queue is not None:
        found["q"] = [queue]
    if tenant is not None:
        found["t"] = [f"{where}\x1f{tenant}" for where in dict.fromkeys(("", queue or ""))]
    if limiter is not None:
        found["l"] = [limiter]
    return found


def _stated(kind: str, stored: Mapping[str, bytes | None], now: float) -> Settings:
    """What is set for those that were named; of queues also what holds if nothing is."""
    if kind == "q":
        queues = [_queue_in_force(name, value) for name, value in stored.items()]
        return Settings(now=now, queues=queues)
    return _page(kind, {name: value for name, value in stored.items() if value}, now, None)


def _unlimited(name: str) -> LimiterChange:
    """A limiter that is counted, but that nobody has set."""
    return LimiterChange(
        name=name,
        concurrency=None,
        rate=None,
        burst=UNLIMITED.burst,
        failures=None,
        cooldown=NO_BREAKER.cooldown,
        probes=NO_BREAKER.probes,
    )


def _queue_in_force(name: str, stored: bytes | None) -> QueueChange:
    """What holds for a queue; None is stored for one that nobody configured."""
    if stored is None:
        return QueueChange(queue=name, **DEFAULTS)
    numbers = list(CONF.unpack(stored))
    strict, numbers[_SHARED] = divmod(numbers[_SHARED], 2)
    values = zip(_QUEUE_FIELDS, (*numbers, strict), strict=True)
    return QueueChange(queue=name, **{field: _value(field, value) for field, value in values})


def _value(field: str, value: float) -> Any:
    if field in _SWITCHES:
        return value == 1
    if field == "rate":
        return value or None
    if field in _FRACTIONS:
        return value
    return None if value < 0 else int(value)


def _tenant(field: str, stored: bytes) -> TenantChange:
    """What was set for a tenant, in one queue or in all."""
    queue, _, tenant = field.partition("\x1f")
    paused, weight, concurrency, rate, burst = stored.decode().split("\x1f")
    return TenantChange(
        tenant=tenant,
        queue=queue or None,
        paused=UNSET if not paused else paused == "1",
        weight=UNSET if not weight else float(weight),
        concurrency=_whole(concurrency),
        rate=_said(rate),
        burst=UNSET if not burst else int(float(burst)),
    )


def _said(text: str) -> float | UnsetType | None:
    if not text:
        return UNSET
    return None if text == "-" else float(text)


def _whole(text: str) -> int | UnsetType | None:
    value = _said(text)
    return int(value) if isinstance(value, float) else value


def _limiter(name: str, stored: bytes) -> LimiterChange:
    """What holds for a named limiter."""
    concurrency, rate, burst, *_ = LIMITER.unpack_from(stored)
    breaker, _ = decode_breaker(stored)
    return LimiterChange(
        name=name,
        concurrency=None if concurrency < 0 else int(concurrency),
        rate=rate or None,
        burst=burst,
        failures=breaker.failures,
        cooldown=breaker.cooldown,
        probes=breaker.probes,
    )
