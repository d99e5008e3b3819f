"""What stands between the data of users and what is stored: compression, encryption.

An encoded value begins with a byte that no plain value begins with, then the name of its codec.
Brokers store what they are given; readers find the codec by its name. Plain values are read as they
are, so that an app may be given a codec while tasks wait.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from fairlead.model.errors import FairleadError, InvalidInput, InvalidOption, TooLarge
from fairlead.model.message import Body

MAX_PLAIN = 16 * 1024 * 1024  # bytes of a value before it is encoded, and after it is decoded
_MARK = 0xC1  # MessagePack never uses this byte
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_RULE = "1 to 32 letters, digits, dots, hyphens and underscores, beginning with a letter or digit"
_MOST = 16  # codecs of an app


class CodecError(FairleadError):
    """A value could not be encoded, or cannot be decoded here. ``codec`` is the name."""

    def __init__(self, what: str, codec: str, why: str) -> None:
        super().__init__(f"{what} {why}")
        self.codec = codec
        """The name of the codec."""


class Codec(Protocol):
    """Turns the bytes of a value into those that are stored, and back.

    ``name`` is stored with them: a codec with another key, or another format, has another name.
    Called in any thread, perhaps in several at once.
    """

    name: str
    """What stands in the data that it encoded, and finds it again."""

    def encode(self, data: bytes) -> bytes | None:
        """Return what is stored; None: the data as they are."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Return what ``encode`` was given; raise an error for anything else."""
        ...


class Codecs:
    """The codecs of an app: the first one writes, all of them read."""

    __slots__ = ("_by_name", "_head", "_writer")

    def __init__(self, codecs: Sequence[Codec]) -> None:
        self._writer = codecs[0]
        self._by_name = {codec.name: codec for codec in codecs}
        name = self._writer.name.encode()
        self._head = bytes((_MARK, len(name))) + name

    def encode(self, data: bytes, what: str, limit: int, *, advice: str = "") -> bytes:
        """Return what is stored of a packed value; ``what`` names it in errors.

        Raises ``TooLarge`` by the size that is stored.
        """
        codec = self._writer
        try:
            made: Any = codec.encode(data)
        except Exception as error:
            why = f"could not be encoded by codec {codec.name!r}: {type(error).__name__}"
            raise CodecError(what, codec.name, why) from error
        if made is not None and not isinstance(made, bytes):
            why = f"could not be encoded: codec {codec.name!r} returned {type(made).__name__}"
            raise CodecError(what, codec.name, f"{why}, not bytes")
        stored: bytes = data if made is None else self._head + made
        if len(stored) > limit:
            how = f" as stored with codec {codec.name!r}"
            raise TooLarge(what, len(stored), limit, advice=advice, how=how)
        return stored

    def decode(self, data: bytes, what: str) -> bytes:
        """Return the packed value of what is stored; a plain one as it is."""
        name = codec_of(data)
        if name is None:
            return data
        codec = self._by_name.get(name)
        if codec is None:
            raise undecoded(what, name, known=list(self._by_name))
        try:
            plain: Any = codec.decode(data[2 + len(name) :])
        except Exception as error:  # noqa: BLE001 - it may repeat what it could not read
            why = f"could not be decoded by codec {name!r}: {type(error).__name__}"
            why = f"{why}; is it the same codec, with the same key?"
            raise CodecError(what, name, why) from None
        if not isinstance(plain, bytes):
            why = f"could not be decoded: codec {name!r} returned {type(plain).__name__}, not bytes"
            raise CodecError(what, name, why)
        if len(plain) > MAX_PLAIN:
            why = f"could not be read: codec {name!r} made {len(plain)} bytes of it"
            raise CodecError(what, name, f"{why}, and at most {MAX_PLAIN} are taken")
        return bytes(plain)

    def readable(self, data: bytes | None, what: str) -> bytes | None:
        """Return the packed value of what is stored; as it is stored, if it cannot be decoded.

        For views, which say so when they come to show it.
        """
        if not data:
            return data
        try:
            return self.decode(data, what)
        except CodecError:
            return data

    def readable_body(self, body: bytes) -> bytes:
        """Return a whole body with readable arguments; see ``readable``."""
        try:
            found = Body.decode(body)
        except InvalidInput:  # there is none, or only the beginning of one
            return body
        plain = self.readable(found.arguments, "the arguments")
        if plain is found.arguments or plain is None:
            return body
        return msgspec.structs.replace(found, arguments=plain).encode()


class ZlibCodec:
    """Compresses what has at least ``threshold`` bytes, if that makes it smaller.

    What decompresses to more than ``max_size`` bytes is refused, before it takes that memory.
    """

    __slots__ = ("level", "max_size", "name", "threshold")

    def __init__(
        self,
        *,
        threshold: int = 1024,
        level: int = 6,
        max_size: int = MAX_PLAIN,
        name: str = "zlib",
    ) -> None:
        """Make a codec; options that are out of bounds raise ``InvalidOption``.

        Args:
            threshold: From how many bytes on a value is compressed. Default: 1,024.
            level: How hard it tries, 0 (not at all) to 9. Default: 6.
            max_size: How many bytes a value may have when it is decompressed. Default: 16 MiB.
            name: What stands in the data, and finds it again. Default: "zlib".
        """
        if type(level) is not int or not 0 <= level <= 9:
            raise InvalidOption("level", level, "a whole number from 0 to 9")
        if type(threshold) is not int or threshold < 0:
            raise InvalidOption("threshold", threshold, "a number of bytes")
        if type(max_size) is not int or not 1 <= max_size <= MAX_PLAIN:
            raise InvalidOption("max_size", max_size, f"a number of bytes from 1 to {MAX_PLAIN}")
        self.name, self.threshold, self.level, self.max_size = name, threshold, level, max_size

    def encode(self, data: bytes) -> bytes | None:
        """Return the compressed data; None if they are small, or do not become smaller."""
        if len(data) < self.threshold:
            return None
        made = zlib.compress(data, self.level)
        return made if len(made) < len(data) else None

    def decode(self, data: bytes) -> bytes:
        """Return what was compressed; a ValueError for what is not whole, or too large."""
        opened = zlib.decompressobj()
        plain = opened.decompress(data, self.max_size)
        if not opened.eof or opened.unused_data:
            raise ValueError(f"not whole, or more than {self.max_size} bytes")
        return plain


def codecs_of(given: Codec | Sequence[Codec] | None) -> Codecs | None:
    """Return the codecs that an app was given, checked; None: it stores plain values."""
    if given is None:
        return None
    codecs: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not 1 <= len(codecs) <= _MOST:
        raise InvalidOption("codec", len(codecs), f"a codec, or 1 to {_MOST} of them")
    names: set[str] = set()
    for codec in codecs:
        calls = [getattr(codec, call, None) for call in ("encode", "decode")]
        if isinstance(codec, type) or not all(map(callable, calls)):
            rule = "an object with name, encode and decode, e.g. ZlibCodec(), or several"
            raise InvalidOption("codec", codec, rule)
        name = getattr(codec, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidOption("codec.name", name, _RULE)
        if name in names:
            raise InvalidOption("codec.name", name, "given to one codec only")
        names.add(name)
    return Codecs(codecs)


def codec_of(data: bytes) -> str | None:
    """Return the name of the codec that a stored value was encoded with; None: with none."""
    if len(data) < 3 or data[0] != _MARK:
        return None
    name = data[2 : 2 + data[1]].decode("latin-1")
    return name if _NAME.fullmatch(name) else None


def undecoded(what: str, codec: str, known: Sequence[str] = ()) -> CodecError:
    """Return the error for a value whose codec is not here."""
    there = f"has {', '.join(known)}" if known else "has none"
    return CodecError(
        what,
        codec,
        f"cannot be read here: encoded with codec {codec!r}, and this app {there}; "
        "give it that one as well: Fairlead(codec=[...])",
    )
