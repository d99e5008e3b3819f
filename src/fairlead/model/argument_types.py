"""Whether arguments can fit the parameters that a task declares, without its code.

A worker decides for good, by the annotations of its handler. Here is refused only what it would
refuse, too: where a schema does not decide, arguments pass. ``pattern`` and ``format`` are never
looked at: a pattern is a program of whoever wrote it. Nor are more than 10,000 parts of the
arguments: what is behind them passes. So the work is bounded, whatever a schema says.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairlead.model.argument_packing import unpack_arguments
from fairlead.model.errors import InvalidArgument
from fairlead.model.parameters import REFERENCE, Parameter, parameters_of
from fairlead.model.registry import TaskSpec
from fairlead.model.safe_repr import one_line

_MOST_PARTS = 10_000
_DEEPEST = 100  # levels of schemas inside of schemas
_MOST_NAMES = 20
_LONGEST_NAME = 80  # characters

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}
_WORDS = {
    "null": "null",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "array": "a list",
    "object": "an object",
}
_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict)


_PLAINEST: dict[Any, str] = {int: "integer", str: "string", bool: "boolean", float: "number"}
#: What a schema may say about such a value beside its type.
_RULES = frozenset(
    {
        "$ref", "anyOf", "enum", "const", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    }
)  # fmt: skip


class Misfit(NamedTuple):
    """What does not fit: where it stands, the value, and what it must be."""

    field: str
    value: object
    rule: str


def check_types(spec: TaskSpec, stored: bytes) -> None:
    """Refuse stored arguments that a worker would refuse by the annotations of the handler.

    Raises InvalidArgument, which names the first one and says what it must be.
    """
    args, kwargs = unpack_arguments(stored)
    for name, value in spec.misfits(args, kwargs):
        # The schema has better words; where it has none, the annotation is named.
        found = misfit(*parameters_of(spec), args, kwargs)
        if found is None:
            wanted = next(kind for parameter, kind in spec.parameters if parameter.name == name)
            found = Misfit(name, value, f"a value for {getattr(wanted, '__name__', wanted)}")
        raise InvalidArgument(spec.name, *found)


def misfit(
    parameters: Sequence[Parameter],
    definitions: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Misfit | None:
    """The first thing about arguments, as plain data, that the worker would refuse; or None."""
    check = _Check(definitions)
    named = {p.name: p for p in parameters if p.kind in ("positional_or_keyword", "keyword_only")}
    positional = [p for p in parameters if p.kind.startswith("positional")]
    rest = next((p for p in parameters if p.kind == "var_positional"), None)
    extra = next((p for p in parameters if p.kind == "var_keyword"), None)
    given = {p.name for p, _ in zip(positional, args, strict=False)}
    for place, value in enumerate(args):
        parameter = positional[place] if place < len(positional) else rest
        if parameter is None:
            most = len(positional)
            rule = f"left out: the task takes {most} argument{'s' * (most != 1)} by position"
            return Misfit(f"argument {place}", value, rule)
        where = parameter.name
        if parameter is rest:
            where = f"{where}[{place - len(positional)}]"
        if found := check.value(parameter.schema, value, where):
            return found
    for name, value in kwargs.items():
        parameter = named.get(name, extra)
        if parameter is None:
            return Misfit(_name(name), value, f"left out: {_known(name, list(named))}")
        if parameter is not extra and name in given:
            return Misfit(_name(name), value, "given once: it is given by position already")
        if found := check.value(parameter.schema, value, _name(name)):
            return found
        if parameter is not extra:
            given.add(name)
    for parameter in parameters:
        if parameter.required and parameter.name not in given:
            return Misfit(parameter.name, None, "given: it has no default")
    return None


class _Check:
    """One look at the arguments of a call."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._left = _MOST_PARTS

    def value(self, schema: Any, value: Any, where: str, depth: int = 0) -> Misfit | None:
        """What does not fit in a value, or nothing."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST or not isinstance(value, _PLAIN):
            return None
        if schema is False:
            return Misfit(where, value, "left out")
        if not isinstance(schema, dict) or not schema:
            return None
        name = _PLAINEST.get(type(value))
        if name is not None and schema.get("type") == name and _RULES.isdisjoint(schema):
            return None  # most values are of a type without further rules
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith(REFERENCE):
            target = self._definitions.get(reference.removeprefix(REFERENCE))
            if found := self.value(target, value, where, depth + 1):
                return found
        return (
            _wrong_type(schema, value, where)
            or _wrong_choice(schema, value, where)
            or self._wrong_branch(schema, value, where, depth)
            or _wrong_size(schema, value, where)
            or self._wrong_part(schema, value, where, depth)
        )

    def _wrong_branch(
        self, schema: Mapping[str, Any], value: Any, where: str, depth: int
    ) -> Misfit | None:
        branches = schema.get("anyOf")
        if not isinstance(branches, list) or not branches:
            return None
        found: list[Misfit] = []
        for branch in branches:
            misfit = self.value(branch, value, where, depth + 1)
            if misfit is None:
                return None
            found.append(misfit)
        inside = [misfit for misfit in found if misfit.field != where]
        if inside:  # one of them is meant, as its type fits
            return inside[0]
        rules = dict.fromkeys(misfit.rule for misfit in found)
        return Misfit(where, value, " or ".join(rules))

    def _wrong_part(
        self, schema: Mapping[str, Any], value: Any, where: str, depth: int
    ) -> Misfit | None:
        if isinstance(value, list | tuple):
            return self._wrong_item(schema, value, where, depth)
        if isinstance(value, dict):
            return self._wrong_property(schema, value, where, depth)
        return None

    def _wrong_item(
        self, schema: Mapping[str, Any], value: Sequence[Any], where: str, depth: int
    ) -> Misfit | None:
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        rest = schema.get("items", True)
        for place, item in enumerate(value):
            if self._left < 0:
                return None
            wanted = first[place] if place < len(first) else rest
            if found := self.value(wanted, item, f"{where}[{place}]", depth + 1):
                return found
        return None

    def _wrong_property(
        self, schema: Mapping[str, Any], value: Mapping[Any, Any], where: str, depth: int
    ) -> Misfit | None:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        for name in required if isinstance(required, list) else ():
            if name not in value and not _is_tag(properties.get(name)):
                return Misfit(f"{where}.{_name(name)}", None, "given: it has no default")
        others = schema.get("additionalProperties", True)
        for name, item in value.items():
            if self._left < 0:
                return None
            inside = f"{where}.{_name(name)}"
            if name not in properties and others is False:
                return Misfit(inside, item, f"left out: {_known(name, list(properties))}")
            if found := self.value(properties.get(name, others), item, inside, depth + 1):
                return found
        return None


def _wrong_type(schema: Mapping[str, Any], value: Any, where: str) -> Misfit | None:
    wanted: Any = schema.get("type")
    names: list[Any] = wanted if isinstance(wanted, list) else [wanted]
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        return None  # not said, or a type of a later release
    if any(_is_of(name, schema, value) for name in names):
        return None
    return Misfit(where, value, " or ".join(_WORDS[name] for name in names))


def _is_of(name: str, schema: Mapping[str, Any], value: Any) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, _TYPES[name]):
        return True
    if name != "string":
        return False
    # Bytes, decimals and the like: JSON has text for them, where Python has more.
    if isinstance(value, bytes):
        return "contentEncoding" in schema or "format" in schema
    return schema.get("format") == "decimal" and isinstance(value, int | float)


def _wrong_choice(schema: Mapping[str, Any], value: Any, where: str) -> Misfit | None:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(choices, list) or value in choices:
        return None
    shown = ", ".join(one_line(repr(each), _LONGEST_NAME) for each in choices[:_MOST_NAMES])
    more = ", …" if len(choices) > _MOST_NAMES else ""
    return Misfit(where, value, f"one of {shown}{more}" if len(choices) != 1 else shown)


def _wrong_size(schema: Mapping[str, Any], value: Any, where: str) -> Misfit | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _wrong_number(schema, value, where)
    if isinstance(value, str):
        if "contentEncoding" in schema:  # its length is that of what it stands for
            return None
        least, most, unit = "minLength", "maxLength", "characters"
    elif isinstance(value, list | tuple):
        least, most, unit = "minItems", "maxItems", "items"
    elif isinstance(value, dict):
        least, most, unit = "minProperties", "maxProperties", "entries"
    else:
        return None
    if (low := _number(schema, least)) is not None and len(value) < low:
        return Misfit(where, value, f"at least {low:g} {unit} long")
    if (high := _number(schema, most)) is not None and len(value) > high:
        return Misfit(where, value, f"at most {high:g} {unit} long")
    return None


def _wrong_number(schema: Mapping[str, Any], value: Any, where: str) -> Misfit | None:
    if (low := _number(schema, "minimum")) is not None and value < low:
        return Misfit(where, value, f"at least {low}")
    if (high := _number(schema, "maximum")) is not None and value > high:
        return Misfit(where, value, f"at most {high}")
    if (low := _number(schema, "exclusiveMinimum")) is not None and value <= low:
        return Misfit(where, value, f"greater than {low}")
    if (high := _number(schema, "exclusiveMaximum")) is not None and value >= high:
        return Misfit(where, value, f"less than {high}")
    step: Any = schema.get("multipleOf")  # of floats the worker decides, which may round
    if type(step) is int and type(value) is int and step > 0 and value % step:
        return Misfit(where, value, f"a multiple of {step}")
    return None


def _number(schema: Mapping[str, Any], key: str) -> float | None:
    value = schema.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def _is_tag(schema: Any) -> bool:
    """Whether it can only be one value: a worker that expects one class does without its tag."""
    if not isinstance(schema, dict):
        return False
    choices = schema.get("enum")
    return "const" in schema or (isinstance(choices, list) and len(choices) == 1)


def _name(name: Any) -> str:
    text = str(name)
    return (
        text if text.isidentifier() and len(text) < _LONGEST_NAME else one_line(text, _LONGEST_NAME)
    )


def _known(name: Any, names: list[str]) -> str:
    """What there is instead of a name that there is not."""
    close = difflib.get_close_matches(str(name)[:_LONGEST_NAME], names[:200], n=1)
    if close:
        return f"there is no such name; did you mean {close[0]}?"
    if not names:
        return "nothing is taken by name"
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"there are {', '.join(names[:_MOST_NAMES])}{more}"
