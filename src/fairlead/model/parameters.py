"""The parameters of a task as JSON Schemas: what callers can know without its code."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Literal

import msgspec

from fairlead.model import custom_types
from fairlead.model.argument_packing import pack, unpack
from fairlead.model.registry import TaskSpec

ParameterKind = Literal[
    "positional_only", "positional_or_keyword", "keyword_only", "var_positional", "var_keyword"
]

REFERENCE = "#/$defs/"  # how a schema begins to name one of the definitions

_MAX_DEFAULT = 1024  # bytes of a default value that is shown
_UNKNOWN = "x-fairlead-unknown"  # marks what has no schema until it is taken out
_KINDS: dict[Any, ParameterKind] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional_only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional_or_keyword",
    inspect.Parameter.KEYWORD_ONLY: "keyword_only",
    inspect.Parameter.VAR_POSITIONAL: "var_positional",
    inspect.Parameter.VAR_KEYWORD: "var_keyword",
}


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a task. ``schema`` is that of its values, with the default if it has one.

    Of ``var_positional`` (``*args``) and ``var_keyword`` (``**kwargs``) it is that of each value.
    """

    name: str
    """The name of the parameter."""
    kind: ParameterKind = "positional_or_keyword"
    """How it is given, as Python calls it."""
    required: bool = False
    """True: it has no default."""
    schema: dict[str, Any] = {}
    """What values it takes, as a JSON schema; empty: any value."""


def parameters_of(spec: TaskSpec) -> tuple[tuple[Parameter, ...], dict[str, Any]]:
    """The parameters of a task, and the definitions that their schemas refer to.

    An annotation that has no schema becomes ``{}``, which any value fits. A schema says no more
    than what the worker will hold arguments to.
    """
    schemas, definitions = _schemas([wanted for _, wanted in spec.parameters])
    found = []
    for (parameter, _), schema in zip(spec.parameters, schemas, strict=True):
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        found.append(
            Parameter(
                name=parameter.name,
                kind=_KINDS[parameter.kind],
                required=is_one and parameter.default is parameter.empty,
                schema={**schema, **_default(parameter.default)},
            )
        )
    return tuple(found), definitions


def _schemas(types: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A schema for each type, and what they share."""
    good = [wanted for wanted in types if wanted is not None and _generated([wanted]) is not None]
    made = _generated(good)  # together, so that two classes of one name get two names
    if made is None:
        return [{} for _ in types], {}
    schemas, definitions = made
    by_type = list(zip(good, schemas, strict=True))
    found = [next((schema for known, schema in by_type if known is wanted), {}) for wanted in types]
    return found, definitions


def _generated(types: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    try:
        schemas, definitions = msgspec.json.schema_components(
            types, schema_hook=_custom, ref_template=REFERENCE + "{name}"
        )
        open_names = {each.__name__ for each in _open_enums(types)}
        known = {
            name: _opened(schema) if schema.get("title") in open_names else _cleaned(schema)
            for name, schema in definitions.items()
        }
        found = [_cleaned(schema) for schema in schemas]
        msgspec.json.encode((found, known))
    except Exception:  # noqa: BLE001 - annotations are code: what runs may raise anything
        return None
    return found, known


def _custom(kind: Any) -> dict[str, Any]:
    """The schema of a class that msgspec does not know."""
    registered = custom_types.is_registered(kind)
    if isinstance(kind, type) and issubclass(kind, PurePath) and not registered:
        return {"type": "string", "format": "path"}
    return {_UNKNOWN: True}  # msgspec takes an empty one for none


def _cleaned(schema: Any) -> Any:
    """The schema, with nothing where nothing is known."""
    if isinstance(schema, dict):
        return {} if _UNKNOWN in schema else {key: _cleaned(each) for key, each in schema.items()}
    if isinstance(schema, list | tuple):
        return [_cleaned(each) for each in schema]
    return schema


def _opened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an enum that takes more than its members: these are only examples."""
    return {"examples" if key == "enum" else key: each for key, each in schema.items()}


def _open_enums(types: Sequence[Any]) -> Iterator[type[enum.Enum]]:
    """The enums among types, and inside of them, that make a member of other values, too."""
    todo: list[Any] = list(msgspec.inspect.multi_type_info(types))
    seen: dict[int, Any] = {}  # kept, or another may get its id
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, msgspec.inspect.EnumType):
            missing: Any = each.cls._missing_
            closed: Any = enum.Enum._missing_
            if missing.__func__ is not closed.__func__:
                yield each.cls
        elif isinstance(each, msgspec.Struct):
            todo += [getattr(each, name) for name in each.__struct_fields__]
        elif isinstance(each, tuple | list):
            todo += each


def _default(value: Any) -> dict[str, Any]:
    """The default as it would be stored, if JSON has a form for it that is short."""
    if value is inspect.Parameter.empty:
        return {}
    try:
        plain = unpack(pack(value, "the default", _MAX_DEFAULT))
    except Exception:  # noqa: BLE001 - how a value is stored may be code of its class
        return {}
    return {} if _has_bytes(plain) else {"default": plain}


def _has_bytes(plain: Any) -> bool:
    if isinstance(plain, dict):
        return any(map(_has_bytes, plain.values()))
    if isinstance(plain, list):
        return any(map(_has_bytes, plain))
    return isinstance(plain, bytes)
