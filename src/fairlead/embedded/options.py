"""What can be chosen about an embedded server, and the URL that says it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, TypedDict
from urllib.parse import parse_qsl, unquote

from fairlead.model.errors import InvalidOption

Fsync = Literal["everysec", "always"]

DEFAULT_PATH = ".fairlead"

SCHEME = "embedded"
_BEGIN = f"{SCHEME}://"
KNOWN = ("dies_with_owner", "fsync", "start_timeout")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Options(TypedDict, total=False):
    """What a URL may say; passed on as ``EmbeddedValkey(path, **options)``."""

    fsync: Fsync
    dies_with_owner: bool
    start_timeout: float


def parse_embedded(url: str) -> tuple[Path, Options]:
    """The path and the options in a URL. Raises InvalidOption for what it does not know.

    ``embedded://`` is ./.fairlead, ``embedded://data`` and ``embedded://./data`` are relative to
    the working directory, ``embedded:///var/lib/data`` is absolute.
    """
    if url[: len(_BEGIN)].lower() != _BEGIN:
        raise InvalidOption("url", url, "embedded://PATH, like embedded://.fairlead")
    path, _, query = url[len(_BEGIN) :].partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidOption("url", url, "embedded://PATH?option=value&option=value") from None
    options: Options = {}
    for name, value in pairs:
        if name in options:
            raise InvalidOption(name, value, "given once")
        if name == "fsync":
            options["fsync"] = check_fsync(value)
        elif name == "dies_with_owner":
            options["dies_with_owner"] = _truth(name, value)
        elif name == "start_timeout":
            options["start_timeout"] = check_timeout(_number(value))
        else:
            raise InvalidOption(name, value, f"one of the options {', '.join(KNOWN)}")
    return Path(unquote(path) or DEFAULT_PATH), options


def check_fsync(value: object) -> Fsync:
    """The value, if it is one; raises InvalidOption otherwise."""
    if value == "everysec":
        return "everysec"
    if value == "always":
        return "always"
    raise InvalidOption("fsync", value, "everysec or always")


def check_timeout(value: object) -> float:
    """The value in seconds; raises InvalidOption unless it is a positive number."""
    if isinstance(value, int | float) and value is not True and 0 < value < math.inf:
        return float(value)
    raise InvalidOption("start_timeout", value, "a number of seconds above 0")


def _truth(name: str, value: str) -> bool:
    if value.lower() not in _TRUTH:
        raise InvalidOption(name, value, "true or false")
    return _TRUTH[value.lower()]


def _number(value: str) -> object:
    try:
        return float(value)
    except ValueError:
        return value  # refused with the others that are no number of seconds
