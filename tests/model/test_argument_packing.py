from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.argument_packing import (
    MAX_BODY,
    MAX_DEPTH,
    pack,
    pack_arguments,
    unpack,
    unpack_arguments,
)
from fairlead.model.errors import InvalidInput, NotSerializable, TooLarge

SECRET = "hunter2-hunter2"

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Card:
    value: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


class Record(msgspec.Struct):
    value: Any


class Pair(msgspec.Struct, array_like=True):
    value: Any


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Odd(enum.Enum):
    NOTHING = math.nan
    MUCH = 2**64
    THING = object()


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.binary(max_size=20)
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=30,
)

#: Ways to put a bad value inside a good one.
INSIDE: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "list": lambda value: [1, value],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"a": value},
    "deep": lambda value: {"a": [{"b": (1, [value])}]},
    "dataclass": Card,
    "frozen dataclass": Frozen,
    "struct": Record,
    "array-like struct": Pair,
    "named tuple": lambda value: Point(1, value),
    "ordered dict": lambda value: OrderedDict(a=value),
    "default dict": lambda value: defaultdict(int, a=value),
    "list in a dataclass": lambda value: Card([{"a": value}]),
    "dataclass in a struct": lambda value: [Record(Card(value))],
}
HASHED: dict[str, Callable[[Any], Any]] = {
    "set": lambda value: {value},
    "frozen set": lambda value: frozenset([value]),
    "set in a dataclass": lambda value: Card({value}),
    "tuple in a set": lambda value: {(1, value)},
}


def stored(value: Any) -> Any:
    return unpack(pack(value, "the value"))


def nested(levels: int, *shells: Callable[[Any], Any]) -> Any:
    """A value under this many levels, the shells in turn."""
    value: Any = 1
    for level in range(levels):
        value = shells[level % len(shells)](value)
    return value


def refused(value: Any) -> InvalidInput:
    """The one error that refuses the value, whichever way it comes in."""
    with pytest.raises(InvalidInput) as caught:
        pack(value, "the value")
    assert str(caught.value).startswith("the value ")
    with pytest.raises(type(caught.value), match=r"^argument 1 "):
        pack_arguments((0, value), {})
    with pytest.raises(type(caught.value), match=r"^argument 'name' "):
        pack_arguments((), {"other": 0, "name": value})
    return caught.value


def same(one: Any, other: Any) -> bool:
    """Equal in kind as well: 1 is neither 1.0 nor True, 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return repr(one) == repr(other)


@given(plain)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert same(stored(value), value)


@given(st.lists(plain, max_size=4), st.dictionaries(text, plain, max_size=4))
def test_arguments_come_back_as_they_were(args: list[Any], kwargs: dict[str, Any]) -> None:
    found = unpack_arguments(pack_arguments(args, kwargs))
    assert same(list(found), [args, kwargs])


@pytest.mark.parametrize(
    "value",
    [
        -(2**63),
        2**64 - 1,
        2**53 + 1,
        9007199254740993,
        1763230000123456,
        5e-324,
        1.7976931348623157e308,
        -0.0,
        0.1,
        "",
        "\x00",
        "😀\u202e",
        b"\x00\xff",
        [],
        {},
        {"": []},
        [[], {}],
        {"a": None, "b": False},
    ],
)
def test_values_that_json_would_bend_come_back_exactly(value: Any) -> None:
    assert same(stored(value), value)
    assert same(unpack_arguments(pack_arguments([value], {"k": value})), ([value], {"k": value}))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(2030, 1, 2, 3, 4, 5, 6, UTC), "2030-01-02T03:04:05.000006Z"),
        (datetime(2030, 1, 2), "2030-01-02T00:00:00"),  # noqa: DTZ001 - naive on purpose
        (date(2030, 1, 2), "2030-01-02"),
        (time(3, 4), "03:04:00"),
        (timedelta(days=1, seconds=2), "P1DT2S"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.10"), "1.10"),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Card(1), {"value": 1}),
        (Frozen((1, 2)), {"value": [1, 2]}),
        (Record({"a": Color.RED}), {"value": {"a": "red"}}),
        (Pair(1), [1]),
        (Record(msgspec.UNSET), {}),
        ({7}, [7]),
        (frozenset([7]), [7]),
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("aa"), {"a": 2}),
        ({Color.RED.value: Color.RED}, {"red": "red"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_richer_types_reduce_to_plain_data_wherever_they_stand(value: Any, expected: Any) -> None:
    for name, shell in INSIDE.items():
        assert same(stored(shell(value)), stored(shell(expected))), name
    assert same(stored(value), expected)


@given(st.sets(st.integers(-(2**63), 2**64 - 1) | text, max_size=8))
def test_a_set_is_stored_as_the_list_of_its_members(value: set[Any]) -> None:
    found = stored(value)
    assert type(found) is list
    assert len(found) == len(value)
    assert set(found) == value


def test_the_order_of_a_dict_is_kept_wherever_it_stands() -> None:
    items = {"b": 1, "a": 2, "c": {"z": 1, "y": 2}}
    for shell in INSIDE.values():
        assert same(stored(shell(items)), stored(shell(OrderedDict(items))))
    assert list(stored(Card(items))["value"]) == ["b", "a", "c"]
    assert list(stored(Record(OrderedDict(items)))["value"]["c"]) == ["z", "y"]


def test_structs_and_dataclasses_are_stored_by_the_rules_of_msgspec() -> None:
    class Tagged(msgspec.Struct, tag="t", tag_field="kind", rename="camel"):
        one_two: Any
        unset: Any = msgspec.UNSET

    class Row(msgspec.Struct, tag=7, array_like=True):
        value: Any

    @dataclasses.dataclass(slots=True)
    class Partly:
        value: Any
        _own: int = 5
        never: int = dataclasses.field(init=False)

    for value in (Tagged(1), Row([1]), Partly(1), Record(Partly(Tagged(2)))):
        assert same(stored(value), msgspec.to_builtins(value))


def test_a_string_enum_may_be_a_key() -> None:
    class Key(enum.StrEnum):
        ONE = "one"

    assert stored({Key.ONE: 1}) == {"one": 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e400])
def test_numbers_that_are_not_finite_are_refused_wherever_they_stand(value: float) -> None:
    for name, shell in (INSIDE | HASHED).items():
        error = refused(shell(value))
        assert isinstance(error, NotSerializable), name
        assert error.where == "the value", name
        assert error.type == "float", name
        assert error.why == f"{value} is not a finite number", name


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**30, 10**5_000], ids=int.bit_length)
def test_integers_beyond_64_bits_are_refused_wherever_they_stand(value: int) -> None:
    for name, shell in (INSIDE | HASHED).items():
        error = refused(shell(value))
        assert isinstance(error, NotSerializable), name
        assert error.type == "int", name
        assert error.why == "an integer outside -2**63 to 2**64 - 1", name


@pytest.mark.parametrize("value", ["\ud800", f"{SECRET}\udfff", "😀\ude00"])
def test_lone_surrogates_are_refused_wherever_they_stand(value: str) -> None:
    for name, shell in (INSIDE | HASHED).items():
        error = refused(shell(value))
        assert isinstance(error, NotSerializable), name
        assert error.why == "a text with lone surrogates is not UTF-8", name


@pytest.mark.parametrize("shell", INSIDE)
def test_lone_surrogates_in_keys_are_refused_wherever_they_stand(shell: str) -> None:
    assert isinstance(refused(INSIDE[shell]({f"{SECRET}\ud800": 1})), NotSerializable)


def test_an_argument_whose_name_is_not_text_of_utf_8_is_refused() -> None:
    with pytest.raises(NotSerializable, match="lone surrogates"):
        pack_arguments((), {"\ud800": 1})


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"a", (1, 2), math.nan, 2**70], ids=repr)
def test_keys_that_are_not_text_are_refused_wherever_they_stand(key: Any) -> None:
    for name, shell in INSIDE.items():
        assert isinstance(refused(shell({"a": 1, key: 2})), NotSerializable), name


@pytest.mark.parametrize("make", [OrderedDict, dict, lambda items: defaultdict(int, items)])
def test_keys_of_richer_mappings_are_checked_as_well(make: Callable[[Any], Any]) -> None:
    assert "a mapping has a key of type int" in str(refused(make({1: "a"})))


@pytest.mark.parametrize("key", [UUID(int=5), date(2030, 1, 2), Decimal(1), Card], ids=repr)
def test_a_plain_dict_takes_only_text_as_keys(key: Any) -> None:
    assert "keys must be strings" in str(refused({key: 1}))


def test_two_keys_of_a_dict_in_a_dataclass_never_become_one() -> None:
    key = UUID(int=5)
    try:
        found = stored(Card({key: 1, str(key): 2}))
    except NotSerializable:
        return
    assert len(found["value"]) == 2


@pytest.mark.parametrize("key", [UUID(int=5), date(2030, 1, 2), Color.RED], ids=repr)
def test_a_dict_takes_only_text_as_keys_wherever_it_stands(key: Any) -> None:
    for shell in INSIDE.values():
        assert "keys must be strings" in str(refused(shell({key: 1})))


SHELLS: dict[str, list[Callable[[Any], Any]]] = {
    "lists": [lambda value: [value]],
    "tuples": [lambda value: (value,)],
    "dicts": [lambda value: {"a": value}],
    "lists and dicts": [lambda value: [value], lambda value: {"a": value}],
    "dataclasses": [Card],
    "structs": [Record],
    "array-like structs": [Pair],
    "frozen sets": [lambda value: frozenset([value])],
    "named tuples": [lambda value: Point(value, 1)],
    "all of them": [Card, lambda value: [value], Record, lambda value: {"a": value}, Pair],
    "plain outside": [lambda value: [value], lambda value: (value,), Card],
}


@pytest.mark.parametrize("kind", SHELLS)
def test_sixty_four_levels_are_stored_and_one_more_is_refused(kind: str) -> None:
    shells = SHELLS[kind]
    deepest = stored(nested(MAX_DEPTH, *shells))
    for _ in range(MAX_DEPTH):
        deepest = deepest[0] if isinstance(deepest, list) else next(iter(deepest.values()))
    assert deepest == 1
    error = refused(nested(MAX_DEPTH + 1, *shells))
    assert isinstance(error, TooLarge)
    assert (error.size, error.limit, error.unit) == (MAX_DEPTH + 1, MAX_DEPTH, "levels deep")


@pytest.mark.parametrize("value", [UUID(int=5), Color.RED, bytearray(b"a"), Decimal(1)], ids=repr)
def test_the_innermost_value_may_be_of_a_richer_type(value: Any) -> None:
    pack([value], "it")
    for _ in range(MAX_DEPTH):
        value = [value]
    pack(value, "it")


def test_arguments_are_one_level_down_already() -> None:
    value = nested(MAX_DEPTH - 1, lambda value: [value])
    assert unpack_arguments(pack_arguments([value], {"k": value})) == ([value], {"k": value})
    with pytest.raises(TooLarge, match=r"^argument 0 is 65 levels deep"):
        pack_arguments([[value]], {})
    with pytest.raises(TooLarge, match=r"^argument 'k' is 65 levels deep"):
        pack_arguments([], {"k": [value]})


@pytest.mark.parametrize("kind", SHELLS)
@pytest.mark.parametrize("levels", [66, 500, 1_000, 1_025, 10**5])
def test_no_depth_ends_in_a_recursion_error(kind: str, levels: int) -> None:
    if kind == "frozen sets" and levels > 500:
        levels = 500  # a hash of a deeper one cannot be had in the first place
    refused(nested(levels, *SHELLS[kind]))


@pytest.mark.parametrize("shell", INSIDE)
def test_what_holds_itself_is_refused(shell: str) -> None:
    knot: list[Any] = []
    knot.append(knot)
    refused(INSIDE[shell](knot))
    ring: dict[str, Any] = {}
    ring["a"] = [ring]
    refused(INSIDE[shell](ring))
    card = Card(None)
    card.value = {"a": card}
    refused(INSIDE[shell](card))
    record = Record(None)
    record.value = [record]
    refused(INSIDE[shell](record))


def test_a_value_of_just_the_limit_is_stored_and_one_byte_more_is_refused() -> None:
    overhead = len(pack(b"x" * 70_000, "it")) - 70_000
    assert len(pack(b"x" * (MAX_BODY - overhead), "it")) == MAX_BODY == 1024 * 1024
    with pytest.raises(TooLarge) as caught:
        pack(b"x" * (MAX_BODY - overhead + 1), "the result")
    error = caught.value
    assert (error.what, error.size, error.limit) == ("the result", MAX_BODY + 1, MAX_BODY)
    assert str(error) == "the result is 1048577 bytes; the limit is 1048576 bytes"


def test_a_limit_of_its_own_may_be_given() -> None:
    assert pack("abcd", "it", limit=5) == b"\xa4abcd"
    with pytest.raises(TooLarge, match="it is 6 bytes; the limit is 5 bytes"):
        pack("abcde", "it", limit=5)


def test_arguments_count_together_towards_the_limit() -> None:
    overhead = len(pack_arguments([b"x" * 70_000], {"k": b"y" * 70_000})) - 140_000
    half = (MAX_BODY - overhead) // 2
    rest = MAX_BODY - overhead - half
    assert len(pack_arguments([b"x" * half], {"k": b"y" * rest})) == MAX_BODY
    with pytest.raises(TooLarge, match=r"^the arguments are 1048577 bytes"):
        pack_arguments([b"x" * half], {"k": b"y" * (rest + 1)})


def test_text_counts_in_bytes() -> None:
    pack("é" * (MAX_BODY // 2 - 4), "it")
    with pytest.raises(TooLarge):
        pack("é" * (MAX_BODY // 2), "it")


class Plain:
    def __init__(self) -> None:
        self.secret = SECRET

    def __repr__(self) -> str:
        return f"Plain({SECRET})"


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


UNSTORED: dict[str, Any] = {
    "object": Plain(),
    "class": Plain,
    "function": lambda: SECRET,
    "method": Plain().__repr__,
    "generator": (SECRET for _ in range(3)),
    "iterator": iter([SECRET]),
    "range": range(3),
    "complex": 1j,
    "ellipsis": ...,
    "exception": ValueError(SECRET),
    "module": math,
    "deque": deque([SECRET]),
    "mapping proxy": MappingProxyType({SECRET: SECRET}),
    "subclass of str": type("Text", (str,), {})(SECRET),
    "subclass of int": type("Number", (int,), {})(1),
    "subclass of float": type("Real", (float,), {})(math.nan),
    "member without a plain value": Odd.THING,
    "not a number in an enum": Odd.NOTHING,
    "large number in an enum": Odd.MUCH,
    "raw bytes of msgpack": msgspec.Raw(b"\xc1"),
    "extension": msgspec.msgpack.Ext(1, SECRET.encode()),
    "memory that was released": released(),
}


@pytest.mark.parametrize("kind", UNSTORED)
def test_arbitrary_objects_are_refused_wherever_they_stand(kind: str) -> None:
    for name, shell in INSIDE.items():
        error = refused(shell(UNSTORED[kind]))
        assert isinstance(error, NotSerializable), name
        assert SECRET not in str(error), name


def test_the_error_names_the_type_and_the_argument() -> None:
    with pytest.raises(NotSerializable) as caught:
        pack_arguments((1, Plain()), {})
    assert caught.value.where == "argument 1"
    assert caught.value.type == "Plain"
    assert "Plain" in str(caught.value)
    assert not hasattr(caught.value, "value")


def knotted() -> Card:
    card = Card(None)
    card.value = [SECRET, card]
    return card


LEAKS: dict[str, Callable[[], Any]] = {
    "an object beside it": lambda: [SECRET, Plain()],
    "a key beside it": lambda: {SECRET: object()},
    "not a number under it": lambda: {SECRET: math.nan},
    "too deep": lambda: [SECRET, nested(70, lambda value: [value, SECRET])],
    "too large": lambda: SECRET * MAX_BODY,
    "bad text": lambda: f"{SECRET}\ud800",
    "bad key": lambda: {f"{SECRET}\ud800": SECRET},
    "a key of bytes": lambda: {SECRET.encode(): SECRET},
    "a key in a dataclass": lambda: Card({(SECRET,): SECRET}),
    "in a dataclass": lambda: Card([SECRET, Plain()]),
    "in a struct": lambda: Record({SECRET: Plain()}),
    "in a set": lambda: {SECRET, f"{SECRET}\ud800"},
    "a knot": knotted,
}


@pytest.mark.parametrize("kind", LEAKS)
def test_an_error_never_repeats_what_it_refuses(kind: str) -> None:
    value = LEAKS[kind]()
    calls: list[Callable[[], bytes]] = [
        lambda: pack(value, "it"),
        lambda: pack_arguments((value,), {}),
        lambda: pack_arguments((), {"name": value}),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as caught:
            call()
        error = caught.value
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        assert SECRET not in repr(vars(error))
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None


@given(plain, st.sampled_from(sorted(INSIDE)))
def test_storing_changes_nothing_in_what_was_given(value: Any, shell: str) -> None:
    given_value = INSIDE[shell](value)
    before = repr(given_value)
    pack(given_value, "it")
    assert repr(given_value) == before
