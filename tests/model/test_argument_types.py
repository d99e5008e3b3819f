"""What is refused of arguments before a worker sees them: never more than the worker refuses."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from fairlead.model.argument_packing import pack_arguments, unpack_arguments
from fairlead.model.argument_types import Misfit, misfit
from fairlead.model.errors import InvalidInput
from fairlead.model.parameters import Parameter, parameters_of
from fairlead.model.registry import TaskSpec
from fairlead.model.result_refs import Output


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Item(msgspec.Struct, rename="camel"):
    item_name: Annotated[str, Meta(min_length=1, max_length=3)]
    count: Annotated[int, Meta(ge=1, le=9, multiple_of=3)] = 3


class Closed(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    a: int


class Row(msgspec.Struct, array_like=True):
    a: int
    b: str = ""


class Node(msgspec.Struct):
    left: Node | None = None
    value: int = 0


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    fast: bool


@dataclass
class Order:
    items: list[Item]
    color: Color | None = None


ANNOTATIONS: list[Any] = [
    Any, None, bool, int, float, str, bytes, Decimal, UUID, datetime, date, timedelta, Path,
    list[int], set[str], tuple[int, str], tuple[int, ...], dict[str, int], dict[int, str], Color,
    Right, Literal["a", 1, None], Item, Closed, Row, Node, Point, Options, Order, int | None,
    int | str | list[int], list[Item | None], Annotated[float, Meta(gt=0, lt=1)],
    Annotated[list[int], Meta(max_length=2)], Annotated[dict[str, int], Meta(min_length=1)],
    Annotated[bytes, Meta(max_length=2)], Annotated[float, Meta(multiple_of=0.1)],
    Annotated[str, Meta(pattern="^a+$")], Closed | int, msgspec.Raw, object,
]  # fmt: skip

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 10), st.floats(-2, 12, width=16),
    st.binary(max_size=3),
    st.sampled_from(["", "a", "red", "Closed", "1.5", "2020-01-01", "aGk=", "x" * 5]),
    st.sampled_from([Color.RED, Item("a"), Closed(1), Row(1), Node(Node()), Point(1), Decimal(2)]),
)  # fmt: skip
names = st.sampled_from(["itemName", "count", "a", "type", "left", "value", "fast", "items", "x"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def handler_of(annotation: Any) -> Callable[..., Any]:
    def handler(value: Any, *rest: Any, key: Any = None, **extra: Any) -> None:
        pass

    for name in ("value", "rest", "key", "extra"):
        handler.__annotations__[name] = annotation
    return handler


SPECS = [TaskSpec("work", handler_of(annotation)) for annotation in ANNOTATIONS]
TOLD = [parameters_of(spec) for spec in SPECS]


@given(
    st.integers(0, len(SPECS) - 1),
    st.lists(values, max_size=3),
    st.dictionaries(st.sampled_from(["value", "key", "other"]), values, max_size=2),
)
def test_nothing_is_refused_that_the_worker_takes(
    which: int, args: list[Any], kwargs: dict[str, Any]
) -> None:
    spec = SPECS[which]
    plain_args, plain_kwargs = unpack_arguments(pack_arguments(args, kwargs, {}))
    found = misfit(*TOLD[which], plain_args, plain_kwargs)
    try:
        spec.check_call(tuple(plain_args), plain_kwargs)
        spec.convert(plain_args, plain_kwargs)
    except InvalidInput:
        return
    assert found is None, found


def handler(
    order: Order,
    count: Annotated[int, Meta(ge=1)] = 1,
    /,
    note: str = "",
    *,
    color: Color = Color.RED,
) -> None:
    pass


def items(*items: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(items)}


GOOD = items({"itemName": "a"})


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "rule"),
    [
        ([], {}, "order", "given: it has no default"),
        ([GOOD, 0], {}, "count", "at least 1"),
        ([GOOD, "1"], {}, "count", "a whole number"),
        ([GOOD, 1.0], {}, "count", "a whole number"),
        ([GOOD, True], {}, "count", "a whole number"),
        ([GOOD, 1, "", 4], {}, "argument 3", "left out: the task takes 3 arguments by position"),
        ([GOOD], {"color": "green"}, "color", "one of 'blue', 'red'"),
        ([GOOD], {"colour": 1}, "colour", "left out: there is no such name; did you mean color?"),
        ([GOOD], {"q": "red"}, "q", "left out: there are note, color"),
        ([GOOD], {"count": 2}, "count", "left out: there are note, color"),
        ([GOOD, 1, "x"], {"note": "y"}, "note", "given once: it is given by position already"),
        ([GOOD], {"note": b"y"}, "note", "text"),
        ([[]], {}, "order", "an object"),
        ([{}], {}, "order.items", "given: it has no default"),
        ([items({}, {"itemName": 1})], {}, "order.items[0].itemName", "given: it has no default"),
        ([items({"itemName": ""})], {}, "order.items[0].itemName", "at least 1 characters long"),
        ([items({"itemName": "abcd"})], {}, "order.items[0].itemName", "at most 3 characters long"),
        ([items({"itemName": "a", "count": 4})], {}, "order.items[0].count", "a multiple of 3"),
        ([{"items": [], "color": "x"}], {}, "order.color", "one of 'blue', 'red' or null"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_and_the_rule(
    args: list[Any], kwargs: dict[str, Any], field: str, rule: str
) -> None:
    found = misfit(*parameters_of(TaskSpec("work", handler)), args, kwargs)
    assert found is not None
    assert (found.field, found.rule) == (field, rule)


def test_what_fits_passes() -> None:
    told = parameters_of(TaskSpec("work", handler))
    assert misfit(*told, [GOOD, 3, "x"], {"color": "blue"}) is None
    assert misfit(*told, [Output("01"), Output("02")], {"color": Output("03")}) is None


def test_a_class_is_taken_without_its_tag_as_the_worker_does() -> None:
    spec = SPECS[ANNOTATIONS.index(Closed)]
    spec.convert([{"a": 1}], {})
    assert misfit(*parameters_of(spec), [{"a": 1}], {}) is None
    assert misfit(*parameters_of(spec), [{"type": "Open", "a": 1}], {}) is not None


def _value(schema: Any, **definitions: Any) -> Callable[[Any], Misfit | None]:
    told = [Parameter(name="value", schema=schema)]
    return lambda value: misfit(told, definitions, [value], {})


def test_a_pattern_is_never_run() -> None:
    check = _value({"type": "string", "pattern": "^(a+)+$"})
    began = time.monotonic()
    assert check("a" * 50_000 + "b") is None
    assert time.monotonic() - began < 10.0  # it would never end


def test_schemas_that_refer_to_each_other_for_ever_end() -> None:
    check = _value({"$ref": "#/$defs/A"}, A={"$ref": "#/$defs/B"}, B={"$ref": "#/$defs/A"})
    assert check(1) is None
    wide = {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}
    assert _value(wide, A=wide)(1) is None


def test_large_arguments_are_looked_at_in_part_only() -> None:
    check = _value({"type": "array", "items": {"type": "integer"}})
    began = time.monotonic()
    assert check(["x"]) is not None
    assert check([*range(200_000), "x"]) is None
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "colour"}, {"type": 3}, {"type": ["x", 1]}, {"minimum": "a"}, {"minimum": True},
        {"multipleOf": 0}, {"multipleOf": -1}, {"enum": 3}, {"anyOf": []}, {"anyOf": "x"},
        {"$ref": "http://elsewhere"}, {"$ref": "#/$defs/missing"}, {"$ref": 1}, True, None, [], "x",
        {"items": 3}, {"properties": [1]}, {"required": "abc"}, {"prefixItems": 1},
        {"maxLength": "x"},
    ],
)  # fmt: skip
def test_a_schema_that_makes_no_sense_refuses_nothing(schema: Any) -> None:
    for value in (None, True, 3, 0.5, "text", b"x", [1], {"a": 1}, {"b": "c"}):
        assert _value(schema)(value) is None, value
