"""Schedules: when a task is to be enqueued, by a cron expression, at intervals, or once.

A *slot* is a moment at which a schedule is due, in unix seconds. Everything here is pure: whoever
asks brings the time along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Literal, TypedDict
from zoneinfo import ZoneInfo

import msgspec

from fairlead.model.cron import Fold, Gap, check_cron, check_zone, moments, runs_all_day
from fairlead.model.durations import Duration, duration_rule, in_seconds
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.moments import Moment
from fairlead.model.names import scoped_id
from fairlead.model.options import Unique

Missed = Literal["skip", "latest", "all"]

GRACE = 60.0  # seconds by which a slot may be late without counting as missed
MAX_MISSED = 1_000  # slots that are made up for
VERSION = 1  # of what is stored
SCHEDULE_HEADER = "fairlead-schedule"  # in the headers of a task: the schedule it comes from
SLOT_HEADER = "fairlead-slot"  # and the slot, as ``stamp`` writes it

_LEAST_INTERVAL = 1.0  # seconds
_WINDOW = 3_600.0  # seconds in which missed slots are looked for first
_LATEST = 220_000_000_000.0  # unix seconds, about the year 8940
_CHOICES = {
    "gap": ("skip", "after"),
    "fold": ("first", "second", "both"),
    "missed": ("skip", "latest", "all"),
}


class TimingOptions(TypedDict, total=False):
    """When a schedule is due, besides its cron expression: one of the three has to be given."""

    every: Duration
    """The time between two slots, counted from ``start`` or from 1970: at least 1 second, or a
    duration such as "5m"."""
    at: Moment
    """The one moment when it is due: a datetime, or unix seconds."""
    tz: str
    """The time zone of the cron expression, and of datetimes that have none. Default: "UTC"."""
    gap: Gap
    """What becomes of a time that the clocks leave out: "skip", or "after" for the moment behind
    the gap. Default: "after", but "skip" for expressions that run all day."""
    fold: Fold
    """Which one counts of a time that the clocks show twice: "first", "second" or "both". Default:
    "first", but "both" for expressions that run all day."""
    missed: Missed
    """What becomes of slots that were missed: "skip", "latest" or "all". Default: "latest"."""
    max_missed: int
    """How many missed slots are made up for with ``missed="all"``, the newest. Default: 1,000."""
    start: Moment
    """The moment before which there is no slot. Default: none."""
    end: Moment
    """The moment after which there is no slot. Default: none."""


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule is due, and what becomes of slots that were missed. Made by ``timing``."""

    kind: Literal["cron", "interval", "once"]
    """Whether it is a cron expression, an interval or one moment."""
    expression: str = ""
    """The cron expression, in its plain form; else empty."""
    every: float = 0.0
    """The interval in seconds; else 0."""
    at: float = 0.0
    """The one moment, in unix seconds; else 0."""
    tz: str = "UTC"
    """The time zone of the expression."""
    gap: Gap = "after"
    """What becomes of a time that the clocks leave out: "skip" or "after"."""
    fold: Fold = "first"
    """Which one counts of a time that the clocks show twice: "first", "second" or "both"."""
    missed: Missed = "latest"
    """What becomes of slots that were missed: "skip", "latest" or "all"."""
    max_missed: int = MAX_MISSED
    """How many of them are made up for with "all", the newest."""
    start: float | None = None
    """Unix seconds before which it fires nothing; None: no such bound."""
    end: float | None = None
    """Unix seconds after which it fires nothing; None: no such bound."""

    def __str__(self) -> str:
        if self.kind == "cron":
            return f"{self.expression} {self.tz}"
        if self.kind == "interval":
            return f"every {self.every:g} s"
        return f"once, {stamp(self.at)}"


class Template(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is enqueued for a slot: all of a message but its id and where it came from."""

    task: str
    body: bytes  # an encoded Body
    queue: str
    tenant: str
    level: int = 2
    cost: float = 1.0
    limiters: tuple[str, ...] = ()
    deadline: float | None = None  # seconds
    unique: Unique | None = None


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it is stored. Brokers never look inside."""

    timing: Timing
    template: Template
    declared: str = ""  # digest of what the program declared; empty: made at run time
    version: int = VERSION

    def encode(self) -> bytes:
        """The stored form."""
        return _encode(self)


class _Versioned(msgspec.Struct):
    version: int = VERSION


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ScheduleSpec).decode
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode


def decode(data: bytes) -> ScheduleSpec:
    """The stored schedule; InvalidInput if it is none, or one that only a later release reads."""
    try:
        version = _decode_version(data).version
        if version > VERSION:
            raise InvalidInput(
                f"it is of version {version}, this release of Fairlead reads {VERSION}"
            )
        spec = _decode(data)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"not a stored schedule: {type(error).__name__}") from None
    check_zone(spec.timing.tz)  # the tables of time zones differ from machine to machine
    _check_computable(spec.timing)
    return spec


def _check_computable(timing: Timing) -> None:
    """InvalidInput if no slots follow from what is stored: it may come from another release."""
    if timing.kind == "cron":
        _check_expression(timing.expression)
    elif timing.kind == "interval" and not _LEAST_INTERVAL <= timing.every < _LATEST:
        raise InvalidOption("every", timing.every, duration_rule(_LEAST_INTERVAL))
    for option in ("at", "start", "end"):
        value = getattr(timing, option)
        if value is not None and not 0 <= value < _LATEST:
            raise InvalidOption(option, value, "unix seconds")


@lru_cache(maxsize=1024)
def _check_expression(plain: str) -> None:  # asked again at every slot
    check_cron(plain)


# -- making one --------------------------------------------------------------------------------


def timing(
    cron: str | None = None,
    *,
    every: Duration | None = None,
    at: Moment | None = None,
    tz: str | None = None,
    gap: Gap | None = None,
    fold: Fold | None = None,
    missed: Missed = "latest",
    max_missed: int = MAX_MISSED,
    start: Moment | None = None,
    end: Moment | None = None,
) -> Timing:
    """Check what was said; errors name the value.

    Without ``gap`` times that the clocks leave out come after the gap, and without ``fold`` those
    that come twice count at the first. But of expressions that run all day (their hours are ``*``
    or ``*/n``) they are skipped, and count at both: what runs every five minutes, or at half past
    every hour, does so always, and no more often.
    """
    said = (("cron", cron), ("every", every), ("at", at))
    given = [name for name, value in said if value is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"a schedule has one of cron, every and at; given are {' and '.join(given) or 'none'}"
        )
    for option, value in (("gap", gap), ("missed", missed), ("fold", fold)):
        if value not in _CHOICES[option] and (value is not None or option == "missed"):
            raise InvalidOption(option, value, f"one of {', '.join(_CHOICES[option])}")
    if type(max_missed) is not int or not 1 <= max_missed <= MAX_MISSED:
        raise InvalidOption("max_missed", max_missed, f"a whole number from 1 to {MAX_MISSED}")
    zone = "UTC" if tz is None else check_zone(tz)
    first, last = _moment("start", start, tz), _moment("end", end, tz)
    if first is not None and last is not None and last < first:
        raise InvalidOption("end", end, "not before start")
    kind: Literal["cron", "interval", "once"] = "once"
    expression, seconds = "", 0.0
    if cron is not None:
        kind, expression = "cron", check_cron(cron)
    elif every is not None:
        kind = "interval"
        found = in_seconds(every, _LEAST_INTERVAL)
        if found is None:
            raise InvalidOption("every", every, duration_rule(_LEAST_INTERVAL))
        seconds = _milliseconds(found) / 1000
    usual_gap, usual_fold = clock_defaults(expression)
    made = Timing(
        kind=kind,
        expression=expression,
        every=seconds,
        at=_moment("at", at, tz) or 0.0,
        tz=zone,
        gap=gap or usual_gap,
        fold=fold or usual_fold,
        missed=missed,
        max_missed=max_missed,
        start=first,
        end=last,
    )
    if next_slot(made, -math.inf if kind != "cron" else (first or 0.0) - 1.0) is None:
        raise InvalidInput(f"the schedule {made} has no slot between its start and its end")
    return made


def clock_defaults(expression: str) -> tuple[Gap, Fold]:
    """``gap`` and ``fold`` of an expression in its plain form, if nobody says; see ``timing``."""
    if expression and runs_all_day(expression):
        return "skip", "both"
    return "after", "first"


def _moment(option: str, value: object, tz: str | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            if tz is None:
                raise InvalidOption(
                    option, value, "a datetime with a time zone; or say which one it is of: tz="
                )
            value = value.replace(tzinfo=ZoneInfo(tz))
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise InvalidOption(option, value, "a datetime with a time zone, or unix seconds")
    return _milliseconds(float(value)) / 1000


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


# -- slots -------------------------------------------------------------------------------------


def next_slot(timing: Timing, after: float) -> float | None:
    """The first slot later than ``after``, or None."""
    return next(_slots(timing, after), None)


def slots(timing: Timing, after: float, until: float, limit: int | None = None) -> list[float]:
    """The slots later than ``after`` and not later than ``until``, the first ``limit`` of them."""
    found = []
    for slot in islice(_slots(timing, after), limit):
        if slot > until:
            break
        found.append(slot)
    return found


def _slots(timing: Timing, after: float) -> Iterator[float]:
    if timing.start is not None and after < timing.start:
        after = timing.start - 0.001  # moments are whole milliseconds
    for slot in _endless(timing, after):
        if timing.end is not None and slot > timing.end:
            return
        yield slot


def _endless(timing: Timing, after: float) -> Iterator[float]:
    if timing.kind == "once":
        if timing.at > after:
            yield timing.at
    elif timing.kind == "cron":
        yield from moments(timing.expression, timing.tz, after, timing.gap, timing.fold)
    else:
        # In whole milliseconds, each from the start: nothing adds up.
        start, step = _milliseconds(timing.start or 0.0), _milliseconds(timing.every)
        number = 0 if after < 0.0 else max(0, int(after * 1000 - start) // step - 1)
        while True:
            slot = (start + number * step) / 1000
            if slot > _LATEST:
                return
            if slot > after:
                yield slot
            number += 1


class Due(msgspec.Struct, frozen=True):
    """What to do for a schedule now: the slots to fire, in order, and the one after them."""

    slots: tuple[float, ...]
    next_at: float | None
    dropped: bool = False  # older slots that were missed are not made up for


def due(timing: Timing, first: float, last: float | None, now: float) -> Due:
    """What is due at ``now``, if ``first`` is the first slot that nothing was done for.

    ``last`` is the last slot that was fired. A slot that is more than 60 seconds late was missed.
    """
    after = first - 0.001 if last is None else max(first - 0.001, last)
    edge = math.nextafter(now - GRACE, -math.inf)  # up to here they were missed
    on_time = slots(timing, max(after, edge), now)
    dropped = False
    missed: list[float] = []
    if after < edge:
        wanted = {"skip": 0, "latest": 0 if on_time else 1, "all": timing.max_missed}
        count = wanted[timing.missed]
        missed = _newest(timing, after, edge, count + 1)
        dropped = len(missed) > count
        missed = missed[-count:] if count else []
    return Due((*missed, *on_time), next_slot(timing, now), dropped)


def _newest(timing: Timing, after: float, until: float, count: int) -> list[float]:
    """The last ``count`` slots of a stretch of time that may hold millions of them."""
    window = _WINDOW
    if timing.kind == "interval":
        window = (count + 1) * timing.every
    while True:
        found = slots(timing, max(after, until - window), until)
        if len(found) >= count or until - window <= after:
            return found[-count:]
        window *= 4


# -- names of slots ----------------------------------------------------------------------------


def stamp(slot: float) -> str:
    """A slot as people read it, in UTC: 2026-11-16T02:00:00Z."""
    at = datetime.fromtimestamp(slot, UTC)
    form = "milliseconds" if at.microsecond else "seconds"
    return at.replace(tzinfo=None).isoformat(timespec=form) + "Z"


def slot_id(tenant: str, schedule: str, slot: float) -> str:
    """The id of the task for a slot: the same, whoever fires it; and it tells which slot it is."""
    return scoped_id(tenant, f"{schedule}.{stamp(slot).replace('-', '').replace(':', '')}")
