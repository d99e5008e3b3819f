"""Arguments, results and XCom values as bytes: one validator at the edge, one stored form.

What a caller gives (dataclasses, datetimes, UUIDs, sets, msgspec structs, …) is reduced to plain
data first; the worker converts it back by the handler's annotations. What cannot be stored without
loss is refused here, so that no later layer meets it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.model.errors import NotSerializable, TooLarge

__all__ = (
    "MAX_BODY",
    "MAX_DEPTH",
    "convert",
    "pack",
    "pack_arguments",
    "unpack",
    "unpack_arguments",
)

MAX_BODY = 1024 * 1024  # bytes of a task's arguments or result
MAX_DEPTH = 64  # levels of nesting

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # what msgpack can hold without loss
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_SCALARS = frozenset({bool, type(None)})


def pack(value: Any, where: str, limit: int = MAX_BODY) -> bytes:
    """The stored form of one value. ``where`` names it in errors, its content never is."""
    data = _encode(_plain(value, where, 0))
    if len(data) > limit:
        raise TooLarge(where, len(data), limit)
    return data


def unpack(data: bytes) -> Any:
    """The plain data that ``pack`` stored."""
    return _decode(data)


def pack_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The stored form of a call's arguments."""
    plain_args = [_plain(value, f"argument {index}", 1) for index, value in enumerate(args)]
    plain_kwargs = {
        _key(key, where): _plain(value, where, 1)
        for key, value in kwargs.items()
        for where in (f"argument {key!r}",)
    }
    data = _encode((plain_args, plain_kwargs))
    if len(data) > MAX_BODY:
        raise TooLarge("the arguments", len(data), MAX_BODY)
    return data


def unpack_arguments(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments that ``pack_arguments`` stored."""
    args, kwargs = _decode(data)
    return args, kwargs


def convert(value: Any, wanted: Any, where: str) -> Any:
    """Turn plain data into what an annotation asks for; as it is where msgspec knows no way."""
    try:
        return msgspec.convert(value, wanted, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        # Of msgspec's own words only the place: for some types they repeat the value.
        _, _, place = str(error).partition(" - at ")
        name = getattr(wanted, "__name__", None) or wanted
        why = f"it does not fit {name}{f' at {place}' if place else ''}"
        raise NotSerializable(where, value, why) from None
    except TypeError:
        return value


def _plain(value: Any, where: str, depth: int) -> Any:
    """Reduce to None, bool, int, finite float, str, bytes, list and dict with str keys."""
    kind = type(value)
    if kind is str:
        return _text(value, where)
    if kind is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise NotSerializable(where, value, "an integer outside -2**63 to 2**64 - 1")
        return value
    if kind in _SCALARS or kind is bytes:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise NotSerializable(where, value, f"{value} is not a finite number")
        return value
    if kind is list or kind is tuple or kind is dict:
        if depth >= MAX_DEPTH:
            raise TooLarge(where, depth + 1, MAX_DEPTH, "levels deep")
        if kind is dict:
            return {_key(key, where): _plain(item, where, depth + 1) for key, item in value.items()}
        return [_plain(item, where, depth + 1) for item in value]
    return _plain(_reduced(value, where), where, depth)  # a reduction is no level of its own


def _reduced(value: Any, where: str) -> Any:
    """One step from a richer type towards plain data, by msgspec's rules."""
    try:
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        # Not only bytes: msgspec would make base64 of the other two, wherever they stand inside.
        reduced = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))
    except (TypeError, ValueError, RecursionError, UnicodeError, OverflowError) as error:
        raise NotSerializable(where, value, f"{type(value).__name__}: {error}") from None
    if type(reduced) is type(value):  # nothing gained: a type whose reduction is itself
        raise NotSerializable(where, value, f"values of type {type(value).__name__} are not stored")
    return reduced


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise NotSerializable(
            where, key, f"a mapping has a key of type {type(key).__name__}; keys must be strings"
        )
    return _text(key, where)


def _text(value: str, where: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotSerializable(where, value, "a text with lone surrogates is not UTF-8") from None
    return value
