"""Values and texts of others, made fit for a log: bounded, and without a life of their own."""

from __future__ import annotations

import math
import traceback
from typing import Any

_MAX_TEXT = 8 * 1024  # characters of one value
_MAX_ITEMS = 50
_MAX_DEPTH = 4
_MAX_BITS = 512
_MAX_FRAMES = 50
_CUT = "…"


def plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """The value as JSON can hold it. Of a type that is not known here only the name is shown.

    No ``repr()`` or ``str()`` of a stranger is called: it may hold a secret, be huge, or raise.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return (
            value
            if value.bit_length() <= _MAX_BITS
            else f"<an integer of {value.bit_length()} bits>"
        )
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):  # also members of a StrEnum
        text = sound(str.__str__(value))
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + _CUT
    if isinstance(value, BaseException):
        return kind.__qualname__
    if depth and kind is dict:
        items = list(value.items())[:_MAX_ITEMS]
        return {_name(name): plain(each, depth - 1) for name, each in items}
    if depth and kind in (list, tuple, set, frozenset):
        return [plain(each, depth - 1) for each in list(value)[:_MAX_ITEMS]]
    return f"<{kind.__qualname__}>"


def sound(text: str) -> str:
    """The text without halves of surrogate pairs, which cannot be written anywhere."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def printable(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _shown(char) for char in text)


def trace_of(error: BaseException) -> str:
    """The traceback as text, without the values of variables."""
    try:
        report = traceback.TracebackException(
            type(error), error, error.__traceback__, limit=-_MAX_FRAMES
        )
        return "".join(report.format()).rstrip("\n")
    except Exception:  # noqa: BLE001 - it calls code of the error's class
        return type(error).__qualname__


def _name(name: Any) -> str:
    text = plain(name, 0)
    return text if isinstance(text, str) else str(text)


def _shown(char: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char) or (
        f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
    )
