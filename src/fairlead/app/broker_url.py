"""Which broker and ledger an app uses: as it was told, as it was configured, or its own server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairlead.broker import with_namespace, with_routes, with_shards
from fairlead.embedded.options import SCHEME
from fairlead.ledger.address import parse_address
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.settings import (
    FILE,
    REQUIRE,
    VARIABLE,
    Configured,
    configured_ledger,
    configured_namespace,
    requires_url,
)

__all__ = ("check_arguments", "ledger_url", "own_server", "whole_url")


def check_arguments(
    url: object,
    store: object,
    spread: Mapping[str, object],
    priorities: object,
    namespace: object = None,
) -> None:
    """Refuse arguments of ``Fairlead`` that do not go together, or are of another kind."""
    if url is not None and store is not None:
        raise InvalidOption("url", url, "left out when a store is given")
    for name, table in spread.items():  # a route may hold a password: only its name is repeated
        if table is not None and store is not None:
            shown = list(table) if isinstance(table, Mapping) else type(table).__name__
            raise InvalidOption(name, shown, "left out when a store is given")
    if namespace is not None and store is not None:
        raise InvalidOption("namespace", namespace, "left out when a store is given")
    if url is not None and not isinstance(url, str):
        raise InvalidOption("url", url, "text such as memory://")
    if priorities is not None and not isinstance(priorities, Mapping):
        raise InvalidOption("priorities", priorities, "a level for each name or number")


def ledger_url(given: str | None) -> str | None:
    """The URL of the ledger that the program gives, or else the one it was configured with."""
    url = configured_ledger() if given is None else given
    if url is not None:
        parse_address(url)  # now: at the first use, the error would come from deep within
    return url


def whole_url(
    said: Configured,
    shards: Mapping[str, str] | None,
    routes: Mapping[str, str] | None,
    namespace: str | None = None,
) -> str:
    """Return the URL with what the program gives, or else what is configured, beside it."""
    url = said.url or own_server()
    if not url.lower().startswith("memory:"):
        # A test on memory is not to fail because of a deployment's file.
        shards = said.shards if shards is None else shards
        routes = said.routes if routes is None else routes
        url = with_namespace(url, configured_namespace() if namespace is None else namespace)
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
    # Here: most programs name their broker.
    from fairlead.embedded.server import find_binary

    find_binary()  # looked for now: at the first call, the error would come from deep within
    return f"{SCHEME}://"
