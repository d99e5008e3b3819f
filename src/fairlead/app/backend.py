"""What an app works with: its broker, its ledger, and what it does while the broker is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlead.broker import (
    LIMIT,
    Store,
    call_limit,
    connect,
    split_limit,
    with_namespace,
    with_routes,
    with_shards,
)
from fairlead.client import Clients
from fairlead.client.errors import APP_OPTIONS, no_option
from fairlead.embedded.options import SCHEME
from fairlead.ledger.address import parse_address
from fairlead.model.codecs import Codec, codecs_of
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.priorities import Priorities
from fairlead.runtime.native_threads import are_threads_patched
from fairlead.settings import (
    FILE,
    REQUIRE,
    VARIABLE,
    Configured,
    configured,
    configured_fallback,
    configured_ledger,
    configured_namespace,
    configured_timeout,
    requires_url,
)

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback
    from fairlead.fallback.local_tasks import Finished, Handlers


class Opened(NamedTuple):
    """The clients of an app, and where its broker is."""

    clients: Clients
    url: str | None  # as other processes would open it; None: a store was given
    is_named: bool  # somebody said which broker


def open_clients(
    url: str | None,
    store: Store | None,
    *,
    shards: Mapping[str, str] | None,
    routes: Mapping[str, str] | None,
    namespace: str | None,
    timeout: Duration | None,
    ledger: str | None,
    fallback: str | None,
    spool: str | PathLike[str] | None,
    local_queues: Sequence[str] | None,
    handlers: Callable[[int, Finished], Handlers],
    priorities: Priorities,
    codec: Codec | Sequence[Codec] | None,
) -> Opened:
    """Return the clients of an app, as it was told or configured. Nothing is connected yet.

    ``handlers`` opens what runs spooled tasks in this process, so many at a time.
    """
    codecs = codecs_of(codec)
    limit = call_limit(timeout)
    whole: str | None = None
    is_named = True
    if store is None:
        said = Configured(url) if url else configured()
        is_named = said.url is not None
        whole = _whole_url(said, shards, routes, namespace)
        limit = limit or split_limit(whole)[1] or configured_timeout()
        store = connect(whole, is_default=not is_named, timeout=limit)
    kept = _fallback(store, fallback, spool, local_queues, handlers)
    clients = Clients(store, limit or LIMIT, _ledger_url(ledger), kept, priorities, codecs)
    return Opened(clients, whole, is_named)


def _fallback(
    store: Store,
    fallback: str | None,
    spool: str | PathLike[str] | None,
    local_queues: Sequence[str] | None,
    handlers: Callable[[int, Finished], Handlers],
) -> Fallback | None:
    said = configured_fallback(fallback, spool, local_queues)
    if said.fallback == "none":
        return None
    # Here: most programs have none.
    from fairlead.fallback.fallback import Fallback, FallbackOptions
    from fairlead.spool import SpoolLimits

    own = said.spool
    limits = SpoolLimits(max_bytes=own.max_bytes, max_count=own.max_count, max_age=own.max_age)
    options = FallbackOptions(directory=Path(own.directory), limits=limits)
    if said.fallback == "spool":
        return Fallback(store, options)
    _check_local(said.local_queues)
    options = msgspec.structs.replace(
        options,
        local_queues=frozenset(said.local_queues),
        local_concurrency=said.local_concurrency,
    )
    return Fallback(store, options, partial(handlers, said.local_concurrency))


def _check_local(queues: Sequence[str]) -> None:
    if not queues:
        raise InvalidOption(
            "local_queues",
            list(queues),
            'at least one queue with fallback="local", like ["mail"]: its tasks run in this '
            "process while the broker is away",
        )
    if are_threads_patched():
        raise InvalidInput(
            "gevent has replaced the threads of this process, which handlers need: use "
            'fallback="spool" here, or patch only in programs that run no tasks'
        )


def check_arguments(
    url: object,
    store: object,
    spread: Mapping[str, object],
    priorities: object,
    namespace: object,
    unknown: Iterable[str],
    known: Iterable[str],
) -> None:
    """Refuse arguments of ``Fairlead`` that there are not, do not go together, or are no such."""
    for name in unknown:
        raise no_option(name, ("url", *known), "Fairlead", APP_OPTIONS)
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


def _ledger_url(given: str | None) -> str | None:
    """The URL of the ledger that the program gives, or else the one it was configured with."""
    url = configured_ledger() if given is None else given
    if url is not None:
        parse_address(url)  # now: at the first use, the error would come from deep within
    return url


def _whole_url(
    said: Configured,
    shards: Mapping[str, str] | None,
    routes: Mapping[str, str] | None,
    namespace: str | None = None,
) -> str:
    """Return the URL with what the program gives, or else what is configured, beside it."""
    url = said.url or _own_server()
    if not url.lower().startswith("memory:"):
        # A test on memory is not to fail because of a deployment's file.
        shards = said.shards if shards is None else shards
        routes = said.routes if routes is None else routes
        url = with_namespace(url, configured_namespace() if namespace is None else namespace)
    return with_routes(
        with_shards(url, {} if shards is None else shards), {} if routes is None else routes
    )


def _own_server() -> str:
    """The URL of the broker that nobody had to name; raises where there is no program for it."""
    if requires_url():
        raise InvalidInput(
            f"no broker was named, and {REQUIRE} is set: give Fairlead a URL, set {VARIABLE}, or "
            f"write url into {str(Path(FILE).absolute())!r}"
        )
    # Here: most programs name their broker.
    from fairlead.embedded.valkey_server import find_binary

    find_binary()  # looked for now: at the first call, the error would come from deep within
    return f"{SCHEME}://"
