"""Codecs alone: names, sizes, and what is refused."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from fairlead.model.argument_packing import MAX_BODY, pack, unpack
from fairlead.model.codecs import (
    MAX_PLAIN,
    CodecError,
    Codecs,
    ZlibCodec,
    codec_of,
    codecs_of,
)
from fairlead.model.errors import InvalidInput, InvalidOption, TooLarge


class Reversed:
    def __init__(self, name: str = "reversed") -> None:
        self.name = name

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


class Broken(Reversed):
    def encode(self, data: bytes) -> Any:
        return "text"

    def decode(self, data: bytes) -> bytes:
        raise ValueError("secret " + data.decode("latin-1"))


def made(*codecs: Any) -> Codecs:
    found = codecs_of(codecs)
    assert found is not None
    return found


@pytest.mark.parametrize("value", [None, 0, "", "x" * 5_000, {"a": [1, b"\xc1"]}, b"\xc1\x04zlib"])
@pytest.mark.parametrize(
    "codecs", [made(Reversed()), made(ZlibCodec()), made(ZlibCodec(threshold=0))]
)
def test_a_value_comes_back_whatever_it_is(codecs: Codecs, value: Any) -> None:
    assert unpack(pack(value, "it", codecs=codecs), "it", codecs) == value


def test_the_first_writes_all_read_and_plain_values_stay_readable() -> None:
    old, new = made(Reversed("old")), made(Reversed("new"), Reversed("old"))
    assert codec_of(pack(1, "it", codecs=old)) == "old"
    assert codec_of(pack(1, "it", codecs=new)) == "new"
    for written in (pack("x", "it"), pack("x", "it", codecs=old), pack("x", "it", codecs=new)):
        assert unpack(written, "it", new) == "x"


def test_a_codec_that_is_not_here_is_named() -> None:
    stored = pack("x", "it", codecs=made(Reversed("key-2")))
    with pytest.raises(
        CodecError, match=r"^the thing cannot be read here: .*'key-2'.* has none"
    ) as e:
        unpack(stored, "the thing")
    assert e.value.codec == "key-2"
    with pytest.raises(CodecError, match="has zlib"):
        unpack(stored, "the thing", made(ZlibCodec()))
    assert not isinstance(e.value, InvalidInput)


def test_what_a_codec_raises_is_not_repeated() -> None:
    stored = made(Reversed("same")).encode(pack("password", "it"), "it", MAX_BODY)
    with pytest.raises(CodecError) as caught:
        made(Broken("same")).decode(stored, "the result")
    assert "password" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(CodecError, match="returned str, not bytes"):
        made(Broken()).encode(b"x", "it", MAX_BODY)


def test_the_limit_is_for_what_is_stored_and_the_error_says_so() -> None:
    codecs = made(ZlibCodec())
    large = "x" * (3 * MAX_BODY)
    assert unpack(pack(large, "it", codecs=codecs), "it", codecs) == large
    with pytest.raises(
        TooLarge, match=r"^it is \d+ bytes as stored with codec 'reversed'; .* 1048576"
    ):
        pack(large, "it", codecs=made(Reversed()))
    with pytest.raises(TooLarge):
        pack("x" * (MAX_PLAIN + 1), "it", codecs=codecs)


def test_a_bomb_is_refused_before_it_is_unfolded() -> None:
    bomb = zlib.compress(bytes(4 * MAX_PLAIN), 9)
    for size in (1_000, MAX_PLAIN):
        with pytest.raises(ValueError, match="more than"):
            ZlibCodec(max_size=size).decode(bomb)
    cut = zlib.compress(bytes(1_000))[:-3]
    with pytest.raises(ValueError, match="not whole"):
        ZlibCodec().decode(cut)
    assert ZlibCodec(max_size=1_000).decode(zlib.compress(bytes(1_000))) == bytes(1_000)


def test_zlib_leaves_what_is_small_or_does_not_shrink() -> None:
    codec = ZlibCodec(threshold=100)
    assert codec.encode(b"x" * 99) is None
    assert codec.encode(bytes(range(256))) is None
    assert codec.encode(b"x" * 100) is not None


@pytest.mark.parametrize(
    "given",
    [[], ZlibCodec, object(), "zlib", [ZlibCodec(), ZlibCodec()], Reversed(""), Reversed("a b")],
)
def test_what_is_no_codec_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^codec"):
        codecs_of(given)


@pytest.mark.parametrize("wrong", [{"level": 10}, {"threshold": -1}, {"max_size": MAX_PLAIN + 1}])
def test_zlib_checks_its_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        ZlibCodec(**wrong)
