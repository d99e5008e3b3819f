"""Arguments, results and XCom values as bytes: one validator at the edge, one stored form.

What a caller gives (dataclasses, datetimes, UUIDs, sets, msgspec structs, …) is reduced to plain
data first; the worker converts it back by the handler's annotations. What cannot be stored without
loss is refused here, so that no later layer meets it. The same content gives the same bytes in
every process.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from fairlead.model import custom_types
from fairlead.model.codecs import MAX_PLAIN, Codecs, codec_of, undecoded
from fairlead.model.errors import InvalidInput, NotSerializable, TooLarge
from fairlead.model.result_refs import Output

MAX_BODY = 1024 * 1024  # bytes of a task's arguments or result
MAX_DEPTH = 64  # levels of nesting

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # what msgpack can hold without loss
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_OUTPUT = 1  # the extension type of MessagePack that stands for what another task returns
_UNREADABLE = (ValueError, TypeError, RecursionError)  # what msgspec raises for bad bytes
_SCALARS = frozenset({bool, type(None)})
_LONGEST_KEY = 32  # characters of one that an error shows
_REMEMBERED = 16 * 1024  # counted bytes from which on it pays to remember parts
_PLACE = re.compile(r" - at ((?:`key` in )?`\$[\w.\[\]]*`)\Z")  # how msgspec ends its errors


class Unstorable:
    """What stands for something elsewhere: a struct of it is no data."""

    __slots__ = ()


class _Budget:
    """How many bytes are stored at least: one for each value, one for each character and byte.

    A value is small in memory and huge in store if it holds the same part many times. Such parts
    are reduced once and counted each time, so that it is refused before it has been unfolded.
    """

    __slots__ = ("advice", "known", "limit", "outputs", "spent", "what")

    def __init__(
        self, what: str, limit: int, outputs: dict[str, Output] | None = None, *, advice: str = ""
    ) -> None:
        self.what, self.limit, self.spent = what, limit, 0
        self.advice = advice  # what to do with more than that
        self.outputs = outputs  # those that were found; None: there may be none
        # By id and depth: the part (kept, or another may get its id), its plain form, its cost.
        self.known: dict[tuple[int, int] | None, tuple[Any, Any, int]] = {}

    def spend(self, count: int) -> None:
        """Add to what is spent; the others, who are many, only add and leave the check to this."""
        self.spent += count
        if self.spent > self.limit:
            advice, how = self.advice, " or more"  # the rest was not read
            raise TooLarge(self.what, self.spent, self.limit, advice=advice, how=how)


def pack(
    value: Any, where: str, limit: int = MAX_BODY, *, advice: str = "", codecs: Codecs | None = None
) -> bytes:
    """The stored form of one value. ``where`` names it in errors, its content never is.

    ``advice`` is what to do with one that is too large.
    """
    most = limit if codecs is None else MAX_PLAIN
    budget = _Budget(where, most, advice=advice)
    plain = _reduce(value, where, 0, budget)
    budget.spend(0)
    data = _encode(plain)
    if len(data) > most:
        raise TooLarge(where, len(data), most, advice=advice)
    return data if codecs is None else codecs.encode(data, where, limit, advice=advice)


def unpack(data: bytes, what: str = "the value", codecs: Codecs | None = None) -> Any:
    """The plain data that ``pack`` stored. ``what`` names it in errors.

    Raises ``CodecError`` for what is encoded, and cannot be decoded here.
    """
    if codecs is not None:
        data = codecs.decode(data, what)
    try:
        return _decode(data)
    except _UNREADABLE as error:
        if (codec := codec_of(data)) is not None:
            raise undecoded(what, codec) from None
        raise InvalidInput(f"not a stored value: {type(error).__name__}") from None


def pack_arguments(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: dict[str, Output] | None = None,
    *,
    limit: int = MAX_BODY,
) -> bytes:
    """The plain form of a call's arguments. What they hold of outputs is put into ``outputs``.

    It is the stored form, where there is no codec.
    """
    budget = _Budget("the arguments", limit, outputs)
    plain_args = [
        _reduce(value, f"argument {index}", 1, budget) for index, value in enumerate(args)
    ]
    plain_kwargs = {
        _key(key, where, budget): _reduce(value, where, 1, budget)
        for key, value in kwargs.items()
        for where in (f"argument {key!r}",)
    }
    budget.spend(0)
    data = _encode((plain_args, plain_kwargs))
    if len(data) > limit:
        raise TooLarge("the arguments", len(data), limit)
    return data


def _output(code: int, data: memoryview) -> Output:
    if code != _OUTPUT:
        raise ValueError(f"extension type {code} is of a later release")
    return Output(str(data, "utf-8"))


#: ``unpack_arguments`` for those who mind its call: raises what msgspec does.
read_arguments = msgspec.msgpack.Decoder(tuple[list[Any], dict[str, Any]], ext_hook=_output).decode


def reader_of(kinds: Sequence[type]) -> Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]:
    """``read_arguments`` for those that are plain values of these types, in this order.

    Raises ``msgspec.ValidationError`` for others; what it returns by position fits as it is.
    """
    positions: Any = tuple[tuple(kinds)] if kinds else tuple[()]  # type: ignore[misc]
    return msgspec.msgpack.Decoder(tuple[positions, dict[str, Any]], ext_hook=_output).decode


def unpack_arguments(data: bytes, codecs: Codecs | None = None) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments that ``pack_arguments`` stored, with ``Output``s.

    Raises ``CodecError`` for what is encoded, and cannot be decoded here.
    """
    if codecs is not None:
        data = codecs.decode(data, "the arguments")
    try:
        return read_arguments(data)
    except _UNREADABLE as error:
        if (codec := codec_of(data)) is not None:
            raise undecoded("the arguments", codec) from None
        raise InvalidInput(f"not stored arguments: {type(error).__name__}") from None


def convert(value: Any, wanted: Any, where: str) -> Any:
    """Turn plain data into what an annotation asks for; as it is where msgspec knows no way."""
    try:
        return msgspec.convert(value, wanted, builtin_types=(bytes,), dec_hook=custom_types.loaded)
    except msgspec.ValidationError as error:
        place = _place(error)
        name = getattr(wanted, "__name__", None) or wanted
        why = f"it does not fit {name}{f' at {place}' if place else ''}"
        raise NotSerializable(where, value, why, what="cannot be read back") from None
    except TypeError:
        return value


def unpack_as(wanted: Any, data: bytes | None, where: str) -> Any:
    """Return what ``pack`` stored as an annotation asks for it; without data it is None."""
    return convert(None if data is None else unpack(data, where), wanted, where)


def _place(error: msgspec.ValidationError) -> str:
    """Of an error's words only the place: the others may repeat the value."""
    text = str(error)
    if error.__cause__ is not None:  # raised by the wanted type: its words first, then the place
        words = str(error.__cause__)
        text = text[len(words) :] if text.startswith(words) else ""
    found = _PLACE.search(text)
    return found[1] if found else ""


def _reduce(value: Any, where: str, depth: int, budget: _Budget) -> Any:
    """``_plain``, whose errors say where inside of the value it is."""
    try:
        return _plain(value, where, depth, budget)
    except NotSerializable as error:
        path = _path_to_misfit(value, depth)
        if not path:
            raise
        found = NotSerializable(where, value, error.why, at=path)
        found.type = error.type
        raise found from None


def _path_to_misfit(value: Any, depth: int) -> str:
    """Where the first part stands that cannot be stored: ``[2].name``; empty: it is the whole."""
    path = ""
    while depth < MAX_DEPTH:
        parts: Iterable[tuple[str, Any]]
        if isinstance(value, dict):
            parts = ((_step(key, n), item) for n, (key, item) in enumerate(value.items()))
        elif isinstance(value, list | tuple):
            parts = ((f"[{place}]", item) for place, item in enumerate(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = _field_names(type(value))
            parts = ((f".{name}", getattr(value, name, None)) for name in names)
        else:
            return path
        depth += 1
        for step, part in parts:
            try:
                _plain(part, "", depth, _Budget("", MAX_PLAIN, {}))
            except NotSerializable:
                path, value = path + step, part
                break
            except InvalidInput:
                return path
        else:
            return path
    return path


def _step(key: Any, place: int) -> str:
    """How a path names a key: those that look like names as they are, for others the place."""
    if type(key) is str and key.isascii() and key.isidentifier() and len(key) <= _LONGEST_KEY:
        return f"[{key!r}]"
    return f"[key {place}]"


def _plain(value: Any, where: str, depth: int, budget: _Budget) -> Any:
    """Reduce to None, bool, int, finite float, str, bytes, list and dict with str keys."""
    kind = type(value)
    if kind is str:
        return _text(value, where, budget)
    if kind is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise NotSerializable(where, value, "an integer outside -2**63 to 2**64 - 1")
        return value
    if kind is list or kind is tuple or kind is dict:
        return _container(value, where, depth, budget)
    if kind in _SCALARS:
        return value
    if kind is bytes:
        budget.spent += len(value)
        return value
    if kind is float:
        if not math.isfinite(value):
            raise NotSerializable(where, value, f"{value} is not a finite number")
        return value
    if kind is Output:
        return _stored_output(value, where, budget)
    plain = _plain(_reduced(value, where), where, depth, budget)  # no level of its own
    # The order of a set differs between processes.
    return sorted(plain, key=_encode) if isinstance(value, set | frozenset) else plain


def _stored_output(value: Output, where: str, budget: _Budget) -> msgspec.msgpack.Ext:
    if budget.outputs is None:
        raise NotSerializable(where, value, "an output stands only in the arguments of a task")
    budget.outputs.setdefault(value.id, value)
    budget.spent += len(value.id)
    return msgspec.msgpack.Ext(_OUTPUT, value.id.encode())


def _container(value: Any, where: str, depth: int, budget: _Budget) -> Any:
    if depth >= MAX_DEPTH:
        raise TooLarge(where, depth + 1, MAX_DEPTH, "levels deep")
    before = budget.spent
    mark = (id(value), depth) if before > _REMEMBERED else None
    if mark in budget.known:
        _, plain, cost = budget.known[mark]
        budget.spend(cost)
        return plain
    budget.spend(len(value))
    depth += 1
    if type(value) is dict:
        plain = {
            _key(key, where, budget): _plain(item, where, depth, budget)
            for key, item in value.items()
        }
    else:
        plain = [_plain(item, where, depth, budget) for item in value]
    if mark is not None:
        budget.known[mark] = (value, plain, budget.spent - before)
    return plain


def _reduced(value: Any, where: str) -> Any:
    """One step from a richer type towards plain data, by msgspec's rules.

    One step only, where there is something inside: msgspec would reduce all of it at once, keep
    the order of sets, and make one of two keys that reduce to the same text.
    """
    if isinstance(value, Unstorable):
        raise NotSerializable(where, value, f"values of type {type(value).__name__} are not stored")
    try:
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, msgspec.Struct):
            return _opened(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                name: item
                for name in _field_names(type(value))
                if (item := getattr(value, name, UNSET)) is not UNSET
            }
        if isinstance(value, dict):
            return dict(value)
        if isinstance(value, list | tuple | set | frozenset):
            return list(value)
        dump = custom_types.dump_of(type(value))
        if dump is not None:
            return dump(value)
        # Not only bytes: msgspec would make base64 of the other two, wherever they stand inside.
        reduced = msgspec.to_builtins(
            value, builtin_types=(bytes, bytearray, memoryview), order="deterministic"
        )
    except (TypeError, ValueError, RecursionError, UnicodeError, OverflowError) as error:
        raise NotSerializable(where, value, f"{type(value).__name__}: {error}") from None
    if type(reduced) is type(value):  # nothing gained: a type whose reduction is itself
        raise NotSerializable(where, value, f"values of type {type(value).__name__} are not stored")
    return reduced


@functools.lru_cache(maxsize=256)
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _opened(value: msgspec.Struct) -> Any:
    config = value.__struct_config__
    items = [getattr(value, name) for name in value.__struct_fields__]
    if config.array_like:
        return items if config.tag is None else [config.tag, *items]
    opened: dict[str, Any] = {} if config.tag is None else {str(config.tag_field): config.tag}
    pairs = zip(value.__struct_encode_fields__, items, strict=True)
    opened.update((name, item) for name, item in pairs if item is not UNSET)
    return opened


def _key(key: Any, where: str, budget: _Budget) -> str:
    if not isinstance(key, str):
        raise NotSerializable(
            where, key, f"a mapping has a key of type {type(key).__name__}; keys must be strings"
        )
    return _text(str.__str__(key), where, budget)  # a member of an enum by its value


def _text(value: str, where: str, budget: _Budget) -> str:
    budget.spent += len(value)
    if value.isascii():
        return value
    budget.spend(0)  # before the work, which is done anew wherever the same text stands
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotSerializable(where, value, "a text with lone surrogates is not UTF-8") from None
    return value
