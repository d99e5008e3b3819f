"""Which broker an app uses: the URL it was given, was configured with, or its own server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairlead.broker import with_routes, with_shards
from fairlead.embedded import SCHEME, find_binary
from fairlead.model.errors import InvalidInput
from fairlead.settings import FILE, REQUIRE, VARIABLE, Configured, requires_url

__all__ = ("own_server", "whole_url")


def whole_url(
    said: Configured,
    shards: Mapping[str, str] | None,
    routes: Mapping[str, str] | None,
) -> str:
    """Return the URL with the shards and routes that the program gives, or else the configured."""
    url = said.url or own_server()
    if not url.lower().startswith("memory:"):
        # A test on memory is not to fail because of a deployment's file.
        shards = said.shards if shards is None else shards
        routes = said.routes if routes is None else routes
    return with_routes(
        with_shards(url, {} if shards is None else shards), {} if routes is None else routes
    )


def own_server() -> str:
    """The URL of the broker that nobody had to name; raises where there is no program for it."""
    if requires_url():
        raise InvalidInput(
            f"no broker was named, and {REQUIRE} is set: give Fairlead a URL, set {VARIABLE}, or "
            f"write url into {str(Path(FILE).absolute())!r}"
        )
    find_binary()  # looked for now: at the first call, the error would come from deep within
    return f"{SCHEME}://"
