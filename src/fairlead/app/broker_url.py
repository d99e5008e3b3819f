"""Which broker an app uses: the URL it was given, was configured with, or its own server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairlead.broker import with_shards
from fairlead.embedded import SCHEME, find_binary
from fairlead.model.errors import InvalidInput
from fairlead.settings import FILE, REQUIRE, VARIABLE, requires_url

__all__ = ("own_server", "url_with_shards")


def url_with_shards(
    url: str, shards: Mapping[str, str] | None, configured: Mapping[str, str] | None
) -> str:
    """The URL with the shards that the program gives, or else those that it was configured with."""
    if shards is None and url.lower().startswith("memory:"):
        return url  # a test on memory is not to fail because of a deployment's file
    return with_shards(url, (configured or {}) if shards is None else shards)


def own_server() -> str:
    """The URL of the broker that nobody had to name; raises where there is no program for it."""
    if requires_url():
        raise InvalidInput(
            f"no broker was named, and {REQUIRE} is set: give Fairlead a URL, set {VARIABLE}, or "
            f"write url into {str(Path(FILE).absolute())!r}"
        )
    find_binary()  # looked for now: at the first call, the error would come from deep within
    return f"{SCHEME}://"
