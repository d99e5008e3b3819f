"""What callers elsewhere can know of the parameters of a task."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from fairlead.model.parameters import Parameter, parameters_of
from fairlead.model.registry import TaskSpec

if TYPE_CHECKING:
    from decimal import Decimal


class Context:
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Named(enum.Enum):
    ONE = "one"

    @classmethod
    def _missing_(cls, value: object) -> Named:
        return cls.ONE


class Stranger:
    pass


class Item(msgspec.Struct):
    sku: str
    count: Annotated[int, Meta(ge=1)] = 1


@dataclass
class Order:
    items: list[Item]
    note: str = ""


def described(handler: Callable[..., Any]) -> dict[str, Parameter]:
    spec = TaskSpec("work", handler, context_type=Context)
    return {each.name: each for each in parameters_of(spec)[0]}


def schema_of(annotation: Any) -> dict[str, Any]:
    def handler(value: Any) -> None:
        pass

    handler.__annotations__["value"] = annotation
    return described(handler)["value"].schema


def test_the_context_is_no_parameter() -> None:
    def handler(ctx: Context, user: int) -> None:
        pass

    assert list(described(handler)) == ["user"]


def test_each_parameter_says_how_it_is_given_and_whether_it_must_be() -> None:
    def handler(a: int, /, b: str, c: int = 3, *rest: float, d: bool, e: str = "x", **kw: int):  # type: ignore[no-untyped-def]
        pass

    found = described(handler)
    assert [(p.name, p.kind, p.required) for p in found.values()] == [
        ("a", "positional_only", True),
        ("b", "positional_or_keyword", True),
        ("c", "positional_or_keyword", False),
        ("rest", "var_positional", False),
        ("d", "keyword_only", True),
        ("e", "keyword_only", False),
        ("kw", "var_keyword", False),
    ]
    assert found["c"].schema == {"type": "integer", "default": 3}
    assert found["rest"].schema == {"type": "number"}
    assert found["kw"].schema == {"type": "integer"}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (Annotated[int, Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (Annotated[int, Meta(lt=5)], {"type": "integer", "exclusiveMaximum": 5}),
        (Annotated[str, "a remark"], {"type": "string"}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Path, {"type": "string", "format": "path"}),
        (Any, {}),
        (Stranger, {}),
        (object, {}),
        (Callable[[int], int], {}),
        (Item | Order, {}),  # two of a kind that nobody can tell apart
        (Annotated[int, Meta(pattern="x")], {}),  # the pattern is a mistake
        (3, {}),
        (list[Stranger], {"type": "array", "items": {}}),
    ],
)  # fmt: skip
def test_an_annotation_becomes_a_schema_or_nothing(annotation: Any, schema: Any) -> None:
    assert schema_of(annotation) == schema


def test_classes_are_defined_once_and_referred_to() -> None:
    def handler(order: Order, more: list[Order]) -> None:
        pass

    parameters, definitions = parameters_of(TaskSpec("work", handler))
    assert parameters[0].schema == {"$ref": "#/$defs/Order"}
    assert parameters[1].schema == {"type": "array", "items": {"$ref": "#/$defs/Order"}}
    assert set(definitions) == {"Order", "Item"}
    assert definitions["Item"]["properties"]["count"] == {
        "type": "integer", "minimum": 1, "default": 1,
    }  # fmt: skip


def test_one_annotation_without_a_schema_does_not_cost_the_others_theirs() -> None:
    def handler(one: int, two: Stranger, three: Item | Order, four: Color) -> None:
        pass

    found = described(handler)
    assert found["one"].schema == {"type": "integer"}
    assert found["two"].schema == found["three"].schema == {}
    assert found["four"].schema == {"$ref": "#/$defs/Color"}


def test_an_enum_names_its_members_unless_it_takes_more() -> None:
    def handler(color: Color, rights: Right, named: list[Named]) -> None:
        pass

    definitions = parameters_of(TaskSpec("work", handler))[1]
    assert definitions["Color"]["enum"] == ["blue", "red"]
    assert definitions["Right"] == {"title": "Right", "examples": [1, 2]}
    assert definitions["Named"] == {"title": "Named", "examples": ["one"]}


def test_names_that_cannot_be_resolved_leave_all_parameters_open() -> None:
    def handler(price: Decimal, when: datetime) -> None:
        pass

    found = described(handler)
    assert [p.schema for p in found.values()] == [{}, {}]
    assert [p.required for p in found.values()] == [True, True]


def test_a_default_is_shown_as_it_would_be_stored_if_json_has_a_form_for_it() -> None:
    def handler(
        color: Color = Color.RED,
        some: frozenset[int] = frozenset({2, 1}),
        data: bytes = b"x",
        strange: Any = Stranger(),  # noqa: B008
        endless: float = float("inf"),
        long: str = "x" * 5_000,
        none: int | None = None,
    ) -> None:
        pass

    found = described(handler)
    shown = {name: p.schema["default"] for name, p in found.items() if "default" in p.schema}
    assert shown == {"color": "red", "some": [1, 2], "none": None}
    assert not any(p.required for p in found.values())


def test_what_a_partial_has_set_is_a_default() -> None:
    def handler(a: int, b: int) -> None:
        pass

    found = described(functools.partial(handler, b=2))
    assert found["b"].required is False
    assert found["b"].schema == {"type": "integer", "default": 2}


def test_the_rules_of_an_annotation_hold_for_what_the_worker_converts() -> None:
    def handler(count: Annotated[int, Meta(ge=1)]) -> None:
        pass

    spec = TaskSpec("work", handler)
    assert spec.convert([1], {}) == ([1], {})
    with pytest.raises(ValueError, match=r"^count .*does not fit task 'work': it must be"):
        spec.convert([0], {})


def test_an_annotated_context_is_a_context() -> None:
    def handler(ctx: Annotated[Context, "the first"], n: int) -> None:
        pass

    assert TaskSpec("work", handler, context_type=Context).takes_context
