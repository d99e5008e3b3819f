"""What each setting may be: how text and TOML become a value, and what to write instead of both.

A reader returns None for what it does not take. Its error is written where the source is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.model.durations import LEAST_LIMIT, duration_rule, limit_in_seconds
from fairlead.model.errors import InvalidName
from fairlead.model.names import NAMESPACE_RULE, check_namespace, check_queue
from fairlead.model.sizes import in_bytes, size_rule

FALLBACKS = ("none", "spool", "local")

_LEAST_SIZE = 4 * 1024**2  # bytes: a single task may have one million of them
_NO = ("", "0", "false", "no", "off")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of value: how it is read, and the words of its errors."""

    read: Callable[[Any], Any]  # what TOML or the program gives; None: it is none
    of_text: Callable[[str], Any]  # what a variable says; None: it is none
    rule: str  # what a variable must be
    example: str  # what to write into the file
    is_secret: bool = False  # the value may hold a password: no error repeats it
    is_table: bool = False


def url(like: str) -> Kind:
    """A URL, which may hold a password."""

    def read(value: object) -> str | None:
        return value.strip() or None if isinstance(value, str) else None

    example = f'a URL, like {{name}} = "{like}"'
    return Kind(
        read=read, of_text=read, rule=f"a URL, like {like}", example=example, is_secret=True
    )


def table(example: str, like: str) -> Kind:
    """Texts by name; a variable has them as NAME=TEXT, with blanks between them."""

    def read(value: object) -> dict[str, str] | None:
        is_table = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        return value if is_table else None  # type: ignore[return-value]

    def of_text(text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for item in text.split():
            name, equals, value = item.partition("=")
            if not equals or name in found:
                raise ValueError(f"has {name!r} twice" if equals else "has a part without =")
            found[name] = value
        return found

    return Kind(
        read=read,
        of_text=of_text,
        rule=f"{like}, blanks between",
        example=example,
        is_secret=True,
        is_table=True,
    )


def _is_set(text: str) -> bool:
    return text.lower() not in _NO


flag = Kind(
    read=lambda value: value if isinstance(value, bool) else None,
    of_text=_is_set,
    rule="1 or 0",
    example="true or false",
)

duration = Kind(
    read=limit_in_seconds,
    of_text=limit_in_seconds,
    rule=duration_rule(LEAST_LIMIT),
    example='a duration, like {name} = "10s"',
)

size = Kind(
    read=lambda value: in_bytes(value, _LEAST_SIZE),
    of_text=lambda text: in_bytes(text, _LEAST_SIZE),
    rule=size_rule(_LEAST_SIZE),
    example='at least 4 MB, like {name} = "256MiB"',
)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 2**63 else None


count = Kind(
    read=_count,
    of_text=lambda text: _count(int(text)) if text.isascii() and text.isdigit() else None,
    rule="a whole number, 1 or more",
    example="a whole number, like {name} = 1000000",
)


def _fallback(value: object) -> str | None:
    return value if isinstance(value, str) and value in FALLBACKS else None


fallback = Kind(
    read=_fallback,
    of_text=lambda text: _fallback(text.lower()),
    rule=f"one of {', '.join(FALLBACKS)}",
    example=f'one of {", ".join(FALLBACKS)}, like {{name}} = "spool"',
)


def _namespace(value: object) -> str | None:
    try:
        return check_namespace(value)
    except InvalidName:
        return None


namespace = Kind(
    read=_namespace,
    of_text=_namespace,
    rule=NAMESPACE_RULE,
    example='a name of 1 to 32 letters, digits, _ . -, like {name} = "shop"',
)


def _path(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) and "\0" not in value else None


path = Kind(
    read=_path,
    of_text=_path,
    rule="the path of a directory",
    example='the path of a directory, like {name} = "/var/lib/fairlead/spool"',
)


def _queues(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    try:
        return tuple(check_queue(each) for each in value)
    except InvalidName:
        return None


queues = Kind(
    read=_queues,
    of_text=lambda text: _queues(text.replace(",", " ").split()),
    rule="names of queues, with commas or blanks between",
    example='a list of names of queues, like {name} = ["mail"]',
)
