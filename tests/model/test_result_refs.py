"""Outputs: placeholders in arguments for what another task returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.argument_packing import MAX_BODY, pack, pack_arguments, unpack, unpack_arguments
from fairlead.model.errors import InvalidInput, NotSerializable, TooLarge
from fairlead.model.message import Body
from fairlead.model.result_refs import Output, outputs_in, with_results

A, B = Output("a", task="extract"), Output("b", known=True)


@dataclass
class Card:
    value: Any


def stored(*args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any], list[str]]:
    """The arguments as a worker reads them, and the outputs that packing them found."""
    found: dict[str, Output] = {}
    read = unpack_arguments(pack_arguments(args, kwargs, found))
    return *read, list(found)


def test_outputs_may_stand_anywhere_in_arguments() -> None:
    args, kwargs, found = stored(B, [1, (A,)], {"k": {"deep": [B]}}, card=Card(A), more={A})
    assert args == [B, [1, [A]], {"k": {"deep": [B]}}]
    assert kwargs == {"card": {"value": A}, "more": [A]}
    assert found == ["b", "a"]  # each once, in the order in which they came first
    assert [output.id for output in outputs_in([args, kwargs]).values()] == ["b", "a"]


def test_the_value_of_an_output_takes_its_place() -> None:
    args, _, _ = stored([A, {"x": B}], "text")
    values = {"a": [1, 2], "b": None}
    assert with_results(args, lambda output: values[output.id]) == [[[1, 2], {"x": None}], "text"]
    assert args == [[A, {"x": B}], "text"]  # the data itself stays: an attempt may be repeated


def test_arguments_without_outputs_are_stored_as_ever() -> None:
    assert pack_arguments((1, "a"), {}, {}) == pack_arguments((1, "a"), {})
    args, kwargs, found = stored(1, [2], k="v")
    assert (args, kwargs, found) == ([1, [2]], {"k": "v"}, [])


@given(st.recursive(st.binary() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_nothing_that_a_user_passes_is_taken_for_an_output(value: Any) -> None:
    args, _, found = stored(value)
    assert found == []
    assert outputs_in(args) == {}


def test_an_extension_type_of_somebody_else_is_neither_stored_nor_read() -> None:
    foreign = msgspec.msgpack.Ext(1, b"a")
    with pytest.raises(NotSerializable):
        pack_arguments([foreign], {}, {})
    later = msgspec.msgpack.encode(([msgspec.msgpack.Ext(2, b"a")], {}))
    with pytest.raises(InvalidInput, match="not stored arguments"):
        unpack_arguments(later)


@pytest.mark.parametrize("value", [A, [A], {"k": A}])
def test_an_output_is_refused_where_it_is_not_an_argument(value: Any) -> None:
    with pytest.raises(NotSerializable, match="stands only in the arguments"):
        pack(value, "the result")
    with pytest.raises(NotSerializable, match="stands only in the arguments"):
        pack_arguments([value], {})


def test_an_output_is_no_key_of_a_mapping() -> None:
    with pytest.raises(NotSerializable, match="keys must be strings"):
        pack_arguments([{A: 1}], {}, {})


def test_the_limits_hold_for_the_stored_form() -> None:
    many = [Output(f"{n:032}") for n in range(40_000)]
    with pytest.raises(TooLarge):
        pack_arguments([many], {}, {})
    large = pack("x" * (MAX_BODY - 10), "the result")
    data = pack_arguments([A, A], {}, {})
    args = with_results(unpack_arguments(data)[0], lambda _: unpack(large))
    assert sum(map(len, args)) > MAX_BODY


def test_an_output_cannot_be_asked_for_its_value() -> None:
    with pytest.raises(InvalidInput, match="not known yet"):
        bool(A)
    with pytest.raises(TypeError):
        A["key"]  # type: ignore[index]
    assert repr(A) == "<Output of extract a>"
    assert Output("a") == A
    assert A != B
    assert A != "a"
    assert len({A, Output("a"), B}) == 2


def test_a_body_without_dependencies_is_stored_as_before_there_were_any() -> None:
    body = Body(task="t", arguments=b"\x92\x90\x80", max_retries=3)
    before = msgspec.msgpack.encode(("t", b"\x92\x90\x80", 1, 3, None, None))
    assert body.encode() == before
    assert Body.decode(before) == body


def test_a_body_with_dependencies_names_them() -> None:
    body = Body(task="t", arguments=b"", depends_on=(("a", "extract"), ("b", "")))
    assert Body.decode(body.encode()) == body
