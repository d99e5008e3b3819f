"""What a program need not say itself: where its broker and its ledger are, how long calls may take.

The first that says so counts: the argument of ``Fairlead``, the environment variable (FAIRLEAD_URL,
FAIRLEAD_LEDGER, FAIRLEAD_TIMEOUT, FAIRLEAD_ROUTES), the file ``fairlead.toml`` in the working
directory. An empty one says nothing. Folders above are not looked into: a file that somebody left
there would silently name the broker.
"""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.model.durations import LEAST_LIMIT, duration_rule, limit_in_seconds
from fairlead.model.errors import InvalidInput

__all__ = (
    "FILE",
    "LEDGER",
    "REQUIRE",
    "VARIABLE",
    "Configured",
    "configured",
    "configured_ledger",
    "configured_timeout",
    "requires_url",
)

VARIABLE = "FAIRLEAD_URL"
LEDGER = "FAIRLEAD_LEDGER"
REQUIRE = "FAIRLEAD_REQUIRE_URL"  # set: nothing but a broker that somebody named will do
FILE = "fairlead.toml"

_TIMEOUT = "FAIRLEAD_TIMEOUT"
_ROUTES = "FAIRLEAD_ROUTES"
_KEYS = ("ledger", "routes", "shards", "timeout", "url")
_TABLES = {"routes": '"priority:low" = "redis://host"', "shards": 'queue = "shard"'}
_NO = ("", "0", "false", "no", "off")


class Configured(NamedTuple):
    """What the environment or the file says."""

    url: str | None = None
    source: str = ""  # the variable, or the path of the file
    shards: dict[str, str] | None = None  # the shard of each queue that is not in the first one
    routes: dict[str, str] | None = None  # the broker of queues and priorities that have another


def configured(folder: str | os.PathLike[str] = ".") -> Configured:
    """The broker as the environment or the file names it; without a URL if neither does.

    Shards are the file's, whoever names the URL, and also if nobody does; so are routes, unless
    FAIRLEAD_ROUTES says others.
    """
    file = Path(folder, FILE)
    found = _read(file)
    shards, routes = found.get("shards"), _routes() or found.get("routes")
    if url := os.environ.get(VARIABLE, "").strip():
        return Configured(url, VARIABLE, shards, routes)
    if "url" in found:
        return Configured(found["url"], str(file.absolute()), shards, routes)
    return Configured(shards=shards, routes=routes)


def configured_ledger(folder: str | os.PathLike[str] = ".") -> str | None:
    """The URL of the ledger, as the environment or the file says; None if neither does."""
    if url := os.environ.get(LEDGER, "").strip():
        return url
    file = Path(folder, FILE)
    found = _parsed(file)
    return _checked(file, "ledger", found["ledger"]) if "ledger" in found else None


def requires_url() -> bool:
    """Whether a broker that nobody named is to be refused."""
    return os.environ.get(REQUIRE, "").strip().lower() not in _NO


def configured_timeout(folder: str | os.PathLike[str] = ".") -> float | None:
    """How many seconds a call may take, as the environment or the file says; None if neither does.

    Nothing else in the file is looked at: a program that names its broker does not depend on it.
    """
    if text := os.environ.get(_TIMEOUT, "").strip():
        limit = limit_in_seconds(text)
        if limit is None:
            raise InvalidInput(f"{_TIMEOUT} is {text!r}; make it {duration_rule(LEAST_LIMIT)}")
        return limit
    file = Path(folder, FILE)
    found = _parsed(file)
    return _checked(file, "timeout", found["timeout"]) if "timeout" in found else None


def _routes() -> dict[str, str] | None:
    """The routes as the environment says them: KEY=URL, with blanks between them."""
    routes: dict[str, str] = {}
    for item in os.environ.get(_ROUTES, "").split():
        key, equals, url = item.partition("=")
        if not equals or key in routes:
            what = f"has {key!r} twice" if equals else "has a part without ="
            raise InvalidInput(f"{_ROUTES} {what}; write priority:low=redis://bulk, blanks between")
        routes[key] = url
    return routes or None


def _read(file: Path) -> dict[str, Any]:
    return {key: _checked(file, key, value) for key, value in _parsed(file).items()}


def _parsed(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read ({error}); make it a readable text, or remove it"
        raise _wrong(file, what) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = f'is not TOML ({error}); a line of it looks like url = "redis://host"'
        raise _wrong(file, what) from None


def _checked(file: Path, key: str, value: Any) -> Any:
    if key not in _KEYS:
        close = get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it may have {', '.join(_KEYS)}"
        raise _wrong(file, f"has the key {key!r}, which Fairlead does not know; {hint}")
    if key in _TABLES:
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            what = f"has no table of texts as {key}; write [{key}] and below it {_TABLES[key]}"
            raise _wrong(file, what)
        return value
    if key == "timeout":
        limit = limit_in_seconds(value)
        if limit is None:
            raise _wrong(file, f'has {value!r} as timeout; write a duration, like timeout = "10s"')
        return limit
    if not isinstance(value, str) or not value.strip():
        # Not the value itself: what stands in the place of a URL may hold a password.
        kind = "an empty text" if isinstance(value, str) else type(value).__name__
        like = "postgresql://host/database" if key == "ledger" else "redis://host"
        raise _wrong(file, f'has {kind} as {key}; write a URL, like {key} = "{like}"')
    return value.strip()


def _wrong(file: Path, what: str) -> InvalidInput:
    return InvalidInput(f"{str(file.absolute())!r} {what}")
