"""Whether values fit the annotations of parameters: worked out once, then cheap to ask.

A worker decides for good, when it makes of stored data what the annotation asks for. Here is
refused only what it would refuse, too. Code of the caller's own types (``register_type``, models)
does not run for that: what it makes of a value is left to the worker.
"""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import msgspec

_NONE = type(None)
_ALIKE: dict[Any, frozenset[type]] = {
    str: frozenset({str}),
    int: frozenset({int}),
    float: frozenset({float, int}),
    bool: frozenset({bool}),
    bytes: frozenset({bytes}),
    list: frozenset({list, tuple}),
    dict: frozenset({dict}),
    None: frozenset({_NONE}),
    _NONE: frozenset({_NONE}),
    list[Any]: frozenset({list, tuple}),
    dict[str, Any]: frozenset({dict}),
}


class Annotation:
    """What a parameter asks for, ready to be compared with values."""

    __slots__ = ("_holder", "kinds")

    def __init__(self, wanted: Any) -> None:
        self.kinds = plain_kinds(wanted)
        # A struct around it: msgspec works out what a class asks for once, and keeps it.
        self._holder = msgspec.defstruct("Holder", [("value", wanted)])

    def fits(self, stored: Any) -> bool:
        """Return whether plain data, as it is stored, can become what is asked for."""
        try:
            msgspec.convert(
                {"value": stored}, self._holder, builtin_types=(bytes,), dec_hook=_own_type
            )
        except msgspec.ValidationError:
            return False
        except Exception:  # noqa: BLE001 - a type of one's own, or none that msgspec knows
            return True
        return True


def plain_kinds(wanted: Any) -> frozenset[type]:
    """Return the types whose values, exactly of that type, fit an annotation as they are."""
    if get_origin(wanted) in (Union, types.UnionType):
        return frozenset().union(*map(plain_kinds, get_args(wanted)))
    try:
        return _ALIKE.get(wanted, frozenset())
    except TypeError:  # an annotation that cannot be a key
        return frozenset()


class _OwnType(Exception):
    """Only the worker can tell."""


def _own_type(_kind: Any, _data: Any) -> Any:
    raise _OwnType
