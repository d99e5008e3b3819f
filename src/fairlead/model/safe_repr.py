"""What an error repeats of a value or a text: short, on one line, and never much work.

A value is never asked for its own ``repr()`` unless that is known to be small: it may be huge or
without end, take up several lines, or raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Any

_LONGEST = 80  # characters of a bad value that an error repeats
_LONGEST_INT = 512  # bits; the digits of a larger one say nothing, and are slow to come by
_PLAIN = (bool, float, complex, type(None), type(...))
_SMALL = ("datetime", "decimal", "uuid")  # modules whose types are single, small values
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def safe_repr(value: object) -> str:
    """The beginning of the value's repr, or the name of its type."""
    text = ""
    try:
        for piece in _pieces(value):
            text += piece
            if len(text) > _LONGEST:  # enough: what is left of a large value is not looked at
                break
    except Exception:  # noqa: BLE001 - a bad value must not hide the error that is about it
        text = "<a value that cannot be shown>"
    return one_line(text, _LONGEST)


def one_line(text: str, limit: int) -> str:
    """The text without line breaks and the like, cut after so many characters."""
    line = "".join(char if char.isprintable() else " " for char in text[:limit])
    return line if len(text) <= limit else f"{line}…"


def _pieces(value: Any) -> Iterator[str]:
    """The repr of a value bit by bit, none of them empty; of types not known here only the name."""
    kind = type(value)
    if isinstance(value, Enum):
        yield f"{kind.__name__}.{value.name}"
    elif isinstance(value, str):
        yield repr(str.__getitem__(value, slice(_LONGEST + 1)))
    elif kind is bytes:
        yield repr(value[: _LONGEST + 1])
    elif kind is int:
        bits = value.bit_length()
        yield repr(value) if bits <= _LONGEST_INT else f"<an integer of {bits} bits>"
    elif kind in _PLAIN or kind.__module__ in _SMALL:
        yield repr(value)
    elif kind is dict:
        yield from _joined("{", (_pair(*item) for item in value.items()), "}")
    elif kind in _BRACKETS and (value or kind in (list, tuple)):
        begin, end = _BRACKETS[kind]
        alone = kind is tuple and len(value) == 1
        yield from _joined(begin, (_pieces(item) for item in value), f",{end}" if alone else end)
    elif kind in _BRACKETS:
        yield f"{kind.__name__}()"
    elif isinstance(value, type):
        yield type.__repr__(value)
    else:
        yield f"<{kind.__name__}>"


def _pair(key: Any, value: Any) -> Iterator[str]:
    yield from _pieces(key)
    yield ": "
    yield from _pieces(value)


def _joined(begin: str, items: Iterator[Iterator[str]], end: str) -> Iterator[str]:
    yield begin
    for first in islice(items, 1):
        yield from first
    for item in items:
        yield ", "
        yield from item
    yield end
