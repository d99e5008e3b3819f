"""Cron expressions against an oracle that walks a year minute by minute and looks at the clock."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.cron import check_cron, check_zone, moments
from fairlead.model.errors import InvalidCron, InvalidOption
from fairlead.model.schedule import next_slot, slots, stamp, timing
from tests.support.fair import examples

DAY = 1440  # minutes
ZONES = [
    ("UTC", 2026),
    ("Europe/Berlin", 2026),
    ("America/New_York", 2026),
    ("Australia/Lord_Howe", 2026),  # by half an hour
    ("Pacific/Chatham", 2026),  # from 2:45 to 3:45
    ("Antarctica/Troll", 2026),  # by two hours
    ("America/Sao_Paulo", 2018),  # at midnight; no longer done
    ("Asia/Tehran", 2022),  # at midnight, half an hour off
    ("Pacific/Apia", 2011),  # left out a whole day
]
EXPRESSIONS = [
    "30 2 * * *",
    "0 0 * * *",
    "15,45 0,2,3 * 3,4,9-11 *",
    "59 23 31 * 1-5",
    "0 */2 1-7 * 0",
]


# -- the oracle -------------------------------------------------------------------------------


def members(field: str, low: int, high: int) -> set[int]:
    """What a field allows, read by hand."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = map(int, span.split("-"))
        else:
            first = int(span)
            last = high if step else first
        found.update(range(first, last + 1, int(step or 1)))
    return found


def matching(expression: str, days: range) -> set[int]:
    """The minutes of these days that an expression allows; minutes count from the first day."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours = members(minute, 0, 59), members(hour, 0, 23)
    of_month, months = members(day, 1, 31), members(month, 1, 12)
    of_week = {number % 7 for number in members(weekday, 0, 7)}
    both = day.startswith("*") or weekday.startswith("*")
    found: set[int] = set()
    for number in days:
        wall = date.fromordinal(number)
        fits = wall.day in of_month, wall.isoweekday() % 7 in of_week
        if wall.month in months and (all(fits) if both else any(fits)):
            found.update(DAY * number + 60 * h + m for h in hours for m in minutes)
    return found


class Walk(NamedTuple):
    days: range
    shown: dict[int, int]  # by what the clock on the wall shows: the moment
    again: dict[int, int]  # the moment at which it shows that once more
    gaps: dict[int, range]  # by moment: what the clock left out before it


@cache
def walk(zone: str, start: int, minutes: int) -> Walk:
    """Look at a clock in each minute of this time."""
    where = ZoneInfo(zone)
    shown, again, gaps = dict[int, int](), dict[int, int](), dict[int, range]()
    before = 0
    for at in range(start, start + 60 * minutes, 60):
        clock = datetime.fromtimestamp(at, where)
        wall = DAY * clock.toordinal() + 60 * clock.hour + clock.minute
        if wall != before + 1 and at > start:
            gaps[at] = range(before + 1, wall)
        if shown.setdefault(wall, at) != at:
            again[wall] = at
        before = wall
    return Walk(range(min(shown) // DAY, max(shown) // DAY + 1), shown, again, gaps)


def oracle(
    expression: str, zone: str, start: int, minutes: int, gap: str, fold: str
) -> list[float]:
    walked = walk(zone, start, minutes)
    walls = matching(expression, walked.days)
    found: set[int] = set()
    if gap == "after":
        found.update(at for at, out in walked.gaps.items() if not walls.isdisjoint(out))
    for wall in walls & walked.shown.keys():
        first = walked.shown[wall]
        second = walked.again.get(wall, first)
        found.update({"first": (first,), "second": (second,), "both": (first, second)}[fold])
    return [float(at) for at in sorted(found)]


def year(number: int) -> tuple[int, int]:
    start = int(datetime(number, 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(number + 1, 1, 1, tzinfo=UTC).timestamp())
    return start, (end - start) // 60


def agrees(expression: str, zone: str, start: int, minutes: int, gap: Any, fold: Any) -> None:
    rule = timing(expression, tz=zone, gap=gap, fold=fold)
    found = slots(rule, start - 1, start + 60 * minutes - 1)
    assert found == oracle(expression, zone, start, minutes, gap, fold)


POLICIES = [("after", "first"), ("skip", "second"), ("after", "both")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("zone", "number"), ZONES)
def test_slots_are_those_that_a_walk_over_the_year_finds(zone: str, number: int) -> None:
    start, minutes = year(number)
    for place, expression in enumerate(EXPRESSIONS):
        agrees(expression, zone, start, minutes, *POLICIES[place % 3])
    # And around every moment at which clocks are put, whatever the policy.
    for at in changes(zone, number):
        for expression in (*EXPRESSIONS, "* * * * *", "*/7 1-3 * * *"):
            for gap, fold in POLICIES:
                agrees(expression, zone, at - 86_400, 2 * 1440, gap, fold)


@cache
def changes(zone: str, number: int) -> list[int]:
    """When clocks are put: the minutes of an hour are looked at where it is not one on the wall."""
    where = ZoneInfo(zone)
    start, minutes = year(number)

    def offset(minute: int) -> timedelta | None:
        return datetime.fromtimestamp(start + 60 * minute, where).utcoffset()

    return [
        start + 60 * i
        for hour in range(0, minutes, 60)
        if offset(hour) != offset(hour + 60)
        for i in range(hour + 1, hour + 61)
        if offset(i) != offset(i - 1)
    ]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    step = st.integers(1, high)
    part = st.one_of(
        st.just("*"),
        number.map(str),
        span,
        st.tuples(st.one_of(st.just("*"), span, number.map(str)), step).map("{0[0]}/{0[1]}".format),
    )
    return st.lists(part, min_size=1, max_size=3).map(",".join)


CRON = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7)).map(" ".join)


@pytest.mark.parametrize(
    ("said", "plain"),
    [("5-5/1 * * * *", "5 * * * *"), ("* * * * 0-0/2,3", "* * * * 0,3"), ("1-15/5 * * * *",) * 2],
)
def test_a_range_from_a_number_to_itself_is_that_number(said: str, plain: str) -> None:
    assert check_cron(said) == plain


@given(data=st.data(), expression=CRON, place=st.sampled_from(ZONES))
@examples(50)
def test_any_expression_agrees_with_the_walk(
    data: st.DataObject, expression: str, place: tuple[str, int]
) -> None:
    zone, number = place
    start, minutes = year(number)
    moment = data.draw(st.sampled_from([start + 60 * (minutes // 2), *changes(zone, number)]))
    gap = data.draw(st.sampled_from(["skip", "after"]))
    fold = data.draw(st.sampled_from(["first", "second", "both"]))
    agrees(expression, zone, moment - 86_400, 2 * 1440, gap, fold)


@given(
    expression=st.sampled_from(EXPRESSIONS),
    place=st.sampled_from(ZONES),
    back=st.integers(0, 2 * 86_400_000),
    fold=st.sampled_from(["first", "second", "both"]),
)
@examples(40)
def test_slots_do_not_depend_on_where_one_begins(
    expression: str, place: tuple[str, int], back: int, fold: Any
) -> None:
    zone, number = place
    for at in changes(zone, number):
        rule = timing(expression, tz=zone, fold=fold)
        start = at + 86_400 - back / 1000
        whole = slots(rule, at - 3 * 86_400, at + 2 * 86_400)
        assert slots(rule, start, at + 2 * 86_400) == [slot for slot in whole if slot > start]


# -- times that clocks leave out or show twice, by example -------------------------------------


def stamps(expression: str, day: str, hours: int = 24, **how: Any) -> list[str]:
    rule = timing(expression, tz="Europe/Berlin", **how)
    start = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    return [stamp(slot)[11:16] for slot in slots(rule, start - 1, start + hours * 3600)]


def test_a_time_that_does_not_exist_comes_right_after_the_gap_or_not_at_all() -> None:
    assert stamps("30 2 * * *", "2026-03-29") == ["01:00"]  # 3:00, the first moment after 1:59
    assert stamps("30 2 * * *", "2026-03-29", gap="skip") == []
    assert stamps("0,30 2 * * *", "2026-03-29", 23) == ["01:00"]
    assert stamps("0 2,3 * * *", "2026-03-29", 23) == ["01:00"]  # which is 3:00 anyway


@pytest.mark.parametrize("hours", ["*", "*/1"])
def test_what_runs_all_day_gets_no_run_more_when_clocks_go_forward(hours: str) -> None:
    rule = timing(f"30 {hours} * * *", tz="Europe/Berlin")
    start = datetime(2027, 3, 28, tzinfo=UTC).timestamp()
    found = [stamp(slot)[11:16] for slot in slots(rule, start, start + 3 * 3_600)]
    assert found == ["00:30", "01:30", "02:30"]
    asked = timing("30 * * * *", tz="Europe/Berlin", gap="after")
    assert start + 3_600 in slots(asked, start, start + 3 * 3_600)


def test_a_time_that_comes_twice_counts_as_its_schedule_says() -> None:
    assert stamps("30 2 * * *", "2026-10-25") == ["00:30"]
    assert stamps("30 2 * * *", "2026-10-25", fold="second") == ["01:30"]
    assert stamps("30 2 * * *", "2026-10-25", fold="both") == ["00:30", "01:30"]


def test_what_runs_all_day_does_so_when_clocks_are_put_back_unless_told_otherwise() -> None:
    assert stamps("30 * * * *", "2026-10-25", 3) == ["00:30", "01:30", "02:30"]
    assert stamps("0 */2 * * *", "2026-10-25", 3) == ["00:00", "01:00", "03:00"]
    assert stamps("30 * * * *", "2026-10-25", 3, fold="first") == ["00:30", "02:30"]


def test_a_day_that_was_left_out_comes_at_its_end() -> None:
    """Samoa went from the 29th of December 2011 to the 31st, over the date line."""
    rule = timing("0 12 30 12 *", tz="Pacific/Apia")
    [slot] = slots(rule, 1_325_000_000.0, 1_326_000_000.0)
    assert stamp(slot) == "2011-12-30T10:00:00Z"
    assert (
        stamp(next_slot(timing("0 12 30 12 *", tz="Pacific/Apia", gap="skip"), slot) or 0)[:4]
        == "2012"
    )


# -- rare and impossible days ------------------------------------------------------------------


def test_leap_days_are_those_of_the_calendar() -> None:
    rule = timing("0 0 29 2 *")
    start = datetime(2093, 1, 1, tzinfo=UTC).timestamp()
    found = [stamp(slot)[:10] for slot in slots(rule, start, start + 13 * 366 * 86_400)]
    assert found == ["2096-02-29", "2104-02-29"]  # 2100 is no leap year


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 */7"])
def test_what_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(InvalidCron, match="never comes"):
        check_cron(expression)


def test_the_last_days_of_a_month() -> None:
    start = datetime(2026, 2, 1, tzinfo=UTC).timestamp()
    assert stamp(next_slot(timing("0 0 L * *"), start) or 0) == "2026-02-28T00:00:00Z"
    assert stamp(next_slot(timing("0 0 * * FRI#2"), start) or 0) == "2026-02-13T00:00:00Z"


@pytest.mark.parametrize(
    ("alias", "plain"),
    [("@daily", "0 0 * * *"), (" @HOURLY ", "0 * * * *"), ("0 0 * jan mon", "0 0 * JAN MON")],
)
def test_names_stand_for_expressions(alias: str, plain: str) -> None:
    assert check_cron(alias) == plain


def test_there_is_an_end_to_looking_for_the_next_one() -> None:
    assert list(moments("0 0 1 1 *", "UTC", 221_000_000_000.0, "after", "first")) != []
    assert list(moments("0 0 1 1 *", "UTC", 222_000_000_000.0, "after", "first")) == []


# -- what is refused, and where it stands ------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "number", "part", "column", "said"),
    [
        ("61 * * * *", 1, "61", 1, "field 1 (minute) has '61' at column 1; allowed are 0-59"),
        ("*  24 * * *", 2, "24", 4, "field 2 (hour) has '24' at column 4; allowed are 0-23"),
        ("* * 1,0 * *", 3, "0", 7, "field 3 (day of month) has '0' at column 7; allowed are 1-31"),
        ("* * * 5,FOO *", 4, "FOO", 9, "field 4 (month) has 'FOO' at column 9; allowed are 1-12"),
        (
            "* * * * 1-9",
            5,
            "1-9",
            9,
            "field 5 (day of week) has '1-9' at column 9; allowed are 0-7",
        ),
        ("5-1 * * * *", 1, "5-1", 1, "'5-1' at column 1"),
        ("*/0 * * * *", 1, "*/0", 1, "'*/0' at column 1"),
        ("1,,2 * * * *", 1, "", 3, "'' at column 3"),
        ("* * ä * *", 3, "ä", 5, "'ä' at column 5"),
        ("* * * * MON#6", 5, "MON#6", 9, "'MON#6' at column 9"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    expression: str, number: int, part: str, column: int, said: str
) -> None:
    with pytest.raises(InvalidCron) as caught:
        check_cron(expression)
    assert said in str(caught.value)
    assert (caught.value.field, caught.value.part, caught.value.column) == (number, part, column)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "it has 0 fields, not the five of minute, hour"),
        ("* * * *", "it has 4 fields"),
        ("0 * * * * *", "it has 6 fields"),
        ("@reboot", "of such names there are @yearly"),
        ("*," * 200 + "* * * * *", "longer than 250 characters"),
    ],
)
def test_an_expression_that_is_wrong_as_a_whole(expression: str, said: str) -> None:
    with pytest.raises(InvalidCron, match=said):
        check_cron(expression)


@given(st.text(alphabet="0123456789*/,-#LWMONFRI ", max_size=30))
@examples(300)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    refused: InvalidCron | None = None
    try:
        plain = check_cron(text)
    except InvalidCron as error:
        refused, plain = error, "* * * * *"
    assert next(moments(plain, "UTC", 1_800_000_000.0, "after", "first"), None) is not None
    if refused is not None and refused.column:
        assert text[refused.column - 1 :].startswith(refused.part)


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "", "../etc/passwd", "Europe", None, 5])
def test_an_unknown_zone_is_refused(zone: object) -> None:
    with pytest.raises(InvalidOption, match="tz="):
        check_zone(zone)
