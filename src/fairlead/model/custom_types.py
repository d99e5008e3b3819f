"""Types of one's own as arguments and results: how they are stored, and made again.

Dataclasses, msgspec structs, datetimes, UUIDs, enums and the like need nothing. Paths and models
with pydantic's methods are known here; others are registered with ``register_type``, in the
processes that enqueue and in those that run tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from fairlead.model.errors import InvalidInput

_registered: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}


def register_type(kind: type, *, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> None:
    """Say how values of a class, and of its subclasses, are stored and read back.

    A later call for the same class takes the place of the former.

    Args:
        dump: Makes something of a value that can be stored.
        load: Makes the value of that again, where an annotation asks for the class.
    """
    if not isinstance(kind, type):
        raise InvalidInput(f"only a class can be registered, not {type(kind).__name__}")
    _registered[kind] = dump, load


def is_registered(kind: Any) -> bool:
    """Whether somebody said how a class, or one that it is derived from, is stored."""
    return any(each in _registered for each in getattr(kind, "__mro__", ()))


def dump_of(kind: type) -> Callable[[Any], Any] | None:
    """Return what makes plain data of a class, if somebody said so."""
    for each in kind.__mro__:
        if each in _registered:
            return _registered[each][0]
    if issubclass(kind, PurePath):
        return str
    if hasattr(kind, "model_validate") and hasattr(kind, "model_dump"):
        return _dump_model
    return None


def loaded(kind: Any, data: Any) -> Any:
    """Make a value of a class that msgspec does not know."""
    for each in getattr(kind, "__mro__", ()):
        if each in _registered:
            return _registered[each][1](data)
    if isinstance(kind, type):
        if isinstance(data, kind):  # ``object``, or a base class of plain data
            return data
        if issubclass(kind, PurePath):
            return kind(data)
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(data)
    raise TypeError("nobody said how to make it")


def _dump_model(value: Any) -> Any:
    return value.model_dump(mode="json")
