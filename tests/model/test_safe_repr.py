from __future__ import annotations

import enum
import sys
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.safe_repr import one_line, safe_repr

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(...)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


class Color(enum.Enum):
    RED = "x" * 10**6


class Text(str):
    def __repr__(self) -> str:
        raise RuntimeError

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError


@dataclass
class Card:
    value: Any


class Untrue:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError


class Endless(list[int]):
    def __iter__(self) -> Any:
        while True:
            yield 1


@given(values)
def test_a_value_is_shown_by_the_beginning_of_its_repr(value: Any) -> None:
    whole, found = repr(value), safe_repr(value)
    if len(whole) <= 80:
        assert found == whole
    else:
        assert len(found) == 81
        assert found.endswith("…")
    assert found.isprintable()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "[]"),
        ((), "()"),
        ((1,), "(1,)"),
        (set(), "set()"),
        (frozenset(), "frozenset()"),
        ({}, "{}"),
        ({"a": [1, {2: ()}]}, "{'a': [1, {2: ()}]}"),
        (timedelta(days=1), "datetime.timedelta(days=1)"),
        (datetime(2030, 1, 2, tzinfo=UTC), repr(datetime(2030, 1, 2, tzinfo=UTC))),
        (Decimal("1.10"), "Decimal('1.10')"),
        (UUID(int=5), "UUID('00000000-0000-0000-0000-000000000005')"),
        (Color.RED, "Color.RED"),
        (Color, "<enum 'Color'>"),
        (str, "<class 'str'>"),
        (Text("a"), "'a'"),
        (Card([1]), "<Card>"),
        (OrderedDict(a=1), "<OrderedDict>"),
        (Endless(), "<Endless>"),
        (10**400, "<an integer of 1329 bits>"),
        (-(2**511), repr(-(2**511))[:80] + "…"),
        (Untrue(), "<a value that cannot be shown>"),
        (print, "<builtin_function_or_method>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_shown_like_this(value: Any, expected: str) -> None:
    if value is Color:
        expected = type.__repr__(Color)
    assert safe_repr(value) == expected


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def knot() -> Any:
    value: dict[str, Any] = {}
    value["a"] = [value]
    return value


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "make",
    [
        lambda: deep(10**5),
        knot,
        lambda: range(10**9),
        lambda: [range(10**9)] * 10**6,
        lambda: "x" * 10**7,
        lambda: ["x" * 10**7] * 10**6,
        lambda: b"x" * 10**7,
        lambda: 1 << 10**7,
        lambda: Card(deep(10**5)),
        lambda: dict.fromkeys(range(10**5), deep(10**5)),
    ],
    ids=["deep", "knot", "range", "ranges", "text", "texts", "bytes", "int", "dataclass", "dict"],
)
def test_a_huge_or_endless_value_is_shown_at_once(make: Any) -> None:
    assert len(safe_repr(make())) <= 81


def test_a_value_is_shown_even_where_there_is_no_stack_left() -> None:
    def down(levels: int) -> str:
        return safe_repr([[[1]]]) if levels == 0 else down(levels - 1)

    found = set()
    for levels in range(sys.getrecursionlimit()):
        try:
            found.add(down(levels))
        except RecursionError:
            break
    assert found <= {"[[[1]]]", "<a value that cannot be shown>"}


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x1b[0m", "a\x00", "a\ud800"])
def test_a_line_has_no_line_breaks_and_no_control_characters(text: str) -> None:
    assert one_line(text, 100).isprintable()
    assert len(one_line(text, 100)) == len(text)
    assert one_line(text, 1) == "a…"
