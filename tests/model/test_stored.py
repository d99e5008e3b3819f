"""The bytes of stored values: the same in every process, never too many, and perhaps not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from fairlead.model.argument_packing import (
    MAX_BODY,
    MAX_DEPTH,
    pack,
    pack_arguments,
    unpack,
    unpack_arguments,
)
from fairlead.model.errors import InvalidInput, TooLarge


@dataclass
class Card:
    value: Any


class Record(msgspec.Struct):
    value: Any


ORDERS = """
import dataclasses, enum, hashlib, typing, uuid
import msgspec
from fairlead.model.argument_packing import pack, pack_arguments

@dataclasses.dataclass
class Card:
    value: typing.Any

class Record(msgspec.Struct):
    value: typing.Any

words = {f"word {n}" for n in range(50)}
mixed = frozenset([1, "1", b"1", (1, "a"), None, 1.5, uuid.UUID(int=1), *words])
value = [words, mixed, Card(mixed), Record([Card({frozenset(words), mixed})]), {"a": words}]
print(hashlib.sha256(pack(value, "it") + pack_arguments([words], {"k": value})).hexdigest())
"""


def test_the_same_sets_give_the_same_bytes_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", ORDERS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1


def folded(value: Any) -> Any:
    for _ in range(40):
        value = [value, value]
    return value


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "value",
    [
        folded(1),
        folded(Card(1)),
        {"a": folded("x")},
        Card([folded(Record(1))]),
        ["x" * 100_000] * 10**6,
        ["é" * 100_000] * 10**6,
        [b"x" * 100_000] * 10**6,
        [{"x" * 100_000: 1}] * 10**5,
        [()] * 2_000_000,
    ],
    ids=["lists", "dataclasses", "dict", "structs", "text", "other text", "bytes", "keys", "empty"],
)
def test_what_is_huge_when_unfolded_is_refused_before_it_is(value: Any) -> None:
    calls: list[tuple[str, Callable[[], bytes]]] = [
        ("it", lambda: pack(value, "it")),
        ("the arguments", lambda: pack_arguments((0, value), {})),
        ("the arguments", lambda: pack_arguments((), {"name": value})),
    ]
    for where, call in calls:
        with pytest.raises(TooLarge, match=rf"^{where} (is|are) \d+ bytes or more; ") as caught:
            call()
        assert caught.value.size > caught.value.limit == MAX_BODY


def test_a_part_that_stands_in_several_places_is_stored_in_each() -> None:
    rest = list(range(30_000))  # enough for parts to be remembered from here on
    part = {"a": [1, {2.5}, Card("x")]}
    value = [rest, part, [part, [part]], Card(part), (part, part)]
    plain = {"a": [1, [2.5], {"value": "x"}]}
    expected = [rest, plain, [plain, [plain]], {"value": plain}, [plain, plain]]
    assert unpack(pack(value, "it")) == expected
    assert unpack(pack([*value, *value], "it")) == [*expected, *expected]


def test_short_lived_parts_are_not_mistaken_for_each_other() -> None:
    cards = [Card([n, Card(n)]) for n in range(20_000)]  # each reduction may get the id of another
    found = unpack(pack(cards, "it"))
    assert found == [{"value": [n, {"value": n}]} for n in range(20_000)]


def test_the_depth_of_a_part_counts_where_it_stands() -> None:
    part: Any = 1
    for _ in range(MAX_DEPTH - 2):
        part = [part]
    pack([list(range(30_000)), [part], [part]], "it")
    with pytest.raises(TooLarge, match="levels deep"):
        pack([list(range(30_000)), [part], [[part]]], "it")


BAD = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "cut off": b"\x92\x90",
    "more behind": b"\x92\x90\x80\x00",
    "bad text": b"\xa1\xff",
    "no end": b"\x91" * 100_000,
    "no end of arguments": b"\x92" + b"\x91" * 100_000,
    "a key that cannot be one": b"\x81\x80\x01",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bytes_that_pack_never_wrote_are_invalid_input(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a stored value"):
        unpack(data)
    with pytest.raises(InvalidInput, match="not stored arguments"):
        unpack_arguments(data)


@pytest.mark.parametrize("value", [5, [], [[]], [[], {}, 1], [{}, []], [[], {5: 1}], {"a": 1}])
def test_a_stored_value_of_another_kind_is_no_list_of_arguments(value: Any) -> None:
    with pytest.raises(InvalidInput, match="not stored arguments"):
        unpack_arguments(msgspec.msgpack.encode(value))
