"""What a schedule means: intervals, single moments, bounds, missed slots, and its stored form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.schedule import (
    ScheduleSpec,
    Template,
    Timing,
    decode,
    due,
    next_slot,
    slot_id,
    slots,
    stamp,
    timing,
)

NOW = 1_800_000_000.0


def template() -> Template:
    return Template(task="app.f", body=b"body", queue="default", tenant="acme")


# -- intervals and single moments --------------------------------------------------------------


def test_an_interval_is_counted_from_1970_or_from_its_start() -> None:
    assert slots(timing(every="5m"), NOW + 1, NOW + 700) == [NOW + 300, NOW + 600]
    rule = timing(every="5m", start=NOW + 7)
    assert slots(rule, NOW, NOW + 700) == [NOW + 7, NOW + 307, NOW + 607]
    assert slots(rule, NOW + 7, NOW + 700) == [NOW + 307, NOW + 607]


@given(
    every=st.integers(1_000, 10**7),
    start=st.integers(0, 10**12),
    number=st.integers(0, 10**6),
    off=st.integers(0, 10**7),
)
def test_an_interval_never_drifts(every: int, start: int, number: int, off: int) -> None:
    rule = timing(every=every / 1000, start=start / 1000)
    slot = (start + number * every) / 1000
    after = (start + number * every - 1 - off % every) / 1000
    assert next_slot(rule, after) == slot
    assert next_slot(rule, slot) == (start + (number + 1) * every) / 1000


@pytest.mark.parametrize("every", [0.5, "100ms", -1, float("nan"), "soon", True, timedelta(0)])
def test_an_interval_is_a_duration_of_at_least_a_second(every: Any) -> None:
    with pytest.raises(InvalidInput):
        timing(every=every)


def test_a_moment_is_given_as_unix_seconds_or_with_its_time_zone() -> None:
    at = datetime(2027, 3, 1, 12, 0, tzinfo=ZoneInfo("Europe/Berlin"))
    naive = at.replace(tzinfo=None)
    moments = [
        timing(at=at).at,
        timing(at=at.timestamp()).at,
        timing(at=naive, tz="Europe/Berlin").at,
    ]
    assert [stamp(moment) for moment in moments] == ["2027-03-01T11:00:00Z"] * 3
    with pytest.raises(InvalidOption, match="tz="):
        timing(at=naive)


def test_once_is_once() -> None:
    rule = timing(at=NOW)
    assert next_slot(rule, NOW - 0.001) == NOW
    assert next_slot(rule, NOW) is None


def test_no_slot_comes_before_the_start_or_after_the_end() -> None:
    rule = timing("0 * * * *", start=NOW, end=NOW + 7_200)
    assert slots(rule, 0.0, NOW + 86_400) == [NOW, NOW + 3_600, NOW + 7_200]
    assert next_slot(rule, NOW + 7_200) is None


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"cron": "* * * * *", "every": 5},
        {"every": 5, "at": NOW},
        {"every": 5, "gap": "before"},
        {"every": 5, "fold": "third"},
        {"every": 5, "missed": "never"},
        {"every": 5, "max_missed": 0},
        {"every": 5, "max_missed": 1_001},
        {"every": 5, "start": NOW, "end": NOW - 1},
        {"every": 5, "start": float("inf")},
        {"every": 5, "start": "tomorrow"},
        {"at": True},
        {"at": NOW, "end": NOW - 1},
        {"cron": "0 0 1 1 *", "start": NOW, "end": NOW + 60},
        {"cron": 5},
        {"every": 5, "tz": "Nowhere"},
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        timing(**said)


# -- missed slots ------------------------------------------------------------------------------

MINUTE = 60.0
FIRST = NOW  # the first slot that nothing was done for


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_what_is_on_time_is_fired_whatever_the_policy(missed: Any) -> None:
    rule = timing("* * * * *", missed=missed)
    assert due(rule, FIRST, None, FIRST).slots == (FIRST,)
    assert due(rule, FIRST, None, FIRST + 59.0).slots == (FIRST,)
    assert due(rule, FIRST, None, FIRST + 60.0).slots == (FIRST, FIRST + 60)  # not yet too late
    assert due(rule, FIRST, FIRST, FIRST + 30.0).slots == ()
    assert due(rule, FIRST, None, FIRST + 30.0).next_at == FIRST + 60


@pytest.mark.parametrize(("down", "hours"), [(0, 0), (1, 1), (1_000, 1_000), (5_000, 5_000)])
def test_slots_that_were_missed(down: int, hours: int) -> None:
    """Nobody was there for so many slots, and it is half past by now."""
    now = FIRST + 3_600 * hours - 1_800
    newest = [FIRST + 3_600 * i for i in range(hours)]

    def fired(**policy: Any) -> tuple[float, ...]:
        found = due(timing("0 * * * *", **policy), FIRST, None, now)
        assert found.next_at == FIRST + 3_600 * hours
        assert found.dropped == (len(found.slots) < down)
        return found.slots

    assert fired(missed="skip") == ()
    assert fired(missed="latest") == tuple(newest[-1:])
    assert fired(missed="all") == tuple(newest[-1_000:])
    assert fired(missed="all", max_missed=3) == tuple(newest[-3:])


def test_a_slot_on_time_stands_for_the_missed_ones_of_latest() -> None:
    rule = timing("0 * * * *", missed="latest")
    now = FIRST + 5 * 3_600 + 30
    assert due(rule, FIRST, None, now).slots == (FIRST + 5 * 3_600,)
    every = timing("0 * * * *", missed="all", max_missed=2)
    assert due(every, FIRST, None, now).slots == tuple(FIRST + 3_600 * i for i in (3, 4, 5))


def test_millions_of_missed_slots_are_not_counted_one_by_one() -> None:
    rule = timing(every=1, missed="all", max_missed=10)
    found = due(rule, FIRST, None, FIRST + 10**9)
    assert len(found.slots) == 10 + 61
    assert found.dropped


def test_nothing_is_fired_again() -> None:
    rule = timing("* * * * *")
    assert due(rule, FIRST, FIRST + 60, FIRST + 70).slots == ()
    assert due(rule, FIRST, FIRST + 60, FIRST + 120).slots == (FIRST + 120,)


@given(
    every=st.integers(1, 7_200),
    down=st.integers(0, 10**9),
    missed=st.sampled_from(["skip", "latest", "all"]),
    most=st.integers(1, 50),
)
def test_missed_slots_against_a_walk(every: int, down: int, missed: Any, most: int) -> None:
    rule = timing(every=every, start=FIRST, missed=missed, max_missed=most)
    now = FIRST + down / 1000
    count = down // (1000 * every) + 1
    all_of_them = [FIRST + every * i for i in range(max(0, count - most - 70), count)]
    late = [slot for slot in all_of_them if now - slot > 60]
    timely = [slot for slot in all_of_them if now - slot <= 60]
    made_up = {"skip": [], "latest": [] if timely else late[-1:], "all": late[-most:]}[missed]
    assert due(rule, FIRST, None, now).slots == (*made_up, *timely)


# -- stored ------------------------------------------------------------------------------------


def test_a_schedule_comes_back_as_it_was_stored() -> None:
    rule = timing("@daily", tz="Europe/Berlin", missed="all", max_missed=7, end=NOW + 1e6)
    spec = ScheduleSpec(timing=rule, template=template(), declared="abc")
    assert decode(spec.encode()) == spec


def test_what_a_later_release_adds_is_read_and_what_it_changes_is_not() -> None:
    spec = ScheduleSpec(timing=timing(every=5), template=template())
    fields = msgspec.msgpack.decode(spec.encode())
    assert decode(msgspec.msgpack.encode({**fields, "more": 1})) == spec
    with pytest.raises(InvalidInput, match="version 2"):
        decode(msgspec.msgpack.encode({**fields, "version": 2, "timing": "other"}))
    for data in (b"", b"\xc1", msgspec.msgpack.encode({"version": 1})):
        with pytest.raises(InvalidInput, match="not a stored schedule"):
            decode(data)
    fields["timing"]["tz"] = "Mars/Olympus"
    with pytest.raises(InvalidOption, match="tz="):
        decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "cron", "expression": "61 * * * *"},
        {"kind": "cron"},
        {"kind": "interval"},
        {"kind": "interval", "every": float("nan")},
        {"kind": "once", "at": float("inf")},
        {"kind": "once", "at": 1.0, "end": -5.0},
    ],
)
def test_what_has_no_slots_is_not_read(wrong: dict[str, Any]) -> None:
    stored = ScheduleSpec(timing=Timing(**wrong), template=template()).encode()
    with pytest.raises(InvalidInput):
        decode(stored)


def test_the_id_of_a_task_tells_its_slot() -> None:
    assert slot_id("acme", "nightly", NOW) == "acme:nightly.20270115T080000Z"
    assert slot_id("acme", "nightly", NOW + 0.5) == "acme:nightly.20270115T080000.500Z"
    at = datetime.fromtimestamp(NOW, UTC)
    assert stamp(NOW) == f"{at:%Y-%m-%dT%H:%M:%SZ}"
