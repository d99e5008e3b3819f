"""Texts and values that have broken others, and where to put them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from fairlead.api.openapi import document
from fairlead.api.route_table import BASE

__all__ = ("TEXTS", "VALUES", "body_fields", "encoded", "parameters", "path_parts")

TEXTS = (
    "",
    " ",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\r\nX-Injected: yes\r\n\r\n<html>",
    "\x1b[31mred\x1b[0m\x07",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "a\x00b",
    "\u202eevil\u2066",
    "x" * 10_000,
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "{}:*",
    "fl:{x}:*",
    "' OR 1=1 --",
    "{{7*7}}${7*7}",
    "\ufeff\u200b\U0001f4a3",
    "e\u0301" * 300,
    "NaN",
    "-0",
    "1e400",
    "9" * 400,
    str(2**70),
    "-1",
    "null",
    "true",
    "0x10",
    "1_000",
    "2027-02-30T25:61:61Z",
    "9999999-01-01T00:00:00Z",
    "99999999999999999999d",
)

#: As JSON: what Python cannot write down, too.
VALUES = (
    *(json.dumps(text) for text in TEXTS),
    r'"\ud800"',  # half a character
    r'"\udfff\ud800"',
    "NaN",
    "-Infinity",
    "-0",
    "-0.0",
    "1e400",
    "1e-400",
    "-1",
    "0.1",
    "9" * 400,
    str(2**70),
    str(-(2**70)),
    str(2**63),
    "1" + "0" * 5_000,
    "null",
    "true",
    "[]",
    "{}",
    '[null, [], {}, "", -1]',
    '{"a": {"b": null}, "": "", "__proto__": {}, "$ref": "#"}',
    "[" * 1_000 + "]" * 1_000,
    '{"a":' * 1_000 + "1" + "}" * 1_000,
    "[" * 100_000,
    "[" + "1," * 20_000 + "1]",
)

_PLACE = "@@here@@"


def _schema(name: str) -> dict[str, Any]:
    method, _, path = name.partition(" ")
    found: dict[str, Any] = document()["paths"][BASE + path][method.lower()]
    return found


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references at its top."""
    components = document()["components"]["schemas"]
    while "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    for key in ("anyOf", "allOf"):
        for each in schema.get(key, ()):
            inner = _resolved(each)
            if inner.get("properties"):
                return inner
    return schema


def body_fields(name: str) -> list[tuple[str, ...]]:
    """Where a value can stand in the body of a route; () is the whole body."""
    operation = _schema(name)
    if "requestBody" not in operation:
        return []
    schema = _resolved(operation["requestBody"]["content"]["application/json"]["schema"])
    return [(), *_places(schema, ())]


def _places(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    schema = _resolved(schema)
    if schema.get("type") == "array" and path == ():
        yield from _places(schema["items"], ("0",))
    for key, each in schema.get("properties", {}).items():
        yield (*path, key)
        inner = _resolved(each)
        if inner.get("properties"):
            yield from _places(inner, (*path, key))
        elif key in ("args", "depends_on", "limiters", "ids"):
            yield (*path, key, "0")
        elif key == "kwargs":
            yield (*path, key, "k")
    if schema.get("properties") and path in ((), ("0",)):
        yield (*path, "nobody-knows-this")


def encoded(body: Any, place: tuple[str, ...], value: str) -> bytes:
    """A body as JSON with a value, which is JSON too, in one place of it."""
    body = copy.deepcopy(body)
    if not place:
        return value.encode()
    inner = body
    for step, after in zip(place, (*place[1:], None), strict=True):
        last = after is None
        if isinstance(inner, list):
            if not inner:
                inner.append({})
            if last:
                inner[int(step)] = _PLACE
            inner = inner[int(step)]
        else:
            if last:
                inner[step] = _PLACE
            elif not inner.get(step):
                inner[step] = [None] if after == "0" else {}
            inner = inner[step]
    return json.dumps(body).replace(json.dumps(_PLACE), value, 1).encode()


def parameters(name: str) -> list[str]:
    """The parameters of a route's URL."""
    return [each["name"] for each in _schema(name)["parameters"] if each["in"] == "query"] + [
        "nobody-knows-this"
    ]


def path_parts(name: str) -> list[str]:
    """The parts of a route's path that are given."""
    return [each["name"] for each in _schema(name)["parameters"] if each["in"] == "path"]
