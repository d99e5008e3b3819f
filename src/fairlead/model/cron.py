"""Cron expressions: checked with the place of what is wrong, and turned into moments.

``cronsim`` knows which minutes of the calendar an expression means. Which moments those are, when
clocks are put forward or back, is decided here: see ``moments``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fairlead.model.errors import InvalidCron, InvalidOption

Gap = Literal["skip", "after"]
Fold = Literal["first", "second", "both"]

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST = 250  # characters
_ANYTHING = ("*",) * 5
_COMMON = "*, lists (1,2), ranges (1-5) and steps (*/5)"
_FIELDS = (  # name, and what is allowed in it
    ("minute", f"0-59, {_COMMON}"),
    ("hour", f"0-23, {_COMMON}"),
    ("day of month", f"1-31, L (the last day), LW (the last weekday), {_COMMON}"),
    ("month", f"1-12, JAN-DEC, {_COMMON}"),
    ("day of week", f"0-7, SUN-SAT, MON#1 (the first), 5L (the last), {_COMMON}"),
)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of a wall clock, wherever it hangs
_PROBE = 43_200  # seconds: no zone has put its clocks twice in so short a time
_LAST_YEAR = 9_000  # further on there is no calendar to count with


_ONE_TO_ITSELF = re.compile(r"(?<!\w)(\w+)-\1/\d+")

# -- expressions -------------------------------------------------------------------------------


def check_cron(expression: object) -> str:
    """The expression in its plain form, or InvalidCron with the place of what is wrong."""
    if not isinstance(expression, str):
        raise InvalidOption("cron", expression, 'text such as "*/5 * * * *"')
    text = str.__str__(expression)
    if len(text) > _LONGEST:
        raise InvalidCron(text, f"it is longer than {_LONGEST} characters")
    if text.strip().startswith("@"):
        alias = ALIASES.get(text.strip().lower())
        if alias is None:
            raise InvalidCron(text, f"of such names there are {', '.join(ALIASES)}")
        return alias
    fields = list(re.finditer(r"\S+", text))
    if len(fields) != len(_FIELDS):
        names = ", ".join(name for name, _ in _FIELDS)
        raise InvalidCron(text, f"it has {len(fields)} fields, not the five of {names}")
    for number, found in enumerate(fields):
        _check_field(text, number, found)
    plain = " ".join(found.group().upper() for found in fields)
    plain = _ONE_TO_ITSELF.sub(r"\1", plain)  # cronsim takes 5-5/2 for 5/2
    if not _ever_comes(plain):
        raise InvalidCron(text, "it never comes: there is no such day in the next 50 years")
    return plain


def _check_field(text: str, number: int, found: re.Match[str]) -> None:
    column = found.start() + 1
    for part in found.group().split(","):
        if not _is_readable(part, number):
            name, allowed = _FIELDS[number]
            raise InvalidCron(
                text,
                f"field {number + 1} ({name}) has {part!r} at column {column}; "
                f"allowed are {allowed}",
                field=number + 1,
                part=part,
                column=column,
            )
        column += len(part) + 1


def _is_readable(part: str, number: int) -> bool:
    if not part or not part.isascii():
        return False
    fields = [*_ANYTHING]
    fields[number] = part
    try:
        CronSim(" ".join(fields), _EPOCH)
    except CronSimError:
        return False
    return True


def _ever_comes(plain: str) -> bool:
    try:
        next(CronSim(plain, datetime(2000, 1, 1)))  # noqa: DTZ001 - a wall clock
    except (CronSimError, StopIteration):
        return False
    return True


def runs_all_day(plain: str) -> bool:
    """Whether it comes in every hour, or in hours counted from midnight: ``*`` or ``*/n``."""
    return plain.split()[1].startswith("*")


# -- time zones --------------------------------------------------------------------------------


def check_zone(name: object) -> str:
    """The name of a time zone that is known here, or InvalidOption."""
    rule = "the name of a time zone such as Europe/Berlin or UTC"
    if not isinstance(name, str):
        raise InvalidOption("tz", name, rule)
    text = str.__str__(name)
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # unknown; no name; a folder of names
        raise InvalidOption("tz", name, rule) from None
    return text


def _offset(zone: ZoneInfo, at: int) -> int:
    """Seconds by which the wall clock is ahead of UTC."""
    ahead = datetime.fromtimestamp(at, zone).utcoffset()
    return int(ahead.total_seconds()) if ahead is not None else 0


@lru_cache(maxsize=2048)
def _changes(zone: str, year: int) -> tuple[tuple[int, int, int], ...]:
    """When clocks were put forward or back in a year of UTC: moment, offset before and after."""
    where = ZoneInfo(zone)
    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp())
    found = []
    before = _offset(where, start - 1)
    for low in range(start - 1, end - 1, _PROBE):
        high = min(low + _PROBE, end - 1)
        after = _offset(where, high)
        if after != before:
            known = low
            while high - known > 1:
                middle = (known + high) // 2
                if _offset(where, middle) == before:
                    known = middle
                else:
                    high = middle
            found.append((high, before, after))
            before = after
    return tuple(found)


# -- moments -----------------------------------------------------------------------------------


def moments(plain: str, zone: str, after: float, gap: Gap, fold: Fold) -> Iterator[float]:
    """The moments behind ``after`` at which the clocks of a zone show what the expression means.

    A time that the clocks leave out (``gap``) is skipped, or comes at the first moment after the
    gap; several of them come once. One that they show twice (``fold``) comes at the first, at the
    second, or at both. Ends where there is none in the next 50 years.
    """
    since = int(after // 1)
    last = after
    again_until = 0  # until then the clocks show what they have shown before
    for start, end, ahead, lost, again_from in _stretches(zone, since):
        wall = _EPOCH + timedelta(seconds=max(start - 1, since) + ahead)
        for time in CronSim(plain, wall):
            at = int((time - _EPOCH).total_seconds()) - ahead
            if at >= end:
                break
            if (
                at <= last
                or (fold == "first" and at < again_until)
                or (fold == "second" and at >= again_from)
            ):
                continue
            yield float(at)
            last = at
        else:
            return
        if lost and gap == "after" and end > last and _within(plain, end + ahead, lost):
            yield float(end)
            last = end
        again_until = max(again_until, 2 * end - again_from)


def _stretches(zone: str, since: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Stretches of time in which clocks are not put, from shortly before ``since`` on.

    Of each: its start and end, how far clocks are ahead of UTC in it, by how many seconds they are
    put forward at its end, and from when on they show what they will show once more after it.
    """
    start = since - 3 * 86_400  # clocks may have been put back just now
    ahead = _offset(ZoneInfo(zone), start)
    year = datetime.fromtimestamp(start, UTC).year
    while year < _LAST_YEAR:
        for at, old, new in _changes(zone, year):
            if at > start:
                yield start, at, old, max(0, new - old), at - max(0, old - new)
                start, ahead = at, new
        year += 1
        end = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
        soon = any(at - end < 2 * 86_400 for at, _, _ in _changes(zone, year))
        if end > start and not soon:  # otherwise it goes on until clocks are put
            yield start, end, ahead, 0, end
            start = end


def _within(plain: str, wall: int, seconds: int) -> bool:
    """Whether the expression means a time of the wall clock in these seconds."""
    first = next(CronSim(plain, _EPOCH + timedelta(seconds=wall - 1)), None)
    return first is not None and first < _EPOCH + timedelta(seconds=wall + seconds)
