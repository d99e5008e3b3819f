"""Reads what callers send: bodies within their limits, JSON and parameters by their types.

An error names the field, the value and the rule. Values of arguments are never repeated.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from fairlead.api.http.problems import (
    BadRequest,
    BodyTooLarge,
    Invalid,
    Problem,
    UnsupportedMediaType,
)
from fairlead.api.http.route import Headers

Decode = Callable[[bytes], Any]
Query = Callable[[bytes], Any]

JSON = "application/json"
_MOST_PARAMETERS = 50
_LONGEST_QUERY = 8 * 1024
_LARGEST_READ_AGAIN = 64 * 1024  # bytes of a body that is looked at again to say what is wrong
_SECRET = frozenset({"args", "kwargs", "arguments", "payload", "token", "secret", "value"})
_PLACE = re.compile(r" - at `\$(?P<path>.*)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`\Z", re.DOTALL)


def check_body(headers: Headers, media_types: tuple[str, ...], limit: int) -> str:
    """Refuse a body by its headers, before any of it is read; the media type."""
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        raise UnsupportedMediaType(
            "compressed bodies are not taken",
            field="Content-Encoding",
            value=encoding.decode("latin-1"),
            rule="left out",
        )
    said = headers.get(b"content-type", b"").decode("latin-1")
    media_type = said.partition(";")[0].strip().lower()
    if media_type not in media_types:
        raise UnsupportedMediaType(
            "the body must be of another media type",
            field="Content-Type",
            value=said,
            rule=" or ".join(media_types),
        )
    length = headers.get(b"content-length")
    if limit and length is not None and length.isdigit() and int(length) > limit:
        raise BodyTooLarge(
            f"the body has {int(length)} bytes; the limit is {limit}",
            field="Content-Length",
            value=int(length),
            rule=f"at most {limit} bytes",
        )
    return media_type


def decoder_of(kind: type) -> Decode:
    """What turns a body into an instance of ``kind``, or raises a problem."""
    decode: Decode = msgspec.json.Decoder(kind).decode

    def decoded(data: bytes) -> Any:
        # A million brackets are as many objects, none of them garbage: to look for some all the
        # while would hold up everybody else several times as long.
        pause = len(data) > _LARGEST_READ_AGAIN and gc.isenabled()
        if pause:
            gc.disable()
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise refusal_of(error, data, _fields(kind)) from None
        finally:
            if pause:
                gc.enable()

    return decoded


def refusal_of(error: Exception, data: bytes, fields: tuple[str, ...] = ()) -> Problem:
    """The problem with a body that cannot be decoded."""
    if isinstance(error, RecursionError):
        return BodyTooLarge("the body is nested too deeply", rule="at most 64 levels deep")
    if isinstance(error, msgspec.ValidationError):
        return _broken_rule(str(error), lambda path: _value_at(data, path), fields)
    if isinstance(error, UnicodeDecodeError):
        return BadRequest("the body is not UTF-8", field="body")
    if not data:
        return BadRequest("there is no body", field="body", rule="JSON")
    if _has_constants(data):
        return Invalid(
            "NaN and Infinity are not JSON", field="body", rule="numbers that JSON can express"
        )
    return BadRequest(str(error), field="body", rule="JSON")


def query_decoder_of(kind: type) -> Query:
    """What turns the query of a URL into an instance of ``kind``, or raises a problem."""
    fields = _fields(kind)

    def decoded(data: bytes) -> Any:
        pairs = _pairs(data)
        try:
            found: Any = msgspec.convert(pairs, kind, strict=False)
        except msgspec.ValidationError as error:
            raise _broken_rule(str(error), pairs.get, fields) from None
        for name, text in pairs.items():
            value = getattr(found, name)
            if value is None:  # msgspec takes the text "null" for it
                raise Invalid("a value is missing", field=name, value=text, rule="given")
            if isinstance(value, datetime) and text[4:5] != "-":  # and numbers for moments
                raise Invalid("this is no moment", field=name, value=text, rule="RFC 3339")
        return found

    return decoded


def _pairs(data: bytes) -> dict[str, str]:
    if not data:
        return {}
    if len(data) > _LONGEST_QUERY:
        raise BadRequest("the query is too long", rule=f"at most {_LONGEST_QUERY} bytes")
    try:
        found = parse_qsl(
            data.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:  # too many of them, or not UTF-8
        raise BadRequest("the query cannot be read", field="query", rule="UTF-8") from None
    pairs = dict(found)
    if len(pairs) != len(found):
        names = [name for name, _ in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise Invalid("a parameter is given twice", field=twice, rule="given once")
    return pairs


def _broken_rule(text: str, value_of: Callable[[str], object], fields: tuple[str, ...]) -> Problem:
    found = _PLACE.search(text)
    path = found["path"].lstrip(".") if found else ""
    rule = text[: found.start()] if found else text
    if unknown := _UNKNOWN.match(rule):
        name = unknown["name"]
        known = f"one of {', '.join(fields)}" if fields and not path else "a known field"
        return Invalid("a field is not known", field=_joined(path, name), value=name, rule=known)
    if missing := _MISSING.match(rule):
        return Invalid("a field is missing", field=_joined(path, missing["name"]), rule="given")
    value = None if _is_secret(path) else value_of(path)
    shown = None if value is None else value if isinstance(value, str) else json.dumps(value)
    return Invalid(f"{rule} at {path or 'the top'}", field=path or "body", value=shown, rule=rule)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_secret(path: str) -> bool:
    return not _SECRET.isdisjoint(re.split(r"[.\[\]]+", path))


def _value_at(data: bytes, path: str) -> object:
    """What stands at a place of the body that msgspec names; None if that is not to be had."""
    if len(data) > _LARGEST_READ_AGAIN:  # decoded without a type it may take 30 times as much
        return None
    try:
        value = msgspec.json.decode(data)
        for step in re.findall(r"[^.\[\]]+", path):
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return None if isinstance(value, dict | list) else value


def _has_constants(data: bytes) -> bool:
    """Whether it would be JSON if NaN and Infinity were."""
    seen: list[str] = []
    if len(data) > _LARGEST_READ_AGAIN:
        return False
    try:
        json.loads(data, parse_constant=seen.append)
    except (ValueError, RecursionError):
        return False
    return bool(seen)


def _fields(kind: type) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(kind, "__struct_encode_fields__", ())
    return names


def text_of(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """A header as text, or None if it is not there."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1").strip()
