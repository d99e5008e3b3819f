from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from fairlead.model.errors import (
    InvalidInput,
    InvalidName,
    InvalidOption,
    TooLarge,
    UnknownPriority,
)
from fairlead.model.options import (
    MAX_DEPENDENCIES,
    MAX_LIMITERS,
    Dependency,
    Options,
    Resolved,
    Unique,
    merged,
    resolved,
    seconds,
)
from fairlead.model.priorities import Priorities

TEN_YEARS = 315_360_000
MADE = "0190a5b0c0de7000800000000000abcd"
NAMES = Options.__struct_fields__


@dataclass
class Handle:
    id: Any


def resolve(task: str = "", **said: Any) -> Resolved:
    return resolved(Options(**said), Priorities(), task=task)


# Durations


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("1h", 3_600),
        ("7d", 604_800),
        ("1.5h", 5_400),
        ("0s", 0),
        (" 5 m ", 300),
        ("3650d", TEN_YEARS),
        (0, 0),
        (0.25, 0.25),
        (TEN_YEARS, TEN_YEARS),
        (timedelta(minutes=2, milliseconds=500), 120.5),
        (timedelta(days=3650), TEN_YEARS),
    ],
)
def test_a_duration_is_a_number_a_timedelta_or_text(value: Any, expected: float) -> None:
    found = seconds("delay", value)
    assert found == pytest.approx(expected)
    assert type(found) is float


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        -1,
        -0.001,
        TEN_YEARS + 1,
        math.nan,
        math.inf,
        -math.inf,
        timedelta(seconds=-1),
        timedelta.max,
        "",
        "5",
        "s",
        "-5s",
        "+5s",
        "1e3s",
        "5 weeks",
        "5mm",
        "5m 3s",
        ".5s",
        "5.s",
        "1,5h",
        "5M",
        "infs",
        "nans",
        "3651d",
        "9" * 400 + "d",
        "5s\x00",
        "٣s",
        b"5s",
        [5],
        5j,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_duration_is_refused_by_option_and_value(value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        seconds("delay", value)
    assert (caught.value.option, caught.value.value) == ("delay", value) or math.isnan(value)
    assert str(caught.value).startswith(f"delay={repr(value)[:80]}")
    assert "from 0 to 3.1536e+08 seconds" in str(caught.value)


@given(st.floats(0, TEN_YEARS))
def test_any_number_of_seconds_within_ten_years_is_a_duration(value: float) -> None:
    assert seconds("delay", value) == value


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_any_timedelta_within_ten_years_is_a_duration(value: timedelta) -> None:
    assert seconds("delay", value) == value.total_seconds()


@given(st.integers(0, 3650), st.sampled_from([("ms", 0.001), ("s", 1), ("h", 3600), ("d", 86400)]))
def test_text_is_a_number_times_its_unit(number: int, unit: tuple[str, float]) -> None:
    assert seconds("delay", f"{number}{unit[0]}") == pytest.approx(number * unit[1])


@given(st.text(max_size=12) | st.from_regex(r"[0-9.]{1,5} ?(ms|s|m|h|d|w)\n?", fullmatch=True))
def test_any_text_is_a_duration_within_bounds_or_refused(value: str) -> None:
    try:
        found = seconds("delay", value)
    except InvalidOption:
        return
    assert 0 <= found <= TEN_YEARS


def test_a_duration_may_have_a_least_value() -> None:
    assert seconds("timeout", 0.001, least=0.001) == 0.001
    with pytest.raises(InvalidOption, match=r"timeout=0 is not valid: it must be from 0.001 to"):
        seconds("timeout", 0, least=0.001)


@pytest.mark.parametrize("option", ["delay", "deadline", "timeout", "retention", "cost"])
def test_an_integer_too_large_for_a_float_is_refused_like_any_other(option: str) -> None:
    with pytest.raises(InvalidOption, match=option):
        resolve("", **{option: 10**400})


@pytest.mark.parametrize("option", ["max_retries", "priority"])
def test_an_integer_too_long_to_be_printed_is_refused_like_any_other(option: str) -> None:
    with pytest.raises(InvalidInput, match=option):
        resolve("", **{option: 10**5_000})


# Each option by itself


def test_nothing_said_means_the_defaults() -> None:
    assert resolve() == Resolved(
        queue="default",
        tenant="default",
        level=2,
        delay=0.0,
        at=None,
        deadline=None,
        id=None,
        unique=None,
        depends_on=(),
        on_dependency_failure="dead",
        correlation_id=None,
        cost=1.0,
        limiters=(),
        max_retries=None,
        timeout=None,
        retention=None,
    )


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("queue", "mail", "queue", "mail"),
        ("tenant", "Ärzte & Co: 1", "tenant", "Ärzte & Co: 1"),
        ("priority", "critical", "level", 0),
        ("delay", "5m", "delay", 300.0),
        ("deadline", 0, "deadline", 0.0),
        ("id", "order-7", "id", "default:order-7"),
        ("correlation_id", "req 1", "correlation_id", "req 1"),
        ("cost", 5, "cost", 5.0),
        ("cost", 0.001, "cost", 0.001),
        ("cost", 1_000, "cost", 1_000.0),
        ("limiters", ["b", "a", "b"], "limiters", ("b", "a")),
        ("limiters", (), "limiters", ()),
        ("max_retries", 0, "max_retries", 0),
        ("max_retries", 1_000, "max_retries", 1_000),
        ("timeout", 0.001, "timeout", 0.001),
        ("timeout", None, "timeout", None),
        ("retention", "1h", "retention", 3_600.0),
        ("on_dependency_failure", "wait", "on_dependency_failure", "wait"),
    ],
)
def test_what_was_said_is_checked_and_kept(
    option: str, value: Any, field: str, expected: Any
) -> None:
    found = getattr(resolve(**{option: value}), field)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("queue", "no way", InvalidName),
        ("queue", None, InvalidName),
        ("queue", "", InvalidName),
        ("tenant", "", InvalidName),
        ("tenant", "a\nb", InvalidName),
        ("tenant", 7, InvalidName),
        ("priority", "urgent", UnknownPriority),
        ("priority", 7, UnknownPriority),
        ("priority", None, UnknownPriority),
        ("priority", True, UnknownPriority),
        ("priority", [], UnknownPriority),
        ("delay", -1, InvalidOption),
        ("delay", True, InvalidOption),
        ("delay", None, InvalidOption),
        ("deadline", "soon", InvalidOption),
        ("deadline", math.inf, InvalidOption),
        ("id", "", InvalidName),
        ("id", "a:b", InvalidName),
        ("id", MADE, InvalidName),
        ("id", None, InvalidName),
        ("unique", "", InvalidName),
        ("unique", "x" * 257, InvalidName),
        ("unique", None, InvalidName),
        ("on_dependency_failure", "explode", InvalidOption),
        ("on_dependency_failure", None, InvalidOption),
        ("on_dependency_failure", [], InvalidOption),
        ("correlation_id", "", InvalidName),
        ("correlation_id", "a\r\nb", InvalidName),
        ("correlation_id", None, InvalidName),
        ("cost", 0, InvalidOption),
        ("cost", 0.0009, InvalidOption),
        ("cost", 1_000.1, InvalidOption),
        ("cost", -1, InvalidOption),
        ("cost", math.nan, InvalidOption),
        ("cost", math.inf, InvalidOption),
        ("cost", True, InvalidOption),
        ("cost", "1", InvalidOption),
        ("cost", None, InvalidOption),
        ("limiters", "smtp", InvalidOption),
        ("limiters", ["no way"], InvalidName),
        ("limiters", [None], InvalidName),
        ("max_retries", -1, InvalidOption),
        ("max_retries", 1_001, InvalidOption),
        ("max_retries", 1.0, InvalidOption),
        ("max_retries", True, InvalidOption),
        ("max_retries", None, InvalidOption),
        ("timeout", 0, InvalidOption),
        ("timeout", "0s", InvalidOption),
        ("timeout", False, InvalidOption),
        ("retention", -1, InvalidOption),
        ("retention", "1y", InvalidOption),
        ("depends_on", "a", InvalidOption),
        ("depends_on", [None], InvalidOption),
        ("depends_on", [7], InvalidOption),
        ("depends_on", [Handle(None)], InvalidOption),
        ("depends_on", ["no way"], InvalidName),
        ("depends_on", ["other:x"], InvalidName),
    ],
    ids=lambda value: repr(value)[:24] if not isinstance(value, type) else value.__name__,
)
def test_a_bad_value_is_refused_by_name_and_value(
    option: str, value: Any, error: type[InvalidInput]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve(**{option: value})
    assert type(caught.value) is error
    spoken = {"id": "task id", "unique": "unique key", "correlation_id": "correlation id"}
    named = spoken.get(option, option)
    if error is InvalidName and option in ("limiters", "depends_on"):
        named = {"limiters": "limiter", "depends_on": "task id"}[option]
    shown = value[0] if isinstance(value, list) and value else value
    assert str(caught.value).startswith(named)
    assert ("<Handle>" if isinstance(shown, Handle) else repr(shown)[:80]) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["limiters", "depends_on"])
@pytest.mark.parametrize("value", [None, 5, Handle("x")], ids=["None", "number", "handle"])
def test_what_is_no_list_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        resolve(**{option: value})


def test_the_tenant_of_the_call_owns_its_ids() -> None:
    assert resolve(tenant="acme", id="x").id == "acme:x"
    assert resolve(tenant="acme", id="acme:x").id == "acme:x"
    with pytest.raises(InvalidName):
        resolve(tenant="acme", id="other:x")


# Merging

samples: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.sampled_from(["a", "b"]),
    "tenant": st.sampled_from(["a", "b"]),
    "priority": st.sampled_from(["high", 0]),
    "delay": st.sampled_from([0, "5m"]),
    "at": st.sampled_from([2e9, 3e9]),
    "deadline": st.sampled_from([0, "5m"]),
    "id": st.sampled_from(["a", ""]),
    "unique": st.sampled_from(["a", ""]),
    "unique_until": st.sampled_from(["started", "done"]),
    "unique_for": st.sampled_from([0, "5m"]),
    "depends_on": st.sampled_from([(), ("a",)]),
    "on_dependency_failure": st.sampled_from(["wait", "run"]),
    "correlation_id": st.sampled_from(["a", ""]),
    "cost": st.sampled_from([0, 1.5]),
    "limiters": st.sampled_from([(), ("a",)]),
    "max_retries": st.sampled_from([0, 3]),
    "timeout": st.sampled_from([None, 5]),
    "retention": st.sampled_from([0, "5m"]),
}
said = st.fixed_dictionaries({}, optional=samples)


def test_the_samples_cover_every_option() -> None:
    assert set(samples) == set(NAMES)
    assert all(getattr(Options(), name) is UNSET for name in NAMES)


@given(said, said)
def test_merging_lays_over_only_what_was_said(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = Options(**base)
    found = merged(before, Options(**over))
    assert found == Options(**(base | over))
    assert before == Options(**base)


@given(said, said, said)
def test_merging_is_the_same_in_one_step_or_two(
    one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]
) -> None:
    a, b, c = Options(**one), Options(**two), Options(**three)
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, Options()) == merged(Options(), a) == a


def test_a_value_that_looks_like_nothing_is_laid_over_all_the_same() -> None:
    base = Options(timeout=30, delay="5m", limiters=("a",), max_retries=5)
    over = Options(timeout=None, delay=0, limiters=(), max_retries=0)
    assert merged(base, over) == over


# Priorities


def test_the_four_levels_are_known_by_their_names_and_no_numbers_are() -> None:
    levels = [Priorities().level(name) for name in ("critical", "high", "normal", "low")]
    assert levels == [0, 1, 2, 3]
    for number in range(-1, 11):
        with pytest.raises(UnknownPriority):
            Priorities().level(number)


def test_configured_names_and_numbers_map_onto_the_four_levels() -> None:
    priorities = Priorities({"urgent": "critical", 9: "high", 0: "low", "normal": "high"})
    assert priorities.level("urgent") == 0
    assert priorities.level(9) == 1
    assert priorities.level(0) == 3
    assert priorities.level("normal") == 1  # a level's own name may be given another meaning
    assert priorities.level("low") == 3


@pytest.mark.parametrize("value", ["urgent", "9", "", 1, 9.0, True, None, b"high", [], ("high",)])
def test_an_unknown_priority_is_refused_with_those_that_are_known(value: object) -> None:
    with pytest.raises(UnknownPriority) as caught:
        Priorities({9: "high", 0: "low"}).level(value)
    assert caught.value.value is value
    assert caught.value.known == ("critical", "high", "normal", "low", 9, 0)
    assert f"priority {value!r} is not known" in str(caught.value)
    assert "critical, high, normal, low, 9, 0" in str(caught.value)


@pytest.mark.parametrize("level", ["highest", "", "HIGH", None, 1.5, True])
def test_a_priority_can_only_be_mapped_onto_a_level(level: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Priorities({"urgent": level})
    assert caught.value.option == "priorities['urgent']"
    assert repr(level) in str(caught.value)


def test_a_priority_may_be_a_function_of_the_arguments() -> None:
    def by_size(size: int, *, vip: bool = False) -> str | int:
        return "critical" if vip else 9 if size < 10 else "low"

    options, priorities = Options(priority=by_size), Priorities({9: "high"})
    assert resolved(options, priorities, (5,)).level == 1
    assert resolved(options, priorities, (50,)).level == 3
    assert resolved(options, priorities, (50,), {"vip": True}).level == 0
    assert resolved(options, priorities, (), {"size": 1}).level == 1


@pytest.mark.parametrize("value", ["urgent", None, True, 3])
def test_what_a_priority_function_returns_is_checked(value: Any) -> None:
    with pytest.raises(UnknownPriority):
        resolved(Options(priority=lambda: value), Priorities())


def test_a_configured_number_two_does_not_change_the_default() -> None:
    priorities = Priorities({2: "critical"})
    assert resolved(Options(), priorities).level == 2
    assert resolved(Options(priority=2), priorities).level == 0


# Unique


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"unique": "k"}, Unique(key="k", until="done")),
        ({"unique": "k", "unique_until": "done"}, Unique(key="k", until="done")),
        ({"unique": "k", "unique_until": "started"}, Unique(key="k", until="started")),
        ({"unique": "k", "unique_for": "1m"}, Unique(key="k", until="window", window=60.0)),
        ({"unique": "k", "unique_for": 0.001}, Unique(key="k", until="window", window=0.001)),
    ],
    ids=str,
)
def test_a_unique_key_holds_until_a_state_or_for_a_time(
    options: dict[str, Any], expected: Unique
) -> None:
    assert resolve(**options).unique == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"unique_until": "done"}, "unique_until='done'.*together with unique"),
        ({"unique_for": 5}, "unique_for=5.*together with unique"),
        ({"unique": "k", "unique_until": "done", "unique_for": 5}, "unique_for=5.*without"),
        ({"unique": "k", "unique_until": "window"}, "unique_until='window'"),
        ({"unique": "k", "unique_until": None}, "unique_until=None"),
        ({"unique": "k", "unique_until": []}, "unique_until=\\[\\]"),
        ({"unique": "k", "unique_for": 0}, "unique_for=0"),
        ({"unique": "k", "unique_for": True}, "unique_for=True"),
        ({"unique": "k", "unique_for": "ever"}, "unique_for='ever'"),
    ],
    ids=str,
)
def test_a_combination_that_says_nothing_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{named}"):
        resolve(**options)


def test_two_tasks_may_use_the_same_unique_key() -> None:
    one, other = resolve(task="a", unique="k").unique, resolve(task="b", unique="k").unique
    assert one is not None
    assert other is not None
    assert one.key != other.key


def test_no_task_can_mean_the_unique_key_of_another() -> None:
    one, other = resolve(task="a:b", unique="c").unique, resolve(task="a", unique="b:c").unique
    assert one != other


# Dependencies and limiters


def test_a_bare_id_is_scoped_and_a_handle_is_taken_at_its_word() -> None:
    found = resolve(
        tenant="acme", depends_on=["x", "acme:y", MADE, Handle("other:z"), Handle("odd id")]
    )
    assert found.depends_on == (
        Dependency("acme:x"),
        Dependency("acme:y"),
        Dependency(MADE),
        Dependency("other:z", known=True),
        Dependency("odd id", known=True),
    )


@pytest.mark.parametrize(
    "items",
    [
        ["x", Handle("default:x")],
        [Handle("default:x"), "x"],
        ["x", Handle("default:x"), "default:x", "x"],
    ],
    ids=["id first", "handle first", "many"],
)
def test_a_dependency_named_twice_counts_once_and_a_handle_outweighs_an_id(
    items: list[Any],
) -> None:
    assert resolve(depends_on=items).depends_on == (Dependency("default:x", known=True),)


@given(st.lists(st.integers(0, 9), max_size=30))
def test_dependencies_are_kept_once_each_in_the_order_first_given(numbers: list[int]) -> None:
    found = resolve(depends_on=[f"t{n}" for n in numbers]).depends_on
    assert [d.id for d in found] == [f"default:t{n}" for n in dict.fromkeys(numbers)]


def test_a_thousand_dependencies_are_fine_and_one_more_is_not() -> None:
    ids = [f"t{n}" for n in range(MAX_DEPENDENCIES)]
    assert len(resolve(depends_on=ids).depends_on) == MAX_DEPENDENCIES == 1_000
    assert len(resolve(depends_on=ids + ids).depends_on) == 1_000
    with pytest.raises(TooLarge, match="depends_on is 1001 tasks; the limit is 1000 tasks"):
        resolve(depends_on=[*ids, Handle("one:more")])


def test_four_limiters_are_fine_and_one_more_is_not() -> None:
    names = ["a", "b", "c", "d"]
    assert len(names) == MAX_LIMITERS
    assert resolve(limiters=names * 3).limiters == ("a", "b", "c", "d")
    with pytest.raises(TooLarge, match="limiters is 5 names; the limit is 4 names") as caught:
        resolve(limiters=[*names, "e"])
    assert (caught.value.size, caught.value.limit) == (5, MAX_LIMITERS)
