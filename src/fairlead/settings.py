"""What a program need not say itself: where its broker is.

The first that says so counts: the argument of ``Fairlead``, the environment variable FAIRLEAD_URL,
the file ``fairlead.toml`` in the working directory. An empty one says nothing.
"""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fairlead.model.errors import InvalidInput

__all__ = ("FILE", "VARIABLE", "configured_url")

VARIABLE = "FAIRLEAD_URL"
FILE = "fairlead.toml"

_KEYS = ("url",)


def configured_url(folder: str | os.PathLike[str] = ".") -> str | None:
    """The URL of the broker as the environment or the file names it; None if neither does."""
    return os.environ.get(VARIABLE, "").strip() or _read(Path(folder, FILE)).get("url")


def _read(file: Path) -> dict[str, str]:
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read ({error}); make it a readable text, or remove it"
        raise _wrong(file, what) from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = f'is not TOML ({error}); a line of it looks like url = "redis://host"'
        raise _wrong(file, what) from None
    return {key: _checked(file, key, value) for key, value in found.items()}


def _checked(file: Path, key: str, value: Any) -> str:
    if key not in _KEYS:
        close = get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it may have {', '.join(_KEYS)}"
        raise _wrong(file, f"has the key {key!r}, which Fairlead does not know; {hint}")
    if not isinstance(value, str) or not value.strip():
        # Not the value itself: what stands in the place of a URL may hold a password.
        kind = "an empty text" if isinstance(value, str) else type(value).__name__
        raise _wrong(file, f'has {kind} as {key}; write a URL, like url = "redis://host"')
    return value.strip()


def _wrong(file: Path, what: str) -> InvalidInput:
    return InvalidInput(f"{str(file.absolute())!r} {what}")
